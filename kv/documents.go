package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits of documents.
const (
	// MaxDocument is the largest value of a document in bytes.
	MaxDocument = 512 << 10
	// maxDocumentName is the longest escaped namespace, collection or id: a
	// subject that is too long makes the server close the connection.
	maxDocumentName = 255
	// documentKeys is how many idempotency keys a document remembers.
	documentKeys = 8
	// documentVersion is the version of the stored document record.
	documentVersion = 1
)

// documentRecord is a document as it is stored: the value, and the keys of the
// last writes in the same record, so that an effect and the memory of it are
// one write. A removed document stays as a record until the retention ends.
type documentRecord struct {
	Version int             `json:"version"` // documentVersion
	Value   json.RawMessage `json:"v,omitempty"`
	Deleted bool            `json:"deleted,omitempty"`
	Keys    []documentKey   `json:"keys,omitempty"` // newest first
}

// documentKey is a write that was done. Rev is 0 for the write that made the
// record, since its revision is the record's own.
type documentKey struct {
	Key     string `json:"k"`
	Rev     uint64 `json:"r,omitempty"`
	Deleted bool   `json:"d,omitempty"`
}

// Documents is the document store: JSON values under namespace, collection and
// id, in the bucket STATE. The key is <namespace>.<collection>.<id>, or
// <namespace>.<collection> for an empty id; in each part everything but
// [A-Za-z0-9_-] is written =XX. The revision of a document is its sequence in
// the stream; 0 means absent. All methods may be called concurrently; a write
// is durable when it returns.
//
// Errors: goal.ErrTooLarge for a name or a value over the limits, and those of
// the store.
type Documents struct{ s *Store }

// Documents returns the document store.
func (s *Store) Documents() *Documents { return &Documents{s: s} }

// documentPart escapes one part of a document's key. It is reversible; an
// empty part is a lone "=".
func documentPart(what, name string) (string, error) {
	if name == "" {
		return "=", nil
	}
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	if b.Len() > maxDocumentName {
		return "", fmt.Errorf("%s %.40q…: %w", what, name, goal.ErrTooLarge)
	}
	return b.String(), nil
}

// documentName reverses documentPart.
func documentName(part string) (string, error) {
	if part == "=" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		if part[i] != '=' {
			b.WriteByte(part[i])
			continue
		}
		var c byte
		if i+3 > len(part) {
			return "", fmt.Errorf("document key %q is malformed", part)
		}
		if _, err := fmt.Sscanf(part[i+1:i+3], "%02X", &c); err != nil {
			return "", fmt.Errorf("document key %q is malformed: %w", part, err)
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String(), nil
}

// documentSubject is the subject of a document.
func documentSubject(namespace, collection, id string) (string, error) {
	ns, err := documentPart("namespace", namespace)
	if err != nil {
		return "", err
	}
	coll, err := documentPart("collection", collection)
	if err != nil {
		return "", err
	}
	subject := bucketSubject(goal.StateBucket, ns+"."+coll)
	if id == "" {
		return subject, nil
	}
	part, err := documentPart("id", id)
	return subject + "." + part, err
}

// Get returns a document and its revision, or goal.ErrNotFound. It is never
// older than a write that has returned.
func (d *Documents) Get(ctx context.Context, namespace, collection, id string) (json.RawMessage, uint64, error) {
	subject, err := documentSubject(namespace, collection, id)
	if err != nil {
		return nil, 0, err
	}
	doc, rev, err := d.load(ctx, subject)
	if err != nil {
		return nil, 0, err
	}
	if rev == 0 || doc.Deleted {
		return nil, 0, fmt.Errorf("document %s/%s: %w", collection, id, goal.ErrNotFound)
	}
	return doc.Value, rev, nil
}

// load reads a record by the word of the leader; revision 0 means that there
// is none.
func (d *Documents) load(ctx context.Context, subject string) (documentRecord, uint64, error) {
	read := d.s.get
	if d.s.conf.Replicas > 1 {
		read = d.s.getFresh // a replica may be behind
	}
	r, err := read(ctx, bucketStream(goal.StateBucket), subject)
	if errors.Is(err, goal.ErrNotFound) {
		return documentRecord{}, 0, nil
	}
	if err != nil {
		return documentRecord{}, 0, err
	}
	doc, err := decodeDocument(r)
	return doc, r.Seq, err
}

func decodeDocument(r Record) (documentRecord, error) {
	var doc documentRecord
	if err := goal.Unmarshal(r.Data, &doc); err != nil {
		return documentRecord{}, fmt.Errorf("decode document %s: %w", r.Subject, err)
	}
	if doc.Version != documentVersion {
		return documentRecord{}, fmt.Errorf("decode document %s: %w: %d", r.Subject, errVersion, doc.Version)
	}
	return doc, nil
}

// Put writes a document whose revision is rev (0: absent) and returns the new
// revision, or goal.ErrFenced when it has another.
func (d *Documents) Put(ctx context.Context, namespace, collection, id string, value json.RawMessage, rev uint64) (uint64, error) {
	if value == nil {
		return 0, errors.New("put of a document without a value")
	}
	rev, _, err := d.Edit(ctx, namespace, collection, id, "", fencedEdit(value, rev))
	return rev, err
}

// Delete removes a document whose revision is rev, or returns goal.ErrFenced
// when it has another.
func (d *Documents) Delete(ctx context.Context, namespace, collection, id string, rev uint64) error {
	_, _, err := d.Edit(ctx, namespace, collection, id, "", fencedEdit(nil, rev))
	return err
}

func fencedEdit(value json.RawMessage, want uint64) func(json.RawMessage, uint64) (json.RawMessage, error) {
	return func(_ json.RawMessage, rev uint64) (json.RawMessage, error) {
		if rev != want {
			return nil, fmt.Errorf("document has revision %d, not %d: %w", rev, want, goal.ErrFenced)
		}
		return value, nil
	}
}

// Edit changes one document and remembers the key in the same write. The
// function gets what is there (nil and 0: absent) and returns what shall be
// there (nil: nothing); it is called again when another writer was faster, and
// its error ends the edit and is returned as it is. When the document
// remembers the key, nothing changes: replayed is true and rev is what the
// first call returned. Rev is 0 after a removal. An empty key is not
// remembered. The last eight keys are remembered; a removed document keeps
// them for the retention.
func (d *Documents) Edit(ctx context.Context, namespace, collection, id, key string,
	edit func(current json.RawMessage, rev uint64) (json.RawMessage, error),
) (rev uint64, replayed bool, err error) {
	subject, err := documentSubject(namespace, collection, id)
	if err != nil {
		return 0, false, err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		rev, replayed, err = d.editOnce(ctx, subject, key, edit)
		if _, lost := errors.AsType[*raceError](err); !lost {
			return rev, replayed, err
		}
		if !pause(ctx, attempt) {
			return 0, false, fmt.Errorf("edit %s: %w", subject, unavailable(context.Cause(ctx)))
		}
	}
}

// raceError means that another writer was faster.
type raceError struct{ error }

func (e *raceError) Unwrap() error { return e.error }

func (d *Documents) editOnce(ctx context.Context, subject, key string,
	edit func(json.RawMessage, uint64) (json.RawMessage, error),
) (rev uint64, replayed bool, err error) {
	doc, last, err := d.load(ctx, subject)
	if err != nil {
		return 0, false, err
	}
	if done, rev := doc.did(key, last); done {
		// The first call may have died between its write and the barrier.
		return rev, true, d.s.durable(ctx)
	}
	shown := last
	if doc.Deleted {
		shown = 0
	}
	next, err := edit(slices.Clone(doc.Value), shown)
	if err != nil {
		return 0, false, err
	}
	if len(next) > MaxDocument {
		return 0, false, fmt.Errorf("document of %d bytes: %w", len(next), goal.ErrTooLarge)
	}
	rev, err = d.write(ctx, subject, doc.after(next, key, last), last)
	if next == nil {
		rev = 0
	}
	return rev, false, err
}

// did reports whether the write of a key was done, and the revision that it
// returned.
func (r documentRecord) did(key string, own uint64) (bool, uint64) {
	if key == "" {
		return false, 0
	}
	for _, k := range r.Keys {
		switch {
		case k.Key != key:
		case k.Deleted:
			return true, 0
		case k.Rev == 0:
			return true, own
		default:
			return true, k.Rev
		}
	}
	return false, 0
}

// after is the record that follows: the new value, and the keys with the one
// of this write in front.
func (r documentRecord) after(value json.RawMessage, key string, last uint64) documentRecord {
	next := documentRecord{Version: documentVersion, Value: value, Deleted: value == nil}
	if key != "" {
		next.Keys = []documentKey{{Key: key, Deleted: value == nil}}
	}
	for _, k := range r.Keys {
		if len(next.Keys) == documentKeys {
			break
		}
		if k.Rev == 0 {
			k.Rev = last
		}
		next.Keys = append(next.Keys, k)
	}
	return next
}

// write stores a record over revision last; *raceError when it is not the last
// any more.
func (d *Documents) write(ctx context.Context, subject string, doc documentRecord, last uint64) (uint64, error) {
	data, err := goal.Marshal(doc)
	if err != nil {
		return 0, err
	}
	ttl := d.s.conf.Retention
	if !doc.Deleted {
		ttl = 0
	}
	var rev uint64
	if last == 0 {
		rev, err = d.s.create(ctx, subject, data, ttl)
	} else {
		rev, err = d.s.update(ctx, subject, data, last, ttl)
	}
	if errors.Is(err, goal.ErrExists) || errors.Is(err, goal.ErrFenced) {
		return 0, &raceError{err}
	}
	return rev, err
}

// List returns the ids of at most limit documents of a collection, oldest
// write first. It costs one read per document: it is for presence checks and
// for looking, not for the way of a goal.
func (d *Documents) List(ctx context.Context, namespace, collection string, limit int) ([]string, error) {
	var ids []string
	err := d.each(ctx, namespace, collection, func(id string, doc documentRecord, _ uint64) bool {
		if !doc.Deleted {
			ids = append(ids, id)
		}
		return len(ids) < limit
	})
	return ids, err
}

// Collection reports whether a collection is there: as a whole document, whose
// value and revision it returns, or by its entities. One whose entities were all
// removed is there, and empty, until the whole is removed too.
func (d *Documents) Collection(ctx context.Context, namespace, collection string) (whole json.RawMessage, rev uint64, present bool, err error) {
	subject, err := documentSubject(namespace, collection, "")
	if err != nil {
		return nil, 0, false, err
	}
	doc, last, err := d.load(ctx, subject)
	switch {
	case err != nil:
		return nil, 0, false, err
	case last > 0 && !doc.Deleted:
		return doc.Value, last, true, nil
	}
	present, err = d.hasEntities(ctx, namespace, collection, subject, last)
	return nil, 0, present, err
}

// hasEntities reports whether a collection has entities, or had some since its
// whole was removed.
func (d *Documents) hasEntities(ctx context.Context, namespace, collection, subject string, removed uint64) (present bool, err error) {
	if d.s.presence.seen(subject) > removed {
		return true, nil
	}
	err = d.each(ctx, namespace, collection, func(_ string, doc documentRecord, rev uint64) bool {
		present = !doc.Deleted || rev > removed
		if present {
			d.s.presence.note(subject, rev)
		}
		return !present
	})
	return present, err
}

// presence remembers a revision that some entity of a collection had. Its later
// revisions are higher, also the one that removes it: so the collection is
// there as long as this one is above the whole's removal. Looking for an entity
// costs the server time in proportion to the collection.
type presence struct {
	mu   sync.Mutex
	revs map[string]sighting // by the collection's subject; guarded by mu
}

type sighting struct {
	rev uint64
	at  time.Time
}

const (
	presenceKept = time.Minute // much less than what is kept of a removed entity
	presenceMost = 10_000      // collections; then all are forgotten
)

// seen is the revision noted for a collection, or 0.
func (p *presence) seen(subject string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.revs[subject]
	if !ok || time.Since(s.at) > presenceKept {
		return 0
	}
	return s.rev
}

func (p *presence) note(subject string, rev uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revs == nil || len(p.revs) >= presenceMost {
		p.revs = map[string]sighting{}
	}
	p.revs[subject] = sighting{rev: rev, at: time.Now()}
}

// each visits the entities of a collection, removed ones too, until visit
// returns false.
func (d *Documents) each(ctx context.Context, namespace, collection string, visit func(id string, doc documentRecord, rev uint64) bool) error {
	subject, err := documentSubject(namespace, collection, "")
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	for from := uint64(1); ; {
		r, err := d.s.read(ctx, func(ctx context.Context) (Record, error) {
			return d.s.leaderGet(ctx, bucketStream(goal.StateBucket), msgRequest{Seq: from, NextFor: subject + ".*"})
		})
		if errors.Is(err, goal.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		from = r.Seq + 1
		if r.removed() {
			continue
		}
		doc, err := decodeDocument(r)
		if err != nil {
			return err
		}
		id, err := documentName(r.Subject[len(subject)+1:])
		if err != nil {
			return err
		}
		if !visit(id, doc, r.Seq) {
			return nil
		}
	}
}

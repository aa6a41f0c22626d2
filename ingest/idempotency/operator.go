package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Errors of the operator's actions, beside those of the store.
var (
	// ErrRunning: the call's lease is alive, or the holder's clock says so.
	ErrRunning = errors.New("the call runs under a live lease")
	// ErrFinal: a completed or released call is not changed by hand.
	ErrFinal = errors.New("the call is completed or released already")
	// ErrAnswer: the answer to complete a call with is not a valid one.
	ErrAnswer = errors.New("not an answer to complete a call with")
)

// Entry is a call as operators see it.
type Entry struct {
	ID string `json:"id"` // of the record: a digest of tenant and key
	Record
	rev uint64
}

// Operator looks at the records of calls and decides those that are held. Its
// methods may be called concurrently.
type Operator struct {
	Store interface {
		Store
		Lister
	}
	// ResultTTL of answers that an operator gives; default 24 h.
	ResultTTL time.Duration
}

// maxList bounds what one List returns.
const maxList = 1000

// ID is the record's id for a tenant's Idempotency-Key.
func ID(tenant, key string) string { return recordID(tenant, key) }

// List returns at most limit calls in the state, or in any for "". A limit
// outside 1 to 1000 means 1000. Records of other versions are left out.
func (o *Operator) List(ctx context.Context, state State, limit int) ([]Entry, error) {
	if limit < 1 || limit > maxList {
		limit = maxList
	}
	out := []Entry{}
	err := o.Store.Each(ctx, func(id string, data []byte, rev uint64) bool {
		rec, err := decodeRecord(data)
		if err == nil && (state == "" || rec.State == state) {
			out = append(out, Entry{id, *rec, rev})
		}
		return len(out) < limit
	})
	return out, err
}

// Inspect returns one call, its answer with the body when that is inline;
// goal.ErrNotFound.
func (o *Operator) Inspect(ctx context.Context, id string) (Entry, error) {
	cur, err := ledger{o.Store}.read(ctx, id)
	if err != nil {
		return Entry{}, err
	}
	return Entry{id, *cur.Record, cur.rev}, nil
}

// Release lets the next attempt of a held call run: the operator knows that it
// took no effect. who and reason are kept. A call whose holder died under
// OnAmbiguous: Hold may be released once its last lease has passed. Repeating
// it returns ErrFinal. Errors: ErrRunning, ErrFinal, goal.ErrNotFound.
func (o *Operator) Release(ctx context.Context, id, who, reason string) error {
	c, err := o.seize(ctx, id, who)
	if err != nil {
		return err
	}
	return o.decided(ledger{o.Store}.release(ctx, c, reason))
}

// Complete gives a held call its answer: the operator knows that it took
// effect. Only Status, Header and Body of the answer count. Repeating it
// returns ErrFinal. Errors: as Release, and ErrAnswer.
func (o *Operator) Complete(ctx context.Context, id, who, reason string, a Answer) error {
	if a.Status < 200 || a.Status > 599 || len(a.Body) > maxBody {
		return fmt.Errorf("%w: status %d with %d bytes", ErrAnswer, a.Status, len(a.Body))
	}
	c, err := o.seize(ctx, id, who)
	if err != nil {
		return err
	}
	a = Answer{Status: a.Status, Header: storedHeader(a.Header), Body: a.Body, At: time.Now().UTC()}
	if a.Header == nil {
		a.Header = http.Header{}
	}
	ttl := o.ResultTTL
	fill(&ttl, MinResultTTL)
	c.rec.Reason = reason
	return o.decided(ledger{o.Store}.complete(ctx, c, a, ttl))
}

// seize returns the claim on a call that nobody runs, with the operator as its
// next owner. It writes nothing.
func (o *Operator) seize(ctx context.Context, id, who string) (*claim, error) {
	cur, err := ledger{o.Store}.read(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case cur.State == Completed || cur.State == Released:
		return nil, ErrFinal
	case cur.State == InProgress && time.Now().Before(cur.LeaseUntil):
		return nil, ErrRunning
	}
	rec := *cur.Record
	rec.Owner = "operator:" + who + ":" + newOwner()
	return &claim{id: id, rec: rec, rev: cur.rev}, nil
}

func (o *Operator) decided(err error) error {
	if errors.Is(err, errLost) {
		return fmt.Errorf("%w: it changed meanwhile", goal.ErrFenced)
	}
	return err
}

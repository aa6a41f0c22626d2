package kv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// ensureObjects provisions the object store. An object is kept for twice the
// retention and stored anew when it is met after the first: so it outlives
// every task that names it.
func (s *Store) ensureObjects(ctx context.Context) error {
	want := jetstream.ObjectStoreConfig{
		Bucket: goal.ObjectsBucket, TTL: 2*s.conf.Retention + outlive, Storage: jetstream.FileStorage, Replicas: s.conf.Replicas,
	}
	for attempt := 0; ; attempt++ {
		objects, err := func() (jetstream.ObjectStore, error) {
			ctx, cancel := attemptContext(ctx, provisionTimeout)
			defer cancel()
			return s.openObjects(ctx, want)
		}()
		if err == nil {
			s.objects = objects
			return nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return fmt.Errorf("kv: provision object store: %w", err)
		}
	}
}

// openObjects opens the object store, and creates or updates it where it is not
// as wanted: a process that may not do that can still open one that is.
func (s *Store) openObjects(ctx context.Context, want jetstream.ObjectStoreConfig) (jetstream.ObjectStore, error) {
	have, err := s.js.ObjectStore(ctx, want.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return s.js.CreateOrUpdateObjectStore(ctx, want)
	}
	if err != nil {
		return nil, err
	}
	st, err := have.Status(ctx)
	if err != nil {
		return nil, err
	}
	if st.TTL() == want.TTL && st.Replicas() == want.Replicas && st.Storage() == want.Storage {
		return have, nil
	}
	return s.js.CreateOrUpdateObjectStore(ctx, want)
}

// PutObject stores data under the hex SHA-256 of it, which it returns. It may
// be repeated; the object is durable when it returns.
func (s *Store) PutObject(ctx context.Context, data []byte) (string, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	have, err := s.objectInfo(ctx, name)
	if err == nil && have.Size == uint64(len(data)) && time.Since(have.ModTime) < s.conf.Retention {
		return name, s.durable(ctx)
	}
	if err := s.storeObject(ctx, name, data); err != nil {
		return "", fmt.Errorf("put object: %w", err)
	}
	return name, s.durable(ctx)
}

func (s *Store) objectInfo(ctx context.Context, name string) (*jetstream.ObjectInfo, error) {
	ctx, cancel := attemptContext(ctx, attemptTimeout)
	defer cancel()
	return s.objects.GetInfo(ctx, name)
}

// objectChunk is the largest part of an object in one message.
const objectChunk = 128 << 10

// storeObject writes what a NATS object store reads: the chunks, then the
// information that makes them an object. Not through the client's own put, which
// starts a goroutine for its asynchronous publishes that can miss its end and
// then stays for good (nats.go 1.55, resetPendingAcksOnReconnect). The chunks of
// an object that is stored anew go by their age.
func (s *Store) storeObject(ctx context.Context, name string, data []byte) error {
	hash := sha256.New()
	hash.Write(data)
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name}, Bucket: goal.ObjectsBucket, NUID: newNonce(),
		Size: uint64(len(data)), Digest: jetstream.GetObjectDigestValue(hash),
	}
	for chunk := range slices.Chunk(data, objectChunk) {
		info.Chunks++
		id := fmt.Sprintf("%s-%d", info.NUID, info.Chunks)
		w := write{subject: "$O." + goal.ObjectsBucket + ".C." + info.NUID, data: chunk, nonce: id, msgID: id}
		if _, err := s.send(ctx, w); err != nil {
			return fmt.Errorf("chunk %d: %w", info.Chunks, err)
		}
	}
	meta, err := goal.Marshal(info)
	if err != nil {
		return err
	}
	w := write{
		subject: "$O." + goal.ObjectsBucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name)), data: meta,
		nonce: info.NUID, msgID: info.NUID, header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}},
	}
	_, err = s.send(ctx, w)
	return err
}

// GetObject returns what was stored under name, or goal.ErrNotFound. Its digest
// has been checked.
func (s *Store) GetObject(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		data, err := s.objectBytes(ctx, name)
		switch {
		case err == nil && matches(name, data):
			return data, nil
		case errors.Is(err, jetstream.ErrObjectNotFound) && (s.conf.Replicas == 1 || attempt >= 5):
			return nil, fmt.Errorf("object %s: %w", name, goal.ErrNotFound)
		case attempt >= 5:
			return nil, fmt.Errorf("object %s: %w", name, fault(errors.Join(err, errDigest)))
		}
		// A replica may be behind, or the object is just stored anew.
		if !pause(ctx, attempt+3) {
			return nil, fmt.Errorf("object %s: %w", name, unavailable(errors.Join(err, errDigest)))
		}
	}
}

func (s *Store) objectBytes(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := attemptContext(ctx, callTimeout)
	defer cancel()
	return s.objects.GetBytes(ctx, name)
}

var errDigest = errors.New("the object's bytes could not be read whole")

func matches(name string, data []byte) bool {
	sum := sha256.Sum256(data)
	want, err := hex.DecodeString(name)
	return err == nil && bytes.Equal(want, sum[:])
}

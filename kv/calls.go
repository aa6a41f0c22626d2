package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// traceTTL is how long an expired record of a call leaves a trace: the next
// attempt is then told that there was one before it.
const traceTTL = time.Hour

// Calls keeps the records of tool calls in the bucket CALLS, for
// ingest/idempotency: its Store and its Lister. Every write is compare-and-set
// on the revision, sets its time to live with the same write, and is durable
// when it returns. All methods may be called concurrently.
//
// A lost compare-and-set is reported as it is, also when an earlier attempt of
// the same call, whose answer was lost, is what it met: the records name their
// owner, so the caller tells by reading.
//
// Errors: those named at the methods, goal.ErrFull, goal.ErrTooLarge and
// goal.ErrUnavailable.
type Calls struct {
	s     *Store
	close func()
}

// Calls returns the records of tool calls.
func (s *Store) Calls(ctx context.Context) (*Calls, error) {
	c := &Calls{s: s, close: func() {}}
	return c, c.provision(ctx)
}

// OpenCalls connects to a NATS server and provisions the bucket CALLS alone:
// what a backend needs that protects its own handlers. A bucket that exists
// keeps its replicas; a new one has three on a cluster. Close the calls last.
func OpenCalls(ctx context.Context, url string, opts ...nats.Option) (*Calls, error) {
	// Without a buffer for reconnects a write fails while it can still be
	// refused, instead of arriving after the caller was told that it did not.
	opts = append([]nats.Option{nats.Name("goalkeeper calls"), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("kv: connect: %w", err)
	}
	c, err := openCalls(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

func openCalls(ctx context.Context, nc *nats.Conn) (*Calls, error) {
	if err := VersionOK(nc.ConnectedServerVersion()); err != nil {
		return nil, err
	}
	conf, err := Config{Conn: nc}.withDefaults()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("kv: open JetStream: %w", err)
	}
	s := &Store{nc: nc, js: js, conf: conf, log: conf.Log}
	s.connect()
	if nc.ConnectedClusterName() != "" {
		s.conf.Replicas = 3
	}
	ctx, cancel := bounded(ctx, openTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, bucketStream(goal.CallsBucket))
	switch {
	case err == nil:
		s.conf.Replicas = stream.CachedInfo().Config.Replicas
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("kv: look up the bucket %s: %w", goal.CallsBucket, fault(err))
	}
	if err := s.ensure(ctx, s.bucket(goal.CallsBucket, 0)); err != nil {
		return nil, err
	}
	c := &Calls{s: s, close: nc.Close}
	return c, c.provision(ctx)
}

// provision lets expired records leave traces.
func (c *Calls) provision(ctx context.Context) error {
	ctx, cancel := bounded(ctx, openTimeout)
	defer cancel()
	stream, err := c.s.js.Stream(ctx, bucketStream(goal.CallsBucket))
	if err != nil {
		return fmt.Errorf("kv: look up the bucket %s: %w", goal.CallsBucket, fault(err))
	}
	conf := stream.CachedInfo().Config
	if conf.SubjectDeleteMarkerTTL == traceTTL {
		return nil
	}
	conf.SubjectDeleteMarkerTTL = traceTTL
	if _, err := c.s.js.UpdateStream(ctx, conf); err != nil {
		return fmt.Errorf("kv: provision the bucket %s: %w", goal.CallsBucket, fault(err))
	}
	return nil
}

// Close closes the connection that OpenCalls made.
func (c *Calls) Close() { c.close() }

// Create stores the first record of a key: goal.ErrExists when there is one,
// or the trace of one that expired. A ttl of 0 means none; parts of seconds are
// rounded up.
func (c *Calls) Create(ctx context.Context, key string, data []byte, ttl time.Duration) (uint64, error) {
	rev, err := c.set(ctx, key, data, 0, ttl)
	if errors.Is(err, goal.ErrFenced) {
		return 0, fmt.Errorf("create a call: %w", goal.ErrExists)
	}
	return rev, err
}

// Update replaces the record, or the trace, of revision rev: goal.ErrFenced
// when it is another by now.
func (c *Calls) Update(ctx context.Context, key string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	return c.set(ctx, key, data, rev, ttl)
}

func (c *Calls) set(ctx context.Context, key string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	w := write{subject: bucketSubject(goal.CallsBucket, key), data: data, ttl: ttl}.over(rev)
	if size, most := w.size(), int(c.s.nc.MaxPayload()); size > most {
		return 0, fmt.Errorf("%w: %d bytes, at most %d", goal.ErrTooLarge, size, most)
	}
	for attempt := 0; ; attempt++ {
		ack, err := c.s.pub(ctx, w.message())
		switch classify(err) {
		case writeStored:
			return ack.Sequence, c.s.durableUpTo(ctx, bucketStream(goal.CallsBucket), ack.Sequence)
		case writeLost:
			return 0, fmt.Errorf("write a call: %w", goal.ErrFenced)
		case writeMaxed, writeFull:
			return 0, fmt.Errorf("write a call: %w: %w", goal.ErrFull, err)
		case writeRefused:
			return 0, fmt.Errorf("write a call: %w", fault(err))
		case writeRetry:
			if !pause(ctx, attempt) {
				return 0, fmt.Errorf("write a call: %w", unavailable(err))
			}
		}
	}
}

// Get returns the record of a key and its revision, or goal.ErrNotFound, then
// with the revision of the trace that an expired record left, or 0. What it
// returns is durable, and the word of the leader: a replica that is behind
// would answer "in progress" to a caller that has seen the end.
func (c *Calls) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	stream, subject := bucketStream(goal.CallsBucket), bucketSubject(goal.CallsBucket, key)
	last := c.s.leaderLast
	if c.s.conf.Replicas == 1 {
		last = c.lastDirect
	}
	r, err := last(ctx, stream, subject)
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read a call: %w", err)
	case r.removed():
		return nil, r.Seq, fmt.Errorf("read a call: %w", goal.ErrNotFound)
	}
	if err := c.s.durableRecord(ctx, stream, r); err != nil {
		return nil, 0, err
	}
	return r.Data, r.Seq, nil
}

// lastDirect is cheaper than asking the leader, and the same on one replica.
func (c *Calls) lastDirect(ctx context.Context, stream, subject string) (Record, error) {
	return c.s.read(ctx, func(ctx context.Context) (Record, error) { return c.s.directLast(ctx, stream, subject) })
}

// Each calls fn for the record of every call until it returns false, oldest
// write first. It reads in batches; a record that changes meanwhile may be
// seen before or after.
func (c *Calls) Each(ctx context.Context, fn func(key string, data []byte, rev uint64) bool) error {
	ctx, cancel := bounded(ctx, openTimeout)
	defer cancel()
	filter := bucketSubject(goal.CallsBucket, "*") // parts and slots have more tokens
	for from, more := uint64(1), true; more; {
		var (
			part []Record
			err  error
		)
		if part, more, err = c.s.readPart(ctx, bucketStream(goal.CallsBucket), filter, from); err != nil {
			return fmt.Errorf("list calls: %w", err)
		}
		for _, r := range part {
			from = r.Seq + 1
			key := strings.TrimPrefix(r.Subject, bucketSubject(goal.CallsBucket, ""))
			if !r.removed() && !fn(key, r.Data, r.Seq) {
				return nil
			}
		}
	}
	return nil
}

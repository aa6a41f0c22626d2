package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Submit puts a goal into its tenant's queue, once per task id for as long as
// it is retained. created is false when the task was there: acc is then the
// first submission, whose fingerprint the caller compares. It ends within 2 s,
// and may be repeated as it is after any error: goal.ErrFull (only for a task
// that is new), goal.ErrUnavailable, goal.ErrTooLarge. What it returns is
// durable, also when this call did not write it.
func (s *Store) Submit(ctx context.Context, sub goal.Submission) (acc goal.Accepted, created bool, err error) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > submitTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, submitTimeout)
		defer cancel()
	}
	if err := checkTask(sub.Tenant, sub.TaskID); err != nil {
		return goal.Accepted{}, false, err
	}
	sub.Version, sub.AcceptedAt = goal.SubmissionVersion, time.Now().UTC()
	data, err := goal.Marshal(&sub)
	if err != nil {
		return goal.Accepted{}, false, fmt.Errorf("submit %s: %w", sub.TaskID, err)
	}
	w := write{subject: goal.QueueSubject(sub.Tenant, sub.TaskID), data: data, ttl: s.conf.Retention, nonce: newNonce()}
	if s.conf.Replicas > 1 {
		w.msgID = messageID(sub.Key) // else a twin in flight would look like a full stream
	}
	acc, created, err = s.submit(ctx, sub, w)
	if err != nil {
		return goal.Accepted{}, false, fmt.Errorf("submit %s: %w", sub.TaskID, err)
	}
	return acc, created, nil
}

func (s *Store) submit(ctx context.Context, sub goal.Submission, w write) (goal.Accepted, bool, error) {
	room, err := s.reserve(ctx, sub.Tenant)
	if err != nil {
		return goal.Accepted{}, false, err
	}
	r, err := s.enqueue(ctx, w, room)
	if err != nil {
		return goal.Accepted{}, false, err
	}
	if r.Data == nil || r.Header.Get(nonceHeader) == w.nonce {
		return s.acceptance(sub, r), true, s.durableUpTo(ctx, goal.GoalsStream(sub.Tenant), r.Seq)
	}
	if room {
		s.unreserve(sub.Tenant)
	}
	acc, err := s.accepted(r)
	if err != nil {
		return goal.Accepted{}, false, err
	}
	return acc, false, s.durableRecord(ctx, goal.GoalsStream(sub.Tenant), r)
}

// enqueue publishes the submission, if there is room. When the server says that
// it stored it, the record has no more than its sequence; otherwise it is what
// the queue holds for the task: the first submission, or our own whose answer
// was lost. goal.ErrFull: the queue takes no more, and the task is new.
func (s *Store) enqueue(ctx context.Context, w write, room bool) (Record, error) {
	stream, err := streamOf(w.subject)
	if err != nil {
		return Record{}, err
	}
	for {
		ack, err := &jetstream.PubAck{}, goal.ErrFull
		if room {
			ack, err = s.send(ctx, w)
		}
		full := errors.Is(err, goal.ErrFull)
		if err != nil && !full {
			return Record{}, err
		}
		if !full && !ack.Duplicate {
			return Record{Seq: ack.Sequence}, nil
		}
		r, err := s.get(ctx, stream, w.subject)
		if err == nil && !full && ack.Sequence > r.Seq {
			// A replica that is behind still shows an earlier goal of this id.
			r, err = s.getFresh(ctx, stream, w.subject)
		}
		switch {
		case !errors.Is(err, goal.ErrNotFound):
			return r, err
		case full:
			return Record{}, goal.ErrFull
		case w.msgID == "":
			return Record{}, unavailable(err)
		}
		// The server remembers the id, but an operator removed the goal.
		w.msgID = ""
	}
}

// messageID is the Nats-Msg-Id of a key: the key itself where it can be a
// header as it is, else a digest.
func messageID(key string) string {
	if key == "" || len(key) > 255 {
		return digestKey("key", key)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return digestKey("key", key)
		}
	}
	return key
}

// checkTask makes sure that tenant and task are one subject token each.
func checkTask(tenant, task string) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	if len(task) > 128 || !goal.ValidTenant(task[:min(len(task), 64)]) || len(task) > 64 && !goal.ValidTenant(task[64:]) {
		return fmt.Errorf("kv: task id %.140q is not 1 to 128 characters of A-Z, a-z, 0-9, - and _", task)
	}
	return nil
}

// settledAge is an age at which a record is durable without a barrier: the
// server syncs by itself at least every few seconds.
const settledAge = 15 * time.Second

// synced remembers, by stream, the highest sequence that is known to be durable:
// what the stream stored before a record is there when the record is.
type synced struct{ streams sync.Map }

func (m *synced) note(stream string, seq uint64) {
	v, _ := m.streams.LoadOrStore(stream, new(atomic.Uint64))
	mark, _ := v.(*atomic.Uint64)
	for {
		known := mark.Load()
		if known >= seq || mark.CompareAndSwap(known, seq) {
			return
		}
	}
}

func (m *synced) has(stream string, seq uint64) bool {
	v, ok := m.streams.Load(stream)
	if !ok {
		return false
	}
	mark, _ := v.(*atomic.Uint64)
	return seq <= mark.Load()
}

// durableUpTo returns when the stream is durable up to the record of that
// sequence, which is stored.
func (s *Store) durableUpTo(ctx context.Context, stream string, seq uint64) error {
	if err := s.durable(ctx); err != nil {
		return err
	}
	s.synced.note(stream, seq)
	return nil
}

// durableRecord is durable for a record that was read, perhaps before its
// writer's barrier has passed.
func (s *Store) durableRecord(ctx context.Context, stream string, r Record) error {
	if time.Since(r.Time).Abs() > settledAge || s.synced.has(stream, r.Seq) {
		return nil
	}
	return s.durableUpTo(ctx, stream, r.Seq)
}

package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	// tailBuffer is how many messages a tail holds ahead of its reader.
	tailBuffer = 256
	// tailIdle is after how long the server forgets a tail whose reader is gone.
	tailIdle = 30 * time.Second
	// tailResets is how often in a row a tail is made anew, with pauses of 1 s to
	// 10 s, before its reader is told that it was cut off.
	tailResets = 3
)

// TailHead is the sequence of the last message of the journals, by the word of
// the stream's leader; 0 when there is none.
func (s *Store) TailHead(ctx context.Context) (uint64, error) { return s.head(ctx, goal.EventsStream) }

func (s *Store) head(ctx context.Context, stream string) (uint64, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	st, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("last sequence of %s: %w", stream, fault(err))
	}
	return st.CachedInfo().State.LastSeq, nil
}

// TailEvents calls fn for every append to any journal and for every note, in the
// order of the stream and without gaps, from sequence from on. It blocks until
// ctx ends, or until it is cut off for good: goal.ErrUnavailable; then it may be
// called again with the sequence after the last one that fn saw. One such tail
// serves a whole process: each is a consumer that every publish pays for. What
// fn sees may not be durable yet, by some milliseconds.
func (s *Store) TailEvents(ctx context.Context, from uint64, fn func(seq uint64, tenant, task string, events []goal.Event)) error {
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1)}
	return s.tail(ctx, goal.EventsStream, cfg, nil, func(r Record) { s.tailed(ctx, r, fn) })
}

// RecallEvents calls fn for every append to a journal of the tenant, and every
// note, since that time. It returns when it has brought what was there when it
// was called.
func (s *Store) RecallEvents(ctx context.Context, tenant string, since time.Time, fn func(seq uint64, tenant, task string, events []goal.Event)) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cfg := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{goal.EventsFilter(tenant, "*"), goal.NoteSubject(tenant, "*")},
		DeliverPolicy:  jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
	}
	err := s.tail(ctx, goal.EventsStream, cfg, func() { cancel(errCaughtUp) }, func(r Record) { s.tailed(ctx, r, fn) })
	if errors.Is(err, errCaughtUp) {
		return nil
	}
	return err
}

var errCaughtUp = errors.New("caught up")

// tailed hands an append over. What nobody can read is logged and left out: a
// view lacks it, and Load says why.
func (s *Store) tailed(ctx context.Context, r Record, fn func(seq uint64, tenant, task string, events []goal.Event)) {
	token := strings.Split(r.Subject, ".") // goals.events.<tenant>.<task>.log, goals.notes.<tenant>.<task>
	if len(token) < 4 || r.removed() {
		return
	}
	b, err := decodeBatch(r)
	if err != nil {
		s.log.WarnContext(ctx, "unreadable append in a journal", "subject", r.Subject, "seq", r.Seq, "err", err)
		return
	}
	fn(r.Seq, token[2], token[3], b.Events)
}

// TailQueue calls fn for about the keep newest submissions of the tenant, oldest
// first, then caughtUp once, and then fn for every new one; those that known says
// are known are left out, and not decoded. It ends as TailEvents does.
func (s *Store) TailQueue(ctx context.Context, tenant string, keep int, known func(task string, seq uint64) bool, fn func(goal.Accepted), caughtUp func()) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	last, err := s.head(ctx, goal.GoalsStream(tenant))
	if err != nil {
		return err
	}
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 1}
	if keep := uint64(max(keep, 0)); last > keep {
		cfg.OptStartSeq = last - keep + 1
	}
	return s.tail(ctx, goal.GoalsStream(tenant), cfg, caughtUp, func(r Record) {
		if known(r.Subject[strings.LastIndexByte(r.Subject, '.')+1:], r.Seq) {
			return
		}
		acc, err := s.accepted(r)
		if err != nil {
			s.log.WarnContext(ctx, "unreadable goal in the queue", "subject", r.Subject, "seq", r.Seq, "err", err)
			return
		}
		fn(acc)
	})
}

// tail reads a stream by an ordered consumer. caughtUp may be nil; it is called
// once, after everything that was there at the start.
func (s *Store) tail(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig, caughtUp func(), fn func(Record)) error {
	cfg.InactiveThreshold, cfg.MaxResetAttempts = tailIdle, tailResets
	consumer, err := func() (jetstream.Consumer, error) {
		ctx, cancel := bounded(ctx, callTimeout)
		defer cancel()
		return s.js.OrderedConsumer(ctx, stream, cfg)
	}()
	if err != nil {
		return fmt.Errorf("tail %s: %w", stream, unavailable(err))
	}
	waiting := consumer.CachedInfo().NumPending
	it, err := consumer.Messages(jetstream.PullMaxMessages(tailBuffer))
	if err != nil {
		return fmt.Errorf("tail %s: %w", stream, unavailable(err))
	}
	defer it.Stop()
	// Next does not look at its context while it makes the consumer anew.
	defer context.AfterFunc(ctx, it.Stop)()
	for {
		if waiting == 0 && caughtUp != nil {
			caughtUp()
			caughtUp = nil
		}
		m, err := it.Next(jetstream.NextContext(ctx))
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("tail %s: %w", stream, unavailable(err))
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("tail %s: metadata: %w", stream, err)
		}
		fn(Record{Subject: m.Subject(), Data: m.Data(), Seq: meta.Sequence.Stream, Time: meta.Timestamp, Header: m.Headers()})
		waiting = min(waiting-min(waiting, 1), meta.NumPending)
	}
}

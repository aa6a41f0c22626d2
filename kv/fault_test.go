package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestLostAnswer loses the first answer of every kind of write. The server has
// stored it: the repetition must know its own.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			s := kvtest.Store(t, kvtest.Options{Nodes: nodes})
			ctx := t.Context()

			rev, err := s.Losing(1).Create(ctx, "$KV.CALLS.lost", []byte("1"), time.Minute)
			must(t, "create", err, nil)
			rev2, err := s.Losing(2).Update(ctx, "$KV.CALLS.lost", []byte("2"), rev, time.Minute)
			must(t, "update", err, nil)
			if rev2 != rev+1 {
				t.Fatalf("update stored revision %d after %d", rev2, rev)
			}
			must(t, "remove", s.Losing(1).Remove(ctx, "$KV.CALLS.lost", rev2), nil)
			_, err = s.Losing(1).Create(ctx, "$KV.CALLS.lost", []byte("3"), time.Minute)
			must(t, "create over a removed key", err, nil)

			first, _, err := s.Losing(1).Put(ctx, "deliveries.lost.a", []byte("1"), "", 0)
			must(t, "put", err, nil)
			second, _, err := s.Put(ctx, "deliveries.lost.a", []byte("2"), "", 0)
			if err != nil || second != first+1 {
				t.Fatalf("put stored %d after %d: %v", second, first, err)
			}

			acc, created, err := s.Losing(1).Submit(ctx, submission(taskID(t)))
			if err != nil || !created {
				t.Fatalf("submit: created %v, %v", created, err)
			}
			j, _, _, err := s.Losing(3).OpenJournal(ctx, acc)
			must(t, "open", err, nil)
			for range 4 {
				must(t, "append", j.Append(ctx, observed()), nil)
			}
			won, err := s.Losing(2).Settle(ctx, acc, succeeded(), j.N())
			if err != nil || won.Status != goal.Succeeded {
				t.Fatalf("settle: %s, %v", won.Status, err)
			}
			_, events := open(t, s, acc)
			numbers(t, events, 5)
			if got := ends(t, s, acc.Submission.TaskID); len(got) != 1 {
				t.Fatalf("%d terminal batches", len(got))
			}
		})
	}
}

// flaky is a barrier that fails its first waits.
type flaky struct{ left int }

func (f *flaky) Wait(context.Context) error {
	if f.left--; f.left >= 0 {
		return errors.New("disk says no")
	}
	return nil
}

// TestBarrierFails: a write that is stored but not known to be durable is not
// answered, and the same write again is stored once.
func TestBarrierFails(t *testing.T) {
	t.Parallel()
	barrier := &flaky{}
	s := kvtest.Store(t, kvtest.Options{}, func(c *kv.Config) { c.Barrier = barrier })
	ctx := t.Context()
	barrier.left = 1
	sub := submission(taskID(t))
	_, _, err := s.Submit(ctx, sub)
	must(t, "submit", err, goal.ErrUnavailable)
	barrier.left = 1
	_, _, err = s.Submit(ctx, sub)
	must(t, "replay of what is not yet durable", err, goal.ErrUnavailable)
	acc, created, err := s.Submit(ctx, sub)
	if err != nil || created {
		t.Fatalf("submit: created %v, %v", created, err)
	}
	j, _ := open(t, s, acc)
	e := observed()
	barrier.left = 2
	must(t, "append", j.Append(ctx, e), goal.ErrUnavailable)
	must(t, "append", j.Append(ctx, e), goal.ErrUnavailable)
	must(t, "append", j.Append(ctx, e), nil)
	must(t, "next append", j.Append(ctx, e), nil)
	_, events := open(t, s, acc)
	numbers(t, events, 2)

	barrier.left = 1
	must(t, "append", j.Append(ctx, e), goal.ErrUnavailable)
	must(t, "another append instead", j.Append(ctx, started(acc)), goal.ErrFenced)
	must(t, "the first again", j.Append(ctx, e), goal.ErrFenced)

	barrier.left = 1
	_, err = s.Settle(ctx, acc, succeeded(), 3)
	must(t, "settle", err, goal.ErrUnavailable)
	barrier.left = 1
	_, err = s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load of a result that is not yet durable", err, goal.ErrUnavailable)
	won, err := s.Settle(ctx, acc, failed(), 3)
	if err != nil || won.Status != goal.Succeeded {
		t.Fatalf("settle: %s, %v", won.Status, err)
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	s := c.Store(t)
	acc := submit(t, s, taskID(t))
	running := submit(t, s, taskID(t, "running"))
	for _, a := range []goal.Accepted{acc, running} {
		j, _ := open(t, s, a)
		must(t, "append", j.Append(t.Context(), started(a)), nil)
	}
	_, err := s.Settle(t.Context(), acc, succeeded(), 1)
	must(t, "settle", err, nil)
	must(t, "cancel", s.RequestCancel(t.Context(), running), nil)
	name, err := s.PutObject(t.Context(), []byte("object"))
	must(t, "put object", err, nil)

	c.Restart(t, 0)
	s = c.Store(t)
	snap, err := s.Load(t.Context(), kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load", err, nil)
	numbers(t, snap.Events, 2)
	if snap.Task().Status != goal.Succeeded || snap.Seq != acc.Seq {
		t.Fatalf("loaded %+v", snap)
	}
	snap, err = s.Load(t.Context(), kv.DefaultTenant, running.Submission.TaskID)
	must(t, "load", err, nil)
	if snap.Task().Status != goal.Running || !snap.CancelAsked {
		t.Fatalf("loaded %+v", snap)
	}
	_, created, err := s.Submit(t.Context(), acc.Submission)
	if err != nil || created {
		t.Fatalf("submit again: created %v, %v", created, err)
	}
	if got, err := s.GetObject(t.Context(), name); err != nil || string(got) != "object" {
		t.Fatalf("object %q, %v", got, err)
	}
	st, err := s.Stats(t.Context(), kv.DefaultTenant)
	if err != nil || st.Pending != 2 {
		t.Fatalf("stats %+v, %v", st, err)
	}
}

// TestStoreDown: the answer comes within 2 s, and says that the store is
// unavailable.
func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kvtest.Server(t, kvtest.Options{})
		s := c.Store(t)
		acc := submit(t, s, taskID(t))
		j, _ := open(t, s, acc)
		c.Stop(0)
		start := time.Now()
		_, _, err := s.Submit(t.Context(), submission(taskID(t, "b")))
		must(t, "submit", err, goal.ErrUnavailable)
		if took := time.Since(start); took > 2*time.Second {
			t.Fatalf("Submit took %s", took)
		}
		must(t, "append", j.Append(t.Context(), observed()), goal.ErrUnavailable)
		_, err = s.Load(t.Context(), kv.DefaultTenant, acc.Submission.TaskID)
		must(t, "load", err, goal.ErrUnavailable)
		_, err = s.Settle(t.Context(), acc, failed(), 0)
		must(t, "settle", err, goal.ErrUnavailable)
		_, err = s.Lock(t.Context(), kv.DefaultTenant, acc.Submission.TaskID, "a", time.Second)
		must(t, "lock", err, goal.ErrUnavailable)
		if took := time.Since(start); took > 30*time.Second {
			t.Fatalf("five calls took %s", took)
		}
	})
}

func TestFull(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	s := c.Store(t, func(c *kv.Config) { c.MaxQueued = map[string]int{kv.DefaultTenant: 2} })
	first := submission(taskID(t, "0"))
	for i := range 2 {
		_, _, err := s.Submit(t.Context(), submission(taskID(t, strconv.Itoa(i))))
		must(t, "submit", err, nil)
	}
	_, _, err := s.Submit(t.Context(), submission(taskID(t, "2")))
	must(t, "submit to a full queue", err, goal.ErrFull)
	_, created, err := s.Submit(t.Context(), first)
	if err != nil || created {
		t.Fatalf("replay to a full queue: created %v, %v", created, err)
	}

	js, err := jetstream.New(c.Conn(t))
	must(t, "jetstream", err, nil)
	st, err := js.Stream(t.Context(), goal.GoalsStream(kv.DefaultTenant))
	must(t, "stream", err, nil)
	conf := st.CachedInfo().Config
	conf.MaxMsgs = 2
	_, err = js.UpdateStream(t.Context(), conf)
	must(t, "operator's limit", err, nil)
	s = c.Store(t)
	_, _, err = s.Submit(t.Context(), submission(taskID(t, "2")))
	must(t, "submit to a full stream", err, goal.ErrFull)
	_, created, err = s.Submit(t.Context(), first)
	if err != nil || created {
		t.Fatalf("replay to a full stream: created %v, %v", created, err)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	api := func(status int, code jetstream.ErrorCode) error {
		return fmt.Errorf("nats: %w", &jetstream.APIError{Code: status, ErrorCode: code})
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"no error", nil, "stored"},
		{"compare-and-set lost", api(400, 10071), "lost"},
		{"compare-and-set rival in flight on R3", api(400, 10164), "retry"},
		{"twin in flight on R3", api(409, 10158), "retry"},
		{"duplicate in an atomic batch", api(400, 10201), "lost"},
		{"per-subject or stream limit", api(503, 10077), "maxed"},
		{"out of storage", api(500, 10047), "full"},
		{"no leader", api(503, 10008), "retry"},
		{"any other 503", api(503, 12345), "retry"},
		{"bad request", api(400, 10003), "refused"},
		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), "retry"},
		{"timeout", nats.ErrTimeout, "retry"},
		{"no responders", nats.ErrNoResponders, "retry"},
		{"no stream", jetstream.ErrNoStreamResponse, "retry"},
		{"closed", nats.ErrConnectionClosed, "refused"},
		{"unknown", errors.New("x"), "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := kv.Classify(c.err); got != c.want {
				t.Fatalf("classify(%v) = %s, want %s", c.err, got, c.want)
			}
		})
	}
}

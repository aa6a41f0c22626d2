package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func tailGoal(tenant, key string) goal.Submission {
	return goal.Submission{
		TaskID: goal.TaskID(tenant, key), Tenant: tenant, Key: key, Fingerprint: "f", Via: "http",
		Goal: goal.Goal{Objective: goal.Objective{Intent: "tail", TargetState: []byte(`{"a":1}`)}, Guardrails: goal.Guardrails{MaxSteps: 1, TimeoutSeconds: 10}},
	}
}

func tailSubmit(t *testing.T, s *kv.Store, tenant, key string) goal.Accepted {
	t.Helper()
	acc, _, err := s.Submit(t.Context(), tailGoal(tenant, key))
	if err != nil {
		t.Fatalf("Submit(%s) = %v", key, err)
	}
	return acc
}

// seen is an append as a tail brought it.
type seen struct {
	seq          uint64
	tenant, task string
	events       []goal.Event
}

func collect(to chan<- seen) func(uint64, string, string, []goal.Event) {
	return func(seq uint64, tenant, task string, events []goal.Event) { to <- seen{seq, tenant, task, events} }
}

func recv[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestTailEvents(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			s := kvtest.Store(t, kvtest.Options{Nodes: nodes}, func(c *kv.Config) { c.Tenants = []string{"a", "b"} })
			a, b := tailSubmit(t, s, "a", "k"), tailSubmit(t, s, "b", "k")
			appendTo := func(acc goal.Accepted, e goal.Event) {
				t.Helper()
				j, _, _, err := s.OpenJournal(t.Context(), acc)
				if err != nil {
					t.Fatal(err)
				}
				if err := j.Append(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			since := time.Now().Add(-time.Minute)
			appendTo(a, goal.Event{Type: goal.TaskStarted, Started: &goal.Started{GoalSeq: a.Seq}})
			head, err := s.TailHead(t.Context())
			if err != nil || head == 0 {
				t.Fatalf("TailHead = %d, %v", head, err)
			}

			ctx, stop := context.WithCancel(t.Context())
			got, ended := make(chan seen, 16), make(chan error, 1)
			go func() { ended <- s.TailEvents(ctx, head+1, collect(got)) }()
			appendTo(b, goal.Event{Type: goal.TaskStarted, Started: &goal.Started{GoalSeq: b.Seq}})
			if err := s.Note(t.Context(), a, goal.Event{Type: goal.KeyConflict}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Settle(t.Context(), a, goal.Result{Status: goal.Failed, Reason: goal.Internal, EndedAt: time.Now()}, 1); err != nil {
				t.Fatal(err)
			}
			last := head
			for i, want := range []struct {
				tenant string
				typ    goal.EventType
			}{{"b", goal.TaskStarted}, {"a", goal.KeyConflict}, {"a", goal.TaskEnded}} {
				e := recv(t, got)
				if e.tenant != want.tenant || e.task != goal.TaskID(want.tenant, "k") || e.seq <= last || e.events[len(e.events)-1].Type != want.typ {
					t.Errorf("append %d = %+v, want %s of %s", i, e, want.typ, want.tenant)
				}
				last = e.seq
			}
			stop()
			if err := recv(t, ended); !errors.Is(err, context.Canceled) {
				t.Errorf("TailEvents = %v, want canceled", err)
			}

			// What was there, of one tenant, and then the end; also of nothing.
			for tenant, want := range map[string]int{"a": 3, "b": 1} {
				n := 0
				err := s.RecallEvents(t.Context(), tenant, since, func(_ uint64, of, _ string, _ []goal.Event) {
					n++
					if of != tenant {
						t.Errorf("an append of %s came for %s", of, tenant)
					}
				})
				if err != nil || n != want {
					t.Errorf("RecallEvents(%s) = %d appends, %v; want %d", tenant, n, err, want)
				}
			}
			if err := s.RecallEvents(t.Context(), "a", time.Now().Add(time.Hour), func(uint64, string, string, []goal.Event) { t.Error("an append of the future") }); err != nil {
				t.Errorf("RecallEvents of nothing = %v", err)
			}
		})
	}
}

func TestTailQueue(t *testing.T) {
	t.Parallel()
	s := kvtest.Store(t, kvtest.Options{})
	for i := range 10 {
		tailSubmit(t, s, "default", fmt.Sprint("k", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	known := func(task string, seq uint64) bool {
		return task == goal.TaskID("default", "k8") && seq == 9 || task == goal.TaskID("default", "known")
	}
	got, caught, ended := make(chan goal.Accepted, 32), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.TailQueue(ctx, "default", 4, known, func(acc goal.Accepted) { got <- acc }, func() { close(caught) })
	}()
	recv(t, caught)
	if n := len(got); n != 3 {
		t.Errorf("%d submissions before it was caught up, want 3", n)
	}
	for _, i := range []int{6, 7, 9} {
		if acc := recv(t, got); acc.Submission.Key != fmt.Sprint("k", i) || acc.At.IsZero() || acc.Seq == 0 || !acc.Expires.After(acc.At) {
			t.Errorf("submission %d = %+v", i, acc)
		}
	}
	tailSubmit(t, s, "default", "known")
	live := tailSubmit(t, s, "default", "new")
	if acc := recv(t, got); acc.Seq != live.Seq || !acc.At.Equal(live.At) {
		t.Errorf("live = %+v, want %+v", acc, live)
	}
	stop()
	if err := recv(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("TailQueue = %v, want canceled", err)
	}

	// An empty queue is caught up at once.
	if err := s.AddTenant(t.Context(), "empty"); err != nil {
		t.Fatal(err)
	}
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	err := s.TailQueue(ctx, "empty", 4, none, func(goal.Accepted) { t.Error("a submission in an empty queue") }, stop)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("TailQueue of nothing = %v, want canceled", err)
	}
}

func none(string, uint64) bool { return false }

// TestTailIsCutOff: a tail on a connection that is closed ends with an error and
// does not hang.
func TestTailIsCutOff(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	nc := c.Conn(t)
	s := c.Store(t, func(conf *kv.Config) { conf.Conn = nc })
	caught, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.TailQueue(t.Context(), "default", 4, none, func(goal.Accepted) {}, func() { close(caught) })
	}()
	recv(t, caught)
	nc.Close()
	if err := recv(t, ended); !errors.Is(err, goal.ErrUnavailable) {
		t.Errorf("TailQueue = %v, want ErrUnavailable", err)
	}
}

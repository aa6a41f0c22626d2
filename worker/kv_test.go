package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// TestTwoWorkersOneQueue runs against the real store: two workers share a
// queue, one is drained in the middle and a third comes; every goal is settled
// once, with every effect made once. Not parallel: see package kvtest.
func TestTwoWorkersOneQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const goals, steps = 200, 3
		w.act = takes(300 * time.Millisecond)
		cluster := kvtest.Server(t, kvtest.Options{})
		store := cluster.Store(t, ours)
		for i := range goals {
			task := w.add(acme, fmt.Sprintf("t%d", i), steps, func(acc *goal.Accepted) {
				acc.Submission.Key, acc.Submission.Fingerprint = fmt.Sprintf("k%d", i), "f"
			})
			if _, _, err := store.Submit(t.Context(), task.acc.Submission); err != nil {
				t.Fatal(err)
			}
		}
		one, two := startReal(w, cluster, "one"), startReal(w, cluster, "two")
		w.pass(time.Second)
		one.stop()
		three := startReal(w, cluster, "three")
		settled := func() int { return one.seen().settled + two.seen().settled + three.seen().settled }
		for range 60 {
			if settled() >= goals {
				break
			}
			w.pass(time.Second)
		}
		two.stop()
		three.stop()
		for _, n := range []*node{one, two, three} {
			if n.seen().settled == 0 || n.seen().lost > 0 || n.seen().running > 0 {
				t.Errorf("worker %s: %d settled, %d leases lost, %d running", n.name, n.seen().settled, n.seen().lost, n.seen().running)
			}
		}
		if settled() != goals || three.seen().resumed == 0 && two.seen().resumed == 0 {
			t.Errorf("%d settled, want %d, some of them resumed", settled(), goals)
		}
		for _, task := range w.order {
			checkEnd(t, store, task, steps)
		}
		checkEmpty(t, store)
	})
}

func ours(c *kv.Config) { c.Tenants = []string{acme} }

// startReal starts a worker with a connection of its own.
func startReal(w *world, cluster *kvtest.Cluster, name string) *node {
	store := cluster.Store(w.t, ours)
	q, err := store.Queue(w.t.Context(), acme, kv.QueueConfig{AckWait: ackWait})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.node(name).start(func(c *worker.Config) {
		c.Store, c.Queues, c.Concurrency = realStore{store}, map[string]worker.Queue{acme: realQueue{q}}, 8
	})
}

// checkEnd wants the task to have succeeded, its journal to be whole and to end
// once, and each of its effects to have been made once.
func checkEnd(t *testing.T, store *kv.Store, task *task, steps int) {
	t.Helper()
	id := task.acc.Submission.TaskID
	snap, err := store.Load(t.Context(), acme, id)
	if err != nil {
		t.Fatal(err)
	}
	if status := snap.Task().Status; status != goal.Succeeded {
		t.Errorf("%s is %s", id, status)
	}
	for i, e := range snap.Events {
		if last := i == len(snap.Events)-1; e.N != i+1 || last != (e.Type == goal.TaskEnded) {
			t.Errorf("%s: event %d of %d is %d, %s", id, i+1, len(snap.Events), e.N, e.Type)
		}
	}
	if task.effects != steps || len(task.keys) != steps {
		t.Errorf("%s: %d effects under %d keys, want %d", id, task.effects, len(task.keys), steps)
	}
}

// checkEmpty wants nothing to be left in the queue, nor to come again.
func checkEmpty(t *testing.T, store *kv.Store) {
	t.Helper()
	q, err := store.Queue(t.Context(), acme, kv.QueueConfig{AckWait: ackWait})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*ackWait)
	defer cancel()
	if d, err := q.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the queue still holds %+v, %v", d, err)
	}
}

// The store as a worker needs it, as the program passes it in.
type realStore struct{ *kv.Store }

// Lock implements worker.Store.
func (s realStore) Lock(ctx context.Context, tenant, task, owner string, ttl time.Duration) (worker.Lock, error) {
	l, err := s.Store.Lock(ctx, tenant, task, owner, ttl)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// BeginJournal implements worker.Store.
func (s realStore) BeginJournal(acc goal.Accepted) worker.Journal { return s.Store.BeginJournal(acc) }

// OpenJournal implements worker.Store.
func (s realStore) OpenJournal(ctx context.Context, acc goal.Accepted) (worker.Journal, []goal.Event, *goal.Result, error) {
	j, events, result, err := s.Store.OpenJournal(ctx, acc)
	if err != nil {
		return nil, nil, nil, err
	}
	return j, events, result, nil
}

type realQueue struct{ *kv.Queue }

// Next implements worker.Queue.
func (q realQueue) Next(ctx context.Context) (worker.Job, error) {
	d, err := q.Queue.Next(ctx)
	if err != nil {
		return nil, err
	}
	return realJob{d}, nil
}

type realJob struct{ *kv.Delivery }

// Accepted implements worker.Job.
func (j realJob) Accepted() goal.Accepted { return j.Delivery.Accepted }

// Redelivered implements worker.Job.
func (j realJob) Redelivered() bool { return j.Delivered > 1 }

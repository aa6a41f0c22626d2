package kv_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestFailover takes each of three nodes down and up again while tasks are
// written. What was answered is there, journals have no gap, and what was not
// answered could be repeated.
func TestFailover(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	c := kvtest.Server(t, kvtest.Options{Nodes: 3})
	s := c.Store(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	done := map[string]int{} // task to events
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				task := fmt.Sprintf("failover-%d-%d", worker, i)
				n, err := wholeTask(ctx, s, task)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Errorf("%s: %v", task, err)
					return
				}
				mu.Lock()
				done[task] = n
				mu.Unlock()
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(done) }
	for i := range 3 {
		before := count()
		c.Stop(i)
		for count() < before+50 && ctx.Err() == nil { // it goes on without the node
			time.Sleep(10 * time.Millisecond)
		}
		c.Restart(t, i)
	}
	cancel()
	wg.Wait()
	for task, n := range done {
		snap, err := s.Load(t.Context(), kv.DefaultTenant, task)
		if err != nil {
			t.Fatalf("load %s: %v", task, err)
		}
		numbers(t, snap.Events, n)
		if snap.Task().Status != goal.Succeeded {
			t.Fatalf("%s is %s", task, snap.Task().Status)
		}
	}
	t.Logf("%d tasks", len(done))
}

// again repeats f while the store is not available.
func again(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, goal.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
	}
}

// wholeTask takes a task from submission to its end and returns the number of
// its events.
func wholeTask(ctx context.Context, s *kv.Store, task string) (int, error) {
	var acc goal.Accepted
	var j *kv.Journal
	steps := []func() error{
		func() (err error) { acc, _, err = s.Submit(ctx, submission(task)); return err },
		func() (err error) { j, _, _, err = s.OpenJournal(ctx, acc); return err },
		func() error { return j.Append(ctx, started(acc)) },
		func() error { return j.Append(ctx, sameObservation(acc)) },
		func() error { _, err := s.Settle(ctx, acc, succeeded(), j.N()); return err },
	}
	for i, step := range steps {
		if err := again(ctx, step); err != nil {
			return 0, fmt.Errorf("step %d: %w", i, err)
		}
	}
	return j.N() + 1, nil
}

// sameObservation is an observation that is the same when it is repeated.
func sameObservation(acc goal.Accepted) goal.Event {
	e := observed()
	e.Time = acc.At
	return e
}

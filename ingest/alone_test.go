package ingest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// countingTail says when the tail of a queue has ended.
type countingTail struct {
	*fakeTail

	ended chan error
}

func (c countingTail) TailQueue(ctx context.Context, tenant string, keep int, known func(string, uint64) bool, fn func(goal.Accepted), caughtUp func()) error {
	err := c.fakeTail.TailQueue(ctx, tenant, keep, known, fn, caughtUp)
	c.ended <- err
	return err
}

// TestAlone: a process that nobody else accepts goals beside reads the queue at
// its start, and then lists what it accepts itself.
func TestAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		w, _ := running(t, func(c *ingest.Config) {
			tail, _ := c.Tail.(*fakeTail)
			tail.old = []goal.Accepted{accepted(1, "")}
			c.Alone, c.Tail = true, countingTail{tail, ended}
		})
		if err := <-ended; err == nil {
			t.Error("the tail ended by itself")
		}
		wantStatus(t, w.post("k", goodGoal), 202)
		synctest.Wait()
		if got := w.list("").Tasks; len(got) != 2 {
			t.Errorf("%d tasks are listed, want 2", len(got))
		}
		if len(ended) > 0 {
			t.Error("the queue is tailed again")
		}
	})
}

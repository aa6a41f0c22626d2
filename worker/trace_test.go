package worker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

type spanKey struct{}

// TestTrace: every attempt has one span, which the work is done in and which is
// told how that went.
func TestTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var opened []string
		var ended []error
		w.act = func(ctx context.Context, _ agent.Call) goal.Outcome {
			if ctx.Value(spanKey{}) != "span of a" {
				t.Error("the call was made outside the span")
			}
			return goal.Outcome{}
		}
		trace := func(ctx context.Context, acc goal.Accepted) (context.Context, func(goal.Result, error)) {
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, acc.Submission.TaskID)
			return context.WithValue(ctx, spanKey{}, "span of "+acc.Submission.TaskID), func(r goal.Result, err error) {
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, err)
				if err == nil && r.Reason != goal.TargetStateReached {
					t.Errorf("the span ended with %+v", r)
				}
			}
		}
		w.submit(acme, "a", 1)
		n := w.node("one")
		n.setFault("settle", first(1, errDown))
		n.start(func(c *worker.Config) { c.Trace = trace })
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		mu.Lock()
		defer mu.Unlock()
		if len(opened) != 2 || len(ended) != 2 || !errors.Is(ended[0], goal.ErrUnavailable) || ended[1] != nil {
			t.Errorf("spans of %v ended with %v, want an error and then none", opened, ended)
		}
	})
}

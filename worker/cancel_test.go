package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestCancel: the message ends what has no effect at once; the marker, when the
// message is lost, before the next step; a call under way is let finish.
func TestCancel(t *testing.T) {
	t.Parallel()
	const half, minute = 30 * time.Second, time.Minute
	rows := []struct {
		name         string
		plans, calls time.Duration // how long each takes
		message      bool
		at, ends     time.Duration
		effects      int
	}{
		{"message while the planner decides", half, 0, true, 10 * time.Second, 10 * time.Second, 0},
		{"marker while the planner decides", half, 0, false, 10 * time.Second, half, 1},
		{"message during a call", 0, minute, true, 10 * time.Second, minute, 1},
		{"marker during a call", 0, minute, false, 10 * time.Second, minute, 1},
		{"message during the second call", 0, minute, true, 70 * time.Second, 2 * minute, 2},
		{"message before it is taken", 0, 0, true, 0, 0, 0},
		{"marker before it is taken", 0, 0, false, 0, 0, 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.act = takes(row.calls)
				w.decide = func(ctx context.Context, _ agent.Situation) { sleep(ctx, row.plans) }
				a := w.submit(acme, "a", 3)
				other := w.submit(acme, "other", 1)
				stranger := &task{acc: a.acc} // the same name, nothing to us
				stranger.acc.Submission.Tenant = "beta"
				if row.at == 0 {
					w.askCancel(a, row.message)
				}
				w.node("one").start()
				if row.at > 0 {
					w.pass(row.at)
					w.askCancel(stranger, row.message)
					w.askCancel(a, row.message)
				}
				w.pass(4 * minute)
				if a.result == nil || a.result.Status != goal.Cancelled || a.effects != row.effects || a.created != 1 || !a.acked {
					t.Fatalf("result %+v with %d effects, want cancelled with %d", a.result, a.effects, row.effects)
				}
				if got := a.result.EndedAt.Sub(w.start); got != row.ends {
					t.Errorf("ended after %s, want %s", got, row.ends)
				}
				if other.result == nil || other.result.Status != goal.Succeeded {
					t.Errorf("the other goal ended %+v", other.result)
				}
			})
		})
	}
}

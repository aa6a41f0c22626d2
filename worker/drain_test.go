package worker_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestDrain: taking ends at once, the call under way is let finish, and the
// goal goes back between two steps, free for another worker, which goes on.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(4 * time.Second)
		a := w.submit(acme, "a", 3)
		one := w.node("one").start()
		w.pass(5 * time.Second) // in the second call
		asked := time.Now()
		one.stop()
		if took := time.Since(asked); took != 3*time.Second {
			t.Errorf("the drain took %s, want the 3s that were left of the call", took)
		}
		if a.effects != 2 || a.lease != nil || one.seen().running != 0 || one.seen().lost != 0 {
			t.Errorf("%d effects, lease %v, %+v", a.effects, a.lease, one.seen())
		}
		if got := w.said("release", "nak", "settle", "ack"); !slices.Equal(got, []string{"release a", "nak a 0s"}) {
			t.Errorf("given back by %v", got)
		}
		w.submit(acme, "b", 1)
		w.pass(time.Minute)
		if got := w.times("take b"); len(got) > 0 {
			t.Errorf("a drained worker took a goal at %v", got)
		}
		two := w.node("two").start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if two.seen().resumed != 1 || a.asked != 3 {
			t.Errorf("resumed %d, planner asked %d times, want 1 and 3", two.seen().resumed, a.asked)
		}
	})
}

// TestDrainAtOnce: between two workers there is no waiting.
func TestDrainAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(2 * time.Second)
		w.submit(acme, "a", 5)
		one := w.node("one").start()
		w.pass(time.Second)
		w.node("two").start()
		w.pass(time.Millisecond)
		one.stop()
		synctest.Wait()
		taken := w.times("take a")
		if len(taken) != 2 || taken[1] != 2*time.Second {
			t.Errorf("taken at %v, want again at 2s", taken)
		}
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
	})
}

// TestHardDrain: what has not stopped after the grace is cut off and given
// back; the call stays in flight and is repeated with its key.
func TestHardDrain(t *testing.T) {
	t.Parallel()
	hour := func(ctx context.Context) { sleep(ctx, time.Hour) }
	rows := []struct {
		name      string
		stuck     func(w *world, n *node)
		delivered int // before
	}{
		{"in a call", func(w *world, _ *node) {
			w.act = func(ctx context.Context, c agent.Call) goal.Outcome { return takes(time.Hour)(ctx, c) }
		}, 0},
		{"in the planner", func(w *world, _ *node) {
			w.decide = func(ctx context.Context, _ agent.Situation) { hour(ctx) }
		}, 0},
		{"in the lock", stuckIn("lock"), 0},
		{"in the journal's opening", stuckIn("open"), 1},
		{"in the look for an end", stuckIn("over"), 0},
		{"in an append", stuckIn("append"), 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.submit(acme, "a", 1)
				a.delivered = row.delivered
				one := w.node("one")
				row.stuck(w, one)
				one.start(func(c *worker.Config) { c.Grace = 7 * time.Second })
				w.pass(time.Second)
				asked := time.Now()
				one.stop()
				if took := time.Since(asked); took != 7*time.Second {
					t.Errorf("the drain took %s, want the grace of 7s", took)
				}
				if got := w.said("nak", "ack", "settle"); !slices.Equal(got, []string{"nak a 0s"}) {
					t.Errorf("given back by %v, want a nak without a delay", got)
				}
				if a.lease != nil || one.seen().running != 0 || one.seen().lost != 0 {
					t.Errorf("lease %v, %+v", a.lease, one.seen())
				}
				w.act, w.decide = nil, nil
				w.node("two").start()
				w.pass(time.Minute)
				w.settledOnce(goal.TargetStateReached)
			})
		})
	}
}

func stuckIn(verb string) func(*world, *node) {
	return func(_ *world, n *node) {
		n.setFault(verb, func(ctx context.Context, _ int) error {
			sleep(ctx, time.Hour)
			return nil
		})
	}
}

// TestDrainSettles: an outcome that is known is not lost to the drain, nor to
// the end of its grace.
func TestDrainSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.submit(acme, "a", 1)
		n := w.node("one")
		for _, verb := range []string{"settle", "release", "ack"} {
			n.setFault(verb, func(ctx context.Context, _ int) error {
				sleep(ctx, 8*time.Second)
				return nil
			})
		}
		n.start(func(c *worker.Config) { c.Grace = time.Second })
		w.pass(time.Millisecond)
		n.stop()
		w.settledOnce(goal.TargetStateReached)
		if took := time.Since(w.start); took != 24*time.Second {
			t.Errorf("the drain ended after %s, want three times 8s", took)
		}
	})
}

// TestDrainWaiting: a goal that waits for a slot goes back at once.
func TestDrainWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(5 * time.Second)
		w.queue("beta")
		n := w.node("one").start(func(c *worker.Config) { c.Concurrency = 1 })
		synctest.Wait()
		w.submit(acme, "a", 1)
		w.pass(time.Second)
		b := w.submit("beta", "b", 1)
		w.pass(time.Second)
		n.stop()
		if got := w.times("nak b 0s"); len(got) != 1 || got[0] != 2*time.Second || b.lease != nil {
			t.Errorf("given back at %v, want 2s", got)
		}
		if took := time.Since(w.start); took != 5*time.Second {
			t.Errorf("the drain ended after %s, want 5s", took)
		}
		w.node("two").start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
	})
}

// TestDrainIdle: idle workers, and those whose queue is away, end at once.
func TestDrainIdle(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"", "next"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.node("one")
				n.setFault(verb, first(1_000, errDown))
				n.start()
				w.pass(time.Minute)
				n.stop()
				if took := time.Since(w.start); took != time.Minute || len(w.watchers) != 0 {
					t.Errorf("ended after %s with %d watchers", took, len(w.watchers))
				}
			})
		})
	}
}

package worker_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestKeptAlive: lease and delivery are renewed every third of AckWait, and the
// goal is handed out once however long it takes.
func TestKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(62 * time.Second)
		a := w.submit(acme, "a", 1)
		w.node("one").start()
		w.pass(2 * time.Minute)
		w.settledOnce(goal.TargetStateReached)
		var want []time.Duration
		for at := beat; at < 62*time.Second; at += beat {
			want = append(want, at)
		}
		for _, verb := range []string{"renew a", "beat a"} {
			if got := w.times(verb); !slices.Equal(got, want) {
				t.Errorf("%s at %v, want %v", verb, got, want)
			}
		}
		if a.delivered != 1 {
			t.Errorf("delivered %d times", a.delivered)
		}
	})
}

// TestKeptAliveUntilSettled: a slow store does not cost the lease.
func TestKeptAliveUntilSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.submit(acme, "a", 1)
		n := w.node("one")
		n.setFault("settle", func(ctx context.Context, _ int) error {
			sleep(ctx, 25*time.Second)
			return nil
		})
		n.start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if a.delivered != 1 || len(w.times("settle a")) != 1 {
			t.Errorf("delivered %d times, settled at %v", a.delivered, w.times("settle a"))
		}
	})
}

// TestLeaseLost: the call that runs is cut off when the lease is gone, or can
// have run out.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	hang := func(d time.Duration) fault {
		return func(ctx context.Context, _ int) error {
			sleep(ctx, d)
			return errDown
		}
	}
	afterOne := func(f fault) fault {
		return func(ctx context.Context, n int) error {
			if n == 1 {
				return nil
			}
			return f(ctx, n)
		}
	}
	rows := []struct {
		name  string
		renew fault
		cut   time.Duration // since the start; 0: not
	}{
		{"another has it", first(99, goal.ErrFenced), beat},
		{"another has it later", afterOne(first(99, goal.ErrFenced)), 2 * beat},
		{"store away", first(99, errDown), ackWait},
		{"store hangs", hang(time.Hour), ackWait},
		{"store is slow to fail", hang(4 * time.Second), ackWait},
		{"store away later", afterOne(first(99, errDown)), beat + ackWait},
		{"store back when the lease has run out", first(2, errDown), ackWait},
		{"store back before", first(1, errDown), 0},
		{"store slow, then away", func(ctx context.Context, n int) error {
			if n == 1 {
				sleep(ctx, 4*time.Second) // renewed all the same, perhaps at the beginning
				return nil
			}
			return errDown
		}, beat + ackWait},
		{"store away later, and back before", afterOne(first(2, errDown)), 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var cut time.Duration
				w.act = func(ctx context.Context, _ agent.Call) goal.Outcome {
					if cut > 0 || sleep(ctx, time.Minute) {
						return goal.Outcome{}
					}
					cut = time.Since(w.start)
					return goal.Outcome{Kind: goal.CallUnknown}
				}
				w.submit(acme, "a", 1)
				n := w.node("one")
				n.setFault("renew", row.renew)
				n.start()
				look, lost := 30*time.Second, 0
				if row.cut > 0 {
					look, lost = row.cut+time.Second, 1
				}
				w.pass(look)
				if cut != row.cut {
					t.Errorf("the call was cut off after %s, want %s", cut, row.cut)
				}
				if got := w.said("settle", "release", "nak", "ack"); len(got) > 0 || n.seen().lost != lost {
					t.Errorf("said %v, %d leases lost; want nothing and %d", got, n.seen().lost, lost)
				}
				n.setFault("renew", nil)
				w.pass(2 * time.Minute)
				w.settledOnce(goal.TargetStateReached)
			})
		})
	}
}

// TestWaitingIsKeptAlive: a goal that waits for a slot is not handed to another.
func TestWaitingIsKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(time.Minute)
		w.queue("beta")
		w.node("one").start(func(c *worker.Config) { c.Concurrency = 1 })
		synctest.Wait() // both tenants' takers wait for a goal
		first := w.submit(acme, "first", 1)
		w.pass(time.Second)
		second := w.submit("beta", "second", 1)
		w.pass(58 * time.Second)
		beats := w.times("beat second")
		if len(beats) != 11 || beats[0] != time.Second+beat || beats[10] != time.Second+11*beat {
			t.Errorf("heartbeats while waiting at %v, want every %s", beats, beat)
		}
		if got := w.said("lock"); !slices.Equal(got, []string{"lock first"}) {
			t.Errorf("%v, want the first goal alone to be at work", got)
		}
		w.pass(2 * time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if first.delivered != 1 || second.delivered != 1 {
			t.Errorf("delivered %d and %d times", first.delivered, second.delivered)
		}
	})
}

// TestFrozenAtEveryPoint: a worker stops dead between two effects; another has
// the goal within AckWait and a second; the first comes back when all is over.
func TestFrozenAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, point := range worker.Points() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { frozenAt(t, newWorld(t), point) })
		})
	}
}

func frozenAt(t *testing.T, w *world, point string) {
	t.Helper()
	a := w.submit(acme, "a", 2)
	thaw, frozen := make(chan struct{}), make(chan struct{})
	one := w.node("one")
	var once sync.Once
	hook := func(p string) {
		if p != point {
			return
		}
		once.Do(func() {
			for _, verb := range []string{"beat", "renew"} {
				one.setFault(verb, func(context.Context, int) error {
					select {
					case <-thaw:
						return nil
					default:
						return errDown
					}
				})
			}
			close(frozen)
			<-thaw
		})
	}
	one.start(func(c *worker.Config) { c.Hook, c.Concurrency = hook, 1 })
	<-frozen
	at := time.Since(w.start)
	two := w.node("two").start()
	w.pass(ackWait + time.Second)
	if taken := w.times("take a"); point != worker.PointAcked && (len(taken) < 2 || taken[len(taken)-1]-at > ackWait+time.Second) {
		t.Errorf("taken at %v, frozen at %s: want it taken again within %s", taken, at, ackWait+time.Second)
	}
	w.pass(time.Minute)
	w.settledOnce(goal.TargetStateReached)
	events := len(a.events)
	close(thaw)
	w.pass(time.Minute)
	w.settledOnce(goal.TargetStateReached)
	if len(a.events) != events {
		t.Errorf("the first worker journaled %d events after the end", len(a.events)-events)
	}
	for key, calls := range a.keys {
		if calls > 2 {
			t.Errorf("the call with key %s was sent %d times", key, calls)
		}
	}
	two.stop()
	one.stop()
	if one.seen().running+two.seen().running != 0 {
		t.Errorf("still running: %d and %d", one.seen().running, two.seen().running)
	}
	synctest.Wait()
}

// TestTakenTwiceByOneWorker: a worker that lost a goal without noticing may get
// it again; it is cancelled as what it is now, and counted.
func TestTakenTwiceByOneWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.submit(acme, "a", 1)
		var asked atomic.Int32
		w.decide = func(ctx context.Context, _ agent.Situation) {
			if asked.Add(1) == 1 {
				sleep(context.WithoutCancel(ctx), 20*time.Second) // a planner that does not listen
				return
			}
			sleep(ctx, 50*time.Second)
		}
		n := w.node("one")
		n.setFault("renew", first(3, errDown))
		n.setFault("beat", first(3, errDown))
		n.start()
		w.pass(30 * time.Second)
		if asked.Load() != 2 || n.seen().lost != 1 || n.seen().running != 1 {
			t.Fatalf("planner asked %d times, %d leases lost, %d running", asked.Load(), n.seen().lost, n.seen().running)
		}
		w.askCancel(a, true)
		w.pass(time.Second)
		w.settledOnce(goal.CancelRequested)
	})
}

// TestLeaseLostWhileSettling: what is settled is acknowledged, whoever has the
// lease by then.
func TestLeaseLostWhileSettling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.submit(acme, "a", 1)
		n := w.node("one")
		n.setFault("renew", first(1, goal.ErrFenced))
		n.setFault("settle", func(ctx context.Context, _ int) error {
			sleep(ctx, 8*time.Second)
			return nil
		})
		n.start()
		w.pass(10 * time.Second)
		w.settledOnce(goal.TargetStateReached)
		if a.delivered != 1 {
			t.Errorf("delivered %d times", a.delivered)
		}
	})
}

// TestReleaseAfterRenewal: a lease is not used by two at a time.
func TestReleaseAfterRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(beat + time.Second)
		w.submit(acme, "a", 1)
		n := w.node("one")
		n.setFault("renew", func(ctx context.Context, _ int) error {
			sleep(ctx, 3*time.Second)
			return nil
		})
		n.start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if got := w.times("release a"); len(got) != 1 || got[0] != beat+3*time.Second {
			t.Errorf("released at %v, want after the renewal, at %s", got, beat+3*time.Second)
		}
	})
}

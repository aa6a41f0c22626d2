package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestTakingFails: it is tried again, later each time up to a bound, not in
// step with others, and soon again when it has worked.
func TestTakingFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const failures = 30
		n := w.node("one")
		n.setFault("next", func(_ context.Context, i int) error {
			if i <= failures || i == failures+2 {
				return errDown
			}
			return nil
		})
		n.start()
		w.pass(5 * time.Minute)
		w.submit(acme, "a", 1)
		w.pass(5 * time.Minute)
		w.settledOnce(goal.TargetStateReached)
		times := w.times("next")
		if len(times) != failures+3 {
			t.Fatalf("asked %d times, want %d", len(times), failures+3)
		}
		base, spread := 50*time.Millisecond, 0
		for i := range failures {
			pause := times[i+1] - times[i]
			if pause < base/2 || pause > base*3/2 {
				t.Errorf("pause %d is %s, want %s ±50 %%", i+1, pause, base)
			}
			if (pause - base).Abs() > base/10 {
				spread++
			}
			base = min(2*base, time.Second)
		}
		if spread < failures/4 {
			t.Errorf("%d of %d pauses are more than 10 %% off, want most of them", spread, failures)
		}
		if pause := times[failures+2] - times[failures+1]; pause > 75*time.Millisecond {
			t.Errorf("the first pause after a success is %s", pause)
		}
	})
}

// TestNothingToTake: a queue that comes back empty-handed is asked again.
func TestNothingToTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.submit(acme, "a", 1)
		n := w.node("one")
		n.start(func(c *worker.Config) {
			c.Queues = map[string]worker.Queue{acme: &idle{Queue: c.Queues[acme], times: 3}}
		})
		w.pass(time.Second)
		w.settledOnce(goal.TargetStateReached)
	})
}

// idle is a queue that has nothing a few times.
type idle struct {
	worker.Queue
	times int
}

// Next implements worker.Queue.
func (q *idle) Next(ctx context.Context) (worker.Job, error) {
	if q.times > 0 {
		q.times--
		return nil, nil //nolint:nilnil // what is tested
	}
	return q.Queue.Next(ctx)
}

// TestTenantsTakeTurns: whoever comes with one goal waits for the goals that
// run, not for the thousand that another has queued.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				const takesOne = 3 * time.Second
				w.act = takes(takesOne)
				w.queue("beta")
				n := w.node("one")
				n.latency = latency
				n.start(func(c *worker.Config) { c.Concurrency = 1 })
				synctest.Wait()
				for i := range 1000 {
					w.submit(acme, "a"+strconv.Itoa(i), 1)
				}
				for i := range 3 { // also one who comes again
					w.pass(10*time.Second + time.Duration(i)*time.Second)
					id := "b" + strconv.Itoa(i)
					at := time.Since(w.start)
					w.submit("beta", id, 1)
					w.pass(10 * time.Second)
					if got := w.times("call " + id); len(got) != 1 || got[0]-at > takesOne+latency {
						t.Errorf("%s was submitted at %s and called at %v, want within %s", id, at, got, takesOne)
					}
				}
				n.stop()
			})
		})
	}
}

// TestTenantsDoNotWait: with slots for all, no tenant is held up by another.
func TestTenantsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(10 * time.Millisecond)
		for i := range 150 {
			w.submit(acme, "a"+strconv.Itoa(i), 1)
			w.submit("beta", "b"+strconv.Itoa(i), 1)
		}
		n := w.node("one").start()     // 64 slots
		w.pass(120 * time.Millisecond) // 50 ms are five rounds of the slots
		n.stop()
		w.settledOnce(goal.TargetStateReached)
	})
}

// TestPlaceIsKept: slots are given in the order of asking, also when somebody
// has waited so long that heartbeats were due.
func TestPlaceIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(2*beat + 200*time.Millisecond)
		w.queue("beta")
		w.queue("gamma")
		w.node("one").start(func(c *worker.Config) { c.Concurrency = 1 })
		synctest.Wait()
		w.submit(acme, "a", 1)
		w.pass(beat - 100*time.Millisecond) // asks, and is due for a heartbeat before the slot is free
		w.submit("beta", "b", 1)
		w.pass(600 * time.Millisecond) // asks later, and is not
		w.submit("gamma", "c", 1)
		w.pass(time.Minute)
		if got, want := w.said("call"), []string{"call a", "call b", "call c"}; !slices.Equal(got, want) {
			t.Errorf("the worker did %v, want %v", got, want)
		}
		w.settledOnce(goal.TargetStateReached)
	})
}

// plan is a goal of TestConcurrency.
type plan struct {
	tenant  string
	steps   int
	takes   time.Duration // each step
	trouble string        // of the first call
	at      time.Duration // when it is submitted
}

func drawPlan(rt *rapid.T) plan {
	return plan{
		tenant:  rapid.SampledFrom([]string{acme, "beta", "gamma"}).Draw(rt, "tenant"),
		steps:   rapid.IntRange(1, 3).Draw(rt, "steps"),
		takes:   time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "takes")) * time.Millisecond,
		trouble: rapid.SampledFrom([]string{"", "", "", "panic", "error"}).Draw(rt, "trouble"),
		at:      time.Duration(rapid.IntRange(0, 60).Draw(rt, "at")) * time.Second,
	}
}

// TestConcurrency: never more goals at a time than configured, whatever fails
// in between; and a goal that failed, panicked or was given back has returned
// its slot: all are settled once in the end.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	verbs := []string{"lock", "open", "settle", "append", "release", "ack", "nak", "next", "renew", "beat"}
	rapid.Check(t, func(rt *rapid.T) {
		concurrency := rapid.IntRange(1, 5).Draw(rt, "concurrency")
		plans := rapid.SliceOfN(rapid.Custom(drawPlan), 1, 20).Draw(rt, "goals")
		faulty := rapid.SampledFrom(verbs).Draw(rt, "faulty")
		every := rapid.IntRange(2, 9).Draw(rt, "every")
		var most, seen int
		var faults []string
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			byID := map[string]*plan{} // guarded by w.mu
			w.queue("beta")
			w.queue("gamma")
			n := w.node("one")
			n.setFault(faulty, func(_ context.Context, i int) error {
				if i%every == 0 && i <= 5*every {
					return errDown
				}
				return nil
			})
			w.act = func(ctx context.Context, c agent.Call) goal.Outcome {
				w.mu.Lock()
				p := byID[c.TaskID]
				trouble := p.trouble
				p.trouble = ""
				w.mu.Unlock()
				out := takes(p.takes)(ctx, c)
				switch trouble {
				case "panic":
					panic("test: trouble")
				case "error":
					return goal.Outcome{Kind: goal.CallUnavailable}
				}
				return out
			}
			n.start(func(c *worker.Config) { c.Concurrency = concurrency })
			for i, p := range plans {
				id := fmt.Sprintf("%s-%d", p.tenant, i)
				w.mu.Lock()
				byID[id] = &p
				w.mu.Unlock()
				time.AfterFunc(p.at, func() { w.submit(p.tenant, id, p.steps) })
			}
			w.pass(time.Hour)
			n.stop()
			faults = w.unsettled(goal.TargetStateReached)
			if len(w.order) != len(plans) || n.seen().running != 0 {
				faults = append(faults, fmt.Sprintf("%d goals of %d came, %d still run", len(w.order), len(plans), n.seen().running))
			}
			most, seen = w.most, n.seen().most
		})
		if most > concurrency || seen > concurrency {
			rt.Fatalf("%d calls and %d goals at a time, want at most %d", most, seen, concurrency)
		}
		for _, fault := range faults {
			rt.Error(fault)
		}
	})
}

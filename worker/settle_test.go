package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestOrder: lease, journal, result, work, result, lease, message.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.submit(acme, "a", 1)
		n := w.node("one").start()
		w.pass(time.Second)
		w.settledOnce(goal.TargetStateReached)
		want := []string{
			"lock a", "begin a", "append a", // the start
			"over a", "decide a", "append a", "call a", "append a", "settle a", "release a", "ack a",
		}
		got := w.said("lock", "begin", "open", "over", "append", "decide", "call", "settle", "release", "ack", "nak")
		if !slices.Equal(got, want) {
			t.Errorf("the worker did %v, want %v", got, want)
		}
		if a.result.Worker != "one" || a.result.Status != goal.Succeeded || n.seen().taken != 1 || n.seen().settled != 1 || n.seen().running != 0 {
			t.Errorf("result %+v, observed %+v", a.result, n.seen())
		}
	})
}

// TestStoreDown: whatever call meets a store that is away, the goal stays
// queued, nobody is kept from taking it, and it is settled once in the end.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	const held, free = true, false
	rows := []struct {
		verb  string
		lease bool     // is still there after the failure
		after []string // what follows the failure
	}{
		{"lock", free, []string{"nak a 1s"}},
		{"open", free, []string{"release a", "nak a 1s"}},
		{"over", free, []string{"release a", "nak a 1s"}},
		{"append", free, []string{"release a", "nak a 1s"}},
		{"settle", free, []string{"release a", "nak a 1s"}},
		{"release", held, []string{"ack a"}},
		{"ack", free, []string{}}, // comes again after AckWait
		{"beat", held, []string{"renew a"}},
		{"renew", held, []string{}},
	}
	for _, row := range rows {
		t.Run(row.verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.act = takes(7 * time.Second)
				a := w.submit(acme, "a", 1)
				if row.verb == "open" {
					a.delivered = 1 // else there is nothing to open
				}
				n := w.node("one")
				failed := make(chan int, 1) // where in the log
				n.setFault(row.verb, func(_ context.Context, i int) error {
					if i > 1 {
						return nil
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					failed <- len(w.log)
					return errDown
				})
				n.start()
				at := <-failed
				synctest.Wait()
				w.mu.Lock()
				if lease := a.lease != nil; lease != row.lease {
					t.Errorf("after a failed %s: lease held %v, want %v", row.verb, lease, row.lease)
				}
				got := []string{}
				for _, e := range w.log[at:] {
					if !slices.Contains([]string{"next", "take", "call"}, strings.Fields(e.what)[0]) {
						got = append(got, e.what)
					}
				}
				w.mu.Unlock()
				if !slices.Equal(got, row.after) {
					t.Errorf("after a failed %s: %v, want %v", row.verb, got, row.after)
				}
				w.pass(time.Minute)
				w.settledOnce(goal.TargetStateReached)
			})
		})
	}
}

// TestStoreStaysDown: a minute without the store costs neither the goal nor the
// worker.
func TestStoreStaysDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.submit(acme, "a", 3)
		n := w.node("one")
		for _, verb := range []string{"lock", "open", "over", "append", "settle", "release", "ack", "nak"} {
			n.setFault(verb, func(context.Context, int) error {
				if time.Since(w.start) < time.Minute {
					return errDown
				}
				return nil
			})
		}
		n.start()
		w.pass(2 * time.Minute)
		w.settledOnce(goal.TargetStateReached)
	})
}

// TestCannotListen: a worker that would not hear of cancellations does not
// start.
func TestCannotListen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.node("one")
		n.setFault("watch", first(1, errDown))
		wk, err := worker.New(n.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := wk.Run(t.Context()); !errors.Is(err, goal.ErrUnavailable) {
			t.Errorf("Run() = %v, want %v", err, goal.ErrUnavailable)
		}
	})
}

// TestFenced: a worker that was superseded says nothing more about the goal.
func TestFenced(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"append", "settle", "renew", "open"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.act = takes(7 * time.Second)
				a := w.submit(acme, "a", 1)
				a.delivered = 1 // what is handed out first is looked at again: see TestBegunInVain
				n := w.node("one")
				n.setFault(verb, first(1, fmt.Errorf("test: %w", goal.ErrFenced)))
				n.start()
				w.pass(10 * time.Second)
				if got := w.said("release", "ack", "nak"); len(got) > 0 {
					t.Errorf("after a fenced %s: %v, want nothing", verb, got)
				}
				if n.seen().lost != 1 || n.seen().running != 0 {
					t.Errorf("observed %+v, want one lock lost", n.seen())
				}
				w.pass(time.Minute) // nobody has superseded it after all: it comes again
				w.settledOnce(goal.TargetStateReached)
			})
		})
	}
}

// TestFencedWhileDraining: the end of the grace does not make a superseded
// worker give back what is not its own.
func TestFencedWhileDraining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.submit(acme, "a", 1)
		n := w.node("one")
		n.setFault("settle", func(context.Context, int) error {
			time.Sleep(20 * time.Second) // the drain's hard end comes first
			return goal.ErrFenced
		})
		n.start()
		w.pass(time.Second)
		n.stop()
		if got := w.said("release", "ack", "nak"); len(got) > 0 {
			t.Errorf("after a fenced settle: %v, want nothing", got)
		}
	})
}

// TestLocked: a goal that another has comes again when the lease can have
// ended, and at least every second.
func TestLocked(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]string{
		0: "10ms", 300 * time.Millisecond: "310ms", 990 * time.Millisecond: "1s", 10 * time.Second: "1s",
	} {
		t.Run(left.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.submit(acme, "a", 1)
				n := w.node("one")
				n.setFault("lock", first(1, fmt.Errorf("test: %w", &goal.LockedError{Holder: "other", Left: left})))
				n.start()
				w.pass(time.Millisecond)
				got := w.said("begin", "open", "settle", "release", "ack", "nak")
				if len(got) != 1 || got[0] != "nak a "+want {
					t.Errorf("with %s left: %v, want nak a %s alone", left, got, want)
				}
				w.pass(2 * time.Second)
				w.settledOnce(goal.TargetStateReached)
			})
		})
	}
}

// TestSettledBefore: what was settled before is settled again, which completes
// it, and not worked on, also where the queue does not know that it was handed
// out before.
func TestSettledBefore(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		delivered int
		ended     bool // the terminal event is there
		want      []string
	}{
		{"handed out again", 1, false, []string{"open a", "settle a", "release a", "ack a"}},
		{"handed out again, ended", 1, true, []string{"open a", "settle a", "release a", "ack a"}},
		{"handed out first", 0, false, []string{"begin a", "append a", "over a", "settle a", "release a", "ack a"}},
		{"handed out first, ended", 0, true, []string{"begin a", "append a", "open a", "settle a", "release a", "ack a"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.submit(acme, "a", 1)
				a.result, a.created = &goal.Result{Status: goal.Cancelled, Reason: goal.CancelRequested}, 1
				a.delivered = row.delivered
				if row.ended {
					a.ended, a.batches = true, 1
				}
				n := w.node("one").start()
				w.pass(time.Second)
				w.settledOnce(goal.CancelRequested)
				if got := w.said("begin", "open", "append", "over", "decide", "call", "settle", "release", "ack", "nak"); !slices.Equal(got, row.want) {
					t.Errorf("the worker did %v, want %v", got, row.want)
				}
				if n.seen().taken > 1 {
					t.Errorf("taken %d times", n.seen().taken)
				}
			})
		})
	}
}

// TestBegunBefore: a goal that somebody has begun and that the queue hands out
// as a new one (it has lost what it knew) goes on from its journal.
func TestBegunBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.submit(acme, "a", 2)
		one := w.node("one")
		one.setFault("append", func(_ context.Context, i int) error {
			if i == 4 { // the second decision
				return errDown
			}
			return nil
		})
		one.start()
		w.pass(500 * time.Millisecond)
		one.stop()
		w.mu.Lock()
		a.delivered = 0
		w.enqueue(a)
		w.mu.Unlock()
		two := w.node("two").start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if got := two.seen(); got.taken != 1 || a.effects != 2 {
			t.Errorf("%d effects, observed %+v", a.effects, got)
		}
		if got := w.said("begin", "open"); !slices.Equal(got, []string{"begin a", "begin a", "open a"}) {
			t.Errorf("the workers did %v", got)
		}
	})
}

// TestCrashedAfterSettle: each write of the end may be the last of a worker.
func TestCrashedAfterSettle(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"settle", "ack"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.submit(acme, "a", 1)
				n := w.node("one")
				n.setFault(verb, func(_ context.Context, i int) error {
					if i > 1 {
						return nil
					}
					if verb == "settle" { // it was stored, and the answer was lost
						w.mu.Lock()
						defer w.mu.Unlock()
						a.result, a.created = &goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached}, 1
					}
					return errDown
				})
				n.start()
				w.pass(time.Minute)
				w.settledOnce(goal.TargetStateReached)
				if a.asked != 1 || a.delivered != 2 {
					t.Errorf("the planner was asked %d times in %d deliveries, want once in 2", a.asked, a.delivered)
				}
			})
		})
	}
}

// TestNeverStarted: what cannot start is settled with the reason, not retried.
func TestNeverStarted(t *testing.T) {
	t.Parallel()
	late := func(acc *goal.Accepted) { acc.Expires = time.Now().Add(24*time.Hour - time.Second) }
	elsewhere := func(acc *goal.Accepted) { acc.Submission.Goal.Environment = "moon" }
	refused := func(acc *goal.Accepted) { acc.Submission.Refused = goal.NewProblem(goal.Forbidden, "Not yours.") }
	rows := []struct {
		name   string
		change []func(*goal.Accepted)
		want   goal.Reason
		detail string
	}{
		{"too old", []func(*goal.Accepted){late}, goal.QueueExpired, "retention"},
		{"unknown environment", []func(*goal.Accepted){elsewhere}, goal.InvalidGoal, "moon"},
		{"refused", []func(*goal.Accepted){refused}, goal.PermissionDenied, "Not yours."},
		{"refused, for an unknown environment", []func(*goal.Accepted){refused, elsewhere}, goal.PermissionDenied, "Not yours."},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.submit(acme, "a", 1, row.change...)
				w.node("one").start()
				w.pass(time.Second)
				w.settledOnce(row.want)
				if a.result.Status != goal.Failed || !strings.Contains(a.result.Detail, row.detail) || a.asked+a.effects > 0 || a.result.Left == nil {
					t.Errorf("result %+v; asked %d times", a.result, a.asked)
				}
				if a.acc.Submission.Refused != a.result.Problem {
					t.Errorf("problem %v, want %v", a.result.Problem, a.acc.Submission.Refused)
				}
			})
		})
	}
}

// TestStartedDoesNotExpire: only what has not started expires in the queue.
func TestStartedDoesNotExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.act = takes(2 * time.Second)
		a := w.submit(acme, "a", 2, func(acc *goal.Accepted) { acc.Expires = time.Now().Add(24*time.Hour + time.Second) })
		n := w.node("one")
		n.setFault("append", func(_ context.Context, i int) error {
			if i == 3 {
				return errDown // the first attempt ends after the margin began
			}
			return nil
		})
		n.start()
		w.pass(time.Minute)
		w.settledOnce(goal.TargetStateReached)
		if a.delivered != 2 || n.seen().resumed != 1 {
			t.Errorf("%d deliveries, %d resumed, want 2 and 1", a.delivered, n.seen().resumed)
		}
	})
}

// TestPanic: a panic is a failed attempt of one goal.
func TestPanic(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"planner", "tool"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				panics := 3
				explode := func(task string) {
					if task == "bad" && panics > 0 {
						panics--
						panic("test: out of order")
					}
				}
				w.act = func(ctx context.Context, c agent.Call) goal.Outcome {
					if where == "tool" {
						explode(c.TaskID)
					}
					return takes(time.Second)(ctx, c)
				}
				w.decide = func(_ context.Context, s agent.Situation) {
					if where == "planner" {
						explode(s.TaskID)
					}
				}
				other := w.submit(acme, "other", 5)
				bad := w.submit(acme, "bad", 1)
				n := w.node("one").start()
				w.pass(500 * time.Millisecond)
				want := []string{"release bad", "nak bad 1s"}
				if got := w.said("settle", "release", "nak", "ack"); !slices.Equal(got, want) {
					t.Errorf("after a panic: %v, want %v", got, want)
				}
				w.pass(time.Minute)
				w.settledOnce(goal.TargetStateReached)
				if other.delivered != 1 || bad.delivered != 4 || n.seen().running != 0 {
					t.Errorf("deliveries: other %d, bad %d, want 1 and 4; %d still running", other.delivered, bad.delivered, n.seen().running)
				}
			})
		})
	}
}

// TestPanicForEver: the journal counts, and ends it, also when the very first
// look is what ends every attempt.
func TestPanicForEver(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"tool", "state"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if where == "tool" {
					w.act = func(context.Context, agent.Call) goal.Outcome { panic("test: broken") }
				} else {
					w.look = func() { panic("test: broken") }
				}
				a := w.submit(acme, "a", 1)
				w.node("one").start()
				w.pass(time.Minute)
				w.settledOnce(goal.WorkerCrashLoop)
				if a.delivered < 10 || a.delivered > 30 {
					t.Errorf("given up after %d deliveries", a.delivered)
				}
			})
		})
	}
}

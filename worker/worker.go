package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Job is one delivery of a queued goal. Its methods may be called from several
// goroutines.
type Job interface {
	Accepted() goal.Accepted
	// Redelivered reports whether the goal was handed out before.
	Redelivered() bool
	// Ack removes the goal from the queue; the task must be settled. It does not
	// wait.
	Ack() error
	// Nak gives the goal back, to be delivered again after the delay.
	Nak(delay time.Duration) error
	// InProgress tells the queue that the goal is being worked on.
	InProgress() error
}

// Queue is the queue of one tenant. Next waits for a job; it returns nil, nil
// when none came in its own time, and may be called by one goroutine at a time.
type Queue interface {
	Next(ctx context.Context) (Job, error)
}

// Lock is a held lease on a task.
type Lock interface {
	// Renew extends the lease; goal.ErrFenced means that it was lost.
	Renew(ctx context.Context) error
	// Release ends the lease if it is still ours. It may be repeated.
	Release(ctx context.Context) error
	// Drop is Release without waiting for an answer.
	Drop() error
}

// Journal is a task's journal and its end.
type Journal interface {
	agent.Journal
	// N is the number of the last event of the journal, as far as it is known.
	N() int
	// Settle stores the result, unless there is one already, then the terminal
	// event; it returns the result that counts and may be repeated.
	// goal.ErrFenced: another worker has gone on with the task.
	Settle(ctx context.Context, r goal.Result) (goal.Result, error)
}

// Store is what a worker needs of the store.
type Store interface {
	// Lock creates the lease on a task, or fails with *goal.LockedError.
	Lock(ctx context.Context, tenant, task, owner string, ttl time.Duration) (Lock, error)
	// BeginJournal is the journal of a goal that was never taken: it does not
	// look. Its first append fails with goal.ErrFenced when there is one already.
	BeginJournal(acc goal.Accepted) Journal
	// OpenJournal reads the journal and fences it: an earlier writer's next
	// append fails once this one has appended. It also reads the result of this
	// very goal, nil when there is none.
	OpenJournal(ctx context.Context, acc goal.Accepted) (Journal, []goal.Event, *goal.Result, error)
	// Over reports whether nothing more may be started for the goal: its
	// cancellation was asked for, or it has a result.
	Over(ctx context.Context, acc goal.Accepted) (bool, error)
	// OnCancel calls f for every cancellation asked for from now on.
	OnCancel(f func(tenant, task string)) (stop func(), err error)
}

// Environments finds the named environment of a tenant.
type Environments interface {
	Environment(tenant, name string) (agent.Environment, bool)
}

// Observer is told what a worker does; its methods must not block.
type Observer interface {
	Taken(tenant string, queued time.Duration, resumed bool)
	Settled(tenant string, r goal.Result, took time.Duration)
	LockLost(tenant string)
	Running(n int)
}

// Config of a worker. Zero values mean the defaults named.
type Config struct {
	Name         string             // who holds locks; default host name and process id
	Queues       map[string]Queue   // by tenant; required
	Store        Store              // required
	Environments Environments       // required
	Balance      agent.Balance      // nil: no token balances
	Concurrency  int                // goals at a time; default 64
	AckWait      time.Duration      // of the queue: a silent worker is given up after it; default 15 s, at least 1 s
	Grace        time.Duration      // how long a drain lets running goals go on; default 10 s
	Log          *slog.Logger       // default slog.Default()
	Observer     Observer           // nil: nobody
	Hook         func(point string) // crash injection in tests; nil: none

	// Trace opens a span around every attempt at a goal, from its lease to its
	// end: it returns the context of the work and what is told how that went; an
	// error means that the goal goes on elsewhere. Called concurrently. nil: none.
	Trace func(ctx context.Context, acc goal.Accepted) (_ context.Context, end func(r goal.Result, err error))
}

// DefaultAckWait is how long a worker may be silent before its goal is given to
// another. It bounds the take-over after a crash.
const DefaultAckWait = 15 * time.Second

// queueMargin is how long before the end of its retention a goal that has not
// started is settled as expired (public contract section 2).
const queueMargin = 24 * time.Hour

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Store == nil:
		return c, errors.New("worker: Config.Store is required")
	case c.Environments == nil:
		return c, errors.New("worker: Config.Environments is required")
	case len(c.Queues) == 0:
		return c, errors.New("worker: Config.Queues is empty: no tenant to work for")
	case c.Concurrency < 0:
		return c, fmt.Errorf("worker: Config.Concurrency is %d, want at least 1", c.Concurrency)
	case c.AckWait != 0 && c.AckWait < time.Second:
		return c, fmt.Errorf("worker: Config.AckWait is %s, want at least 1s", c.AckWait)
	case c.Grace < 0:
		return c, fmt.Errorf("worker: Config.Grace is %s, want none below 0", c.Grace)
	}
	for tenant, q := range c.Queues {
		if q == nil {
			return c, fmt.Errorf("worker: Config.Queues has no queue for tenant %q", tenant)
		}
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "worker"
		}
		c.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	if c.Concurrency == 0 {
		c.Concurrency = 64
	}
	if c.AckWait == 0 {
		c.AckWait = DefaultAckWait
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Trace == nil {
		c.Trace = func(ctx context.Context, _ goal.Accepted) (context.Context, func(goal.Result, error)) {
			return ctx, func(goal.Result, error) {}
		}
	}
	return c, nil
}

// Worker takes goals and runs them. Make one with New.
type Worker struct {
	cfg      Config
	slots    *slots
	draining chan struct{} // closed when the taking has ended: running goals stop between two steps
	next     chan Job      // to a runner that waits
	runners  sync.WaitGroup

	mu      sync.Mutex
	running map[string]*attempt // by tenant and task; guarded by mu
}

// New checks the configuration.
func New(cfg Config) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Worker{cfg: cfg, slots: newSlots(cfg.Concurrency), draining: make(chan struct{}), next: make(chan Job), running: map[string]*attempt{}}, nil
}

// errDrained is the cause with which running goals are stopped at the end of
// the grace time: they are given back, not failed.
var errDrained = errors.New("worker is draining")

// Run takes and works until ctx ends, then drains: it stops taking at once,
// running goals stop before their next step, those that have not done so after
// the grace time are cut off, and all of them go back to the queue. It returns
// nil then, and an error when it cannot work at all. It may be called once.
func (w *Worker) Run(ctx context.Context) error {
	stop, err := w.cfg.Store.OnCancel(w.cancelled)
	if err != nil {
		return fmt.Errorf("worker: listen for cancellations: %w", err)
	}
	defer stop()
	// Two contexts: ctx ends the taking, work ends the working.
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	var takers sync.WaitGroup
	for tenant, q := range w.cfg.Queues {
		takers.Go(func() { w.take(ctx, work, tenant, q) })
	}
	takers.Wait() // no job comes after this
	close(w.draining)
	grace := time.AfterFunc(w.cfg.Grace, func() { stopWork(errDrained) })
	defer grace.Stop()
	w.runners.Wait()
	return nil
}

// start runs a job that has a slot. A goroutine that has done its job takes the
// next one, because its stack has the size by then: there are hardly more than
// there are slots, and they end when the worker drains.
func (w *Worker) start(work context.Context, job Job) {
	select {
	case w.next <- job:
		return
	default: // nobody waits
	}
	w.runners.Go(func() {
		for {
			w.handle(work, job)
			w.slots.release()
			select {
			case job = <-w.next:
			case <-w.draining:
				return
			}
		}
	})
}

// take pulls one goal at a time from a tenant's queue and starts it. A tenant
// never holds more than one goal that waits for a slot, and slots are given in
// the order of asking: so tenants take turns, however long their queues are.
func (w *Worker) take(ctx, work context.Context, tenant string, q Queue) {
	var retry backoff
	for ctx.Err() == nil {
		// Not taking while all slots are busy leaves the goal to an idle worker.
		if !w.slots.waitFree(ctx) {
			return
		}
		job, err := q.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			w.cfg.Log.WarnContext(ctx, "taking failed, trying again", "tenant", tenant, "error", err)
			retry.wait(ctx)
			continue
		}
		retry.reset()
		if job == nil {
			continue
		}
		if !w.acquire(ctx, job) {
			return
		}
		w.start(work, job)
	}
}

// acquire waits for a slot while it keeps the job alive; when ctx ends first
// the job goes back. It asks once: who asked again would lose the place.
func (w *Worker) acquire(ctx context.Context, job Job) bool {
	if w.slots.tryAcquire() {
		return true
	}
	stopBeating := every(w.cfg.AckWait/3, func() bool {
		w.beat(ctx, job)
		return true
	})
	got := w.slots.acquire(ctx)
	stopBeating()
	if !got {
		w.giveBack(ctx, job, 0)
	}
	return got
}

// cancelled tells a running attempt that its cancellation was asked for.
func (w *Worker) cancelled(tenant, task string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.running[tenant+"/"+task]; ok {
		a.askCancel()
	}
}

func (w *Worker) beat(ctx context.Context, job Job) {
	if err := job.InProgress(); err != nil {
		// Liveness only: the worst that follows is a second delivery, which the fence stops.
		w.cfg.Log.WarnContext(ctx, "heartbeat failed", "task", job.Accepted().Submission.TaskID, "error", err)
	}
}

func (w *Worker) giveBack(ctx context.Context, job Job, delay time.Duration) {
	if err := job.Nak(delay); err != nil {
		// The queue delivers it again after AckWait.
		w.cfg.Log.WarnContext(ctx, "giving back failed", "task", job.Accepted().Submission.TaskID, "error", err)
	}
}

package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// errLockLost is the cause with which an attempt is stopped when its lease is
// gone: a successor may be at work.
var errLockLost = errors.New("lease was lost")

// settleTime bounds the writes that end an attempt, also while draining.
const settleTime = 30 * time.Second

// Points of crash injection around the settling; those inside the loop are
// named in worker/agent.
const (
	PointTaken    = "taken"
	PointLocked   = "locked"
	PointSettled  = "settled"
	PointReleased = "released"
	PointAcked    = "acked"
)

// Points lists every crash point, in order.
func Points() []string {
	points := []string{PointTaken, PointLocked}
	for _, p := range agent.Points() {
		points = append(points, string(p))
	}
	return append(points, PointSettled, PointReleased, PointAcked)
}

// attempt is one worker's try at one goal.
type attempt struct {
	w   *Worker
	job Job
	acc goal.Accepted
	log *slog.Logger
	// taken: the observer was told of it.
	taken bool
	// cancelled is done when the task's cancellation was asked for.
	cancelled context.Context //nolint:containedctx // a signal, handed to the loop as one
	askCancel context.CancelFunc
}

// handle drives one delivered goal as far as it gets: to its end, or to a
// reason to leave it to a later delivery. ctx is the working context.
func (w *Worker) handle(ctx context.Context, job Job) {
	acc := job.Accepted()
	a := &attempt{
		w: w, job: job, acc: acc,
		log: w.cfg.Log.With("task", acc.Submission.TaskID, "tenant", acc.Submission.Tenant),
	}
	a.cancelled, a.askCancel = context.WithCancel(context.Background())
	defer a.askCancel()
	w.hook(PointTaken)
	err := a.run(ctx)
	var locked *goal.LockedError
	switch {
	case err == nil:
	case errors.As(err, &locked):
		// The holder is alive, or its lease ends soon: look again then.
		w.giveBack(ctx, job, min(locked.Left+10*time.Millisecond, time.Second))
	case errors.Is(err, goal.ErrFenced), errors.Is(err, errLockLost):
		// A successor has the goal: say nothing more about it.
		a.log.WarnContext(ctx, "superseded, leaving the goal to its successor", "error", err)
		w.observe(func(o Observer) { o.LockLost(acc.Submission.Tenant) })
	case errors.Is(err, errDrained), errors.Is(err, agent.ErrStopped):
		w.giveBack(ctx, job, 0)
	default:
		a.log.ErrorContext(ctx, "attempt failed, the goal stays queued", "error", err)
		w.giveBack(ctx, job, time.Second)
	}
}

// run takes the lease, works, settles, releases and acknowledges, in that
// order: each step may be repeated, and the acknowledgement comes last.
func (a *attempt) run(ctx context.Context) error {
	w, sub := a.w, a.acc.Submission
	// The owner is this attempt, not the worker: it may be handed the same goal
	// again before it has noticed that it lost it.
	lock, err := w.cfg.Store.Lock(ctx, sub.Tenant, sub.TaskID, w.cfg.Name+"/"+rand.Text()[:8], w.cfg.AckWait)
	if err != nil {
		return why(ctx, fmt.Errorf("lock: %w", err))
	}
	w.hook(PointLocked)
	ctx, cancelWork := context.WithCancelCause(ctx)
	defer cancelWork(nil)
	stopBeating := a.keepAlive(ctx, cancelWork, lock)
	span, endSpan := w.cfg.Trace(ctx, a.acc)
	res, journal, err := a.work(span)
	if err == nil {
		err = a.settle(span, res, journal)
	}
	endSpan(res, err)
	stopBeating()
	err = why(ctx, err)
	if errors.Is(err, goal.ErrFenced) || errors.Is(err, errLockLost) {
		return err // not ours any more: neither release nor acknowledge
	}
	if rerr := a.release(ctx, lock, err == nil); rerr != nil {
		// The lease ends by itself; until then nobody else can start.
		a.log.WarnContext(ctx, "releasing the lease failed", "error", rerr)
	}
	if err != nil {
		return err
	}
	w.hook(PointReleased)
	if err := a.job.Ack(); err != nil {
		// Delivered again, the result is found and the rest is repeated.
		a.log.WarnContext(ctx, "acknowledging failed", "error", err)
	}
	w.hook(PointAcked)
	return nil
}

// release gives the lease back. Nobody waits for that of a task that has ended.
func (a *attempt) release(ctx context.Context, lock Lock, ended bool) error {
	if ended {
		return lock.Drop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	return lock.Release(ctx)
}

// keepAlive renews the lease and the delivery every third of AckWait until the
// returned function is called, which waits for it. It cancels the work with
// errLockLost when the lease is gone, or could not be renewed before it ran out.
func (a *attempt) keepAlive(ctx context.Context, cancel context.CancelCauseFunc, lock Lock) (stop func()) {
	third := a.w.cfg.AckWait / 3
	ends := time.Now().Add(a.w.cfg.AckWait)
	return every(third, func() bool {
		a.w.beat(ctx, a.job)
		began := time.Now()
		rctx, rcancel := context.WithTimeout(context.WithoutCancel(ctx), min(third, ends.Sub(began)))
		err := lock.Renew(rctx)
		rcancel()
		switch {
		case err == nil:
			ends = began.Add(a.w.cfg.AckWait) // the store may have counted from the sending
		case errors.Is(err, goal.ErrFenced), !time.Now().Before(ends):
			cancel(fmt.Errorf("%w: %w", errLockLost, err))
			return false
		default:
			a.log.WarnContext(ctx, "renewing the lease failed, trying again", "error", err)
		}
		return true
	})
}

// why adds the cause of ctx to what failed when the work was stopped.
func why(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// work returns the result of the goal, the one that is stored already or the
// one of running it, and the journal to settle it with.
func (a *attempt) work(ctx context.Context) (goal.Result, Journal, error) {
	if !a.job.Redelivered() {
		journal := a.w.cfg.Store.BeginJournal(a.acc)
		res, err := a.pursue(ctx, journal, nil)
		if !errors.Is(err, goal.ErrFenced) || journal.N() > 0 {
			return res, journal, err
		}
		// It was handed out before after all, or was cancelled while it was queued.
	}
	journal, history, settled, err := a.w.cfg.Store.OpenJournal(ctx, a.acc)
	if err != nil {
		return goal.Result{}, nil, fmt.Errorf("open the journal: %w", err)
	}
	if settled != nil {
		return *settled, journal, nil // before a crash, or cancelled while queued
	}
	res, err := a.pursue(ctx, journal, history)
	return res, journal, err
}

// pursue runs the goal from its history to an end.
func (a *attempt) pursue(ctx context.Context, journal Journal, history []goal.Event) (goal.Result, error) {
	w, sub := a.w, a.acc.Submission
	if len(history) == 0 && time.Now().After(a.acc.Expires.Add(-queueMargin)) {
		return a.failed(goal.QueueExpired, "the goal could not start before the end of its retention came near"), nil
	}
	env, ok := w.cfg.Environments.Environment(sub.Tenant, sub.Goal.EnvironmentName())
	if !ok && sub.Refused == nil { // a refused goal ends with its own problem, which may be this
		return a.failed(goal.InvalidGoal, "environment "+sub.Goal.EnvironmentName()+" is not configured here"), nil
	}
	if !a.taken {
		a.taken = true
		w.observe(func(o Observer) { o.Taken(sub.Tenant, a.age(), len(history) > 0) })
	}
	w.track(a)
	defer w.untrack(a)
	return a.drive(ctx, agent.Task{
		Accepted: a.acc, History: history, Roles: sub.Roles, Worker: w.cfg.Name, Redelivered: a.job.Redelivered(),
	}, env, journal)
}

// drive runs the loop. A planner or tool that panics is a failed attempt, which
// the journal counts, and not the end of every other goal in this process.
func (a *attempt) drive(ctx context.Context, task agent.Task, env agent.Environment, j agent.Journal) (res goal.Result, err error) {
	w := a.w
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return agent.Run(ctx, task, env, j, agent.Options{
		Balance: w.cfg.Balance, Cancel: a.cancelled, Stop: w.draining, Hook: func(p agent.Point) { w.hook(string(p)) },
		// The message that cancels at once may be lost; the marker is not.
		Over: func(ctx context.Context) (bool, error) { return w.cfg.Store.Over(ctx, a.acc) },
	})
}

func (a *attempt) settle(ctx context.Context, res goal.Result, journal Journal) error {
	// The outcome is known: draining must not lose it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	won, err := journal.Settle(ctx, res)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	a.w.hook(PointSettled)
	took := a.age()
	a.w.observe(func(o Observer) { o.Settled(a.acc.Submission.Tenant, won, took) })
	a.log.InfoContext(ctx, "settled", "status", won.Status, "reason", won.Reason, "steps", won.Usage.Steps, "took", took)
	return nil
}

// age is the time since the goal was accepted, on a machine whose clock may be
// ahead of this one's.
func (a *attempt) age() time.Duration { return max(0, time.Since(a.acc.At)) }

// failed is the result of a goal that never started.
func (a *attempt) failed(reason goal.Reason, detail string) goal.Result {
	return goal.Result{
		Version: goal.ResultVersion, TaskID: a.acc.Submission.TaskID, Tenant: a.acc.Submission.Tenant, GoalSeq: a.acc.Seq,
		Status: goal.Failed, Reason: reason, Detail: detail, Left: []goal.Difference{},
		EndedAt: time.Now().UTC(), Worker: a.w.cfg.Name,
	}
}

func (w *Worker) track(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[a.acc.Submission.Tenant+"/"+a.acc.Submission.TaskID] = a
	w.observe(func(o Observer) { o.Running(len(w.running)) })
}

func (w *Worker) untrack(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A second delivery of the goal may be at work here by now.
	if key := a.acc.Submission.Tenant + "/" + a.acc.Submission.TaskID; w.running[key] == a {
		delete(w.running, key)
	}
	w.observe(func(o Observer) { o.Running(len(w.running)) })
}

func (w *Worker) hook(point string) {
	if w.cfg.Hook != nil {
		w.cfg.Hook(point)
	}
}

func (w *Worker) observe(f func(Observer)) {
	if w.cfg.Observer != nil {
		f(w.cfg.Observer)
	}
}

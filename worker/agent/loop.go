package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// ErrStopped is what Run returns when Options.Stop was closed. The task has
// not ended; whoever runs it next goes on from the journal.
var ErrStopped = errors.New("the worker gives the task back")

// Run drives a task to its end and returns the result, which the caller must
// settle: until then the task has not ended, and another Run may come to
// another end. It goes on from t.History; running it again after an error or a
// crash never makes a second effect for one decision.
//
// An error means that the task has not ended: goal.ErrFenced (another worker
// has it: stop at once), the cause of ctx, ErrStopped, or an error of the
// journal or of another store (hand the task back and try again later). Run
// starts nothing that outlives it.
func Run(ctx context.Context, t Task, env Environment, j Journal, opts Options) (goal.Result, error) {
	r := &run{task: t, env: env, journal: j, opts: opts.withDefaults(), goal: t.Submission.Goal, pos: &position{}}
	err := r.prepare()
	if err == nil {
		err = r.work(ctx)
	}
	var end *ending
	if !errors.As(err, &end) {
		return goal.Result{}, err
	}
	return r.result(end), nil
}

// run is one attempt at a task. It belongs to one goroutine.
type run struct {
	task    Task
	env     Environment
	journal Journal
	opts    Options

	goal           goal.Goal
	target         map[string]any
	pre            goal.PreConditions
	guard          guard
	entities       []Entity // everything that is read
	targetEntities []Entity
	hashed         []Entity // what the state hash covers

	pos      *position
	deadline time.Time
	seen     *sight     // the last observation of this attempt
	fresh    bool       // seen was made after the last step
	listed   bool       // tools and missing are known
	tools    []ToolSpec // what the task may call, sorted by name
	others   map[string]bool
}

func (r *run) now() time.Time { return r.opts.Clock() }

// prepare reads the goal and the journal. A goal that cannot be read was never
// accepted by this version; it ends here instead of failing for ever.
func (r *run) prepare() error {
	var err error
	if r.target, err = object(r.goal.Objective.TargetState); err != nil {
		err = failed(goal.InvalidGoal, "target_state: "+err.Error())
	} else if r.pre, err = goal.ParsePreConditions(r.goal.PreConditions); err != nil {
		err = failed(goal.InvalidGoal, "pre_conditions: "+err.Error())
	}
	r.guard = newGuard(r.target, r.pre)
	r.targetEntities = Entities(r.target)
	r.hashed = Entities(r.target, r.pre.Match)
	r.entities = union(r.hashed, r.guard.entities)
	r.pos = fold(r.task.History, r.task.Seq, r.guard)
	return err
}

// object decodes JSON that must be an object.
func object(raw json.RawMessage) (map[string]any, error) {
	tree, err := goal.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	members, ok := tree.(map[string]any)
	if !ok {
		return nil, errors.New("must be an object")
	}
	return members, nil
}

// work runs the task to an ending, and looks once more where that is due.
func (r *run) work(ctx context.Context) error {
	err := r.start(ctx)
	for err == nil {
		err = r.turn(ctx)
	}
	var end *ending
	if errors.As(err, &end) && end.look {
		return r.lastLook(ctx, end)
	}
	return err
}

// start makes the first start, or the resumption, durable.
func (r *run) start(ctx context.Context) error {
	if p := r.task.Submission.Refused; p != nil {
		return refusedSubmission(p)
	}
	if !permits(r.env.Roles, r.task.Roles) {
		return failed(goal.PermissionDenied, fmt.Sprintf("environment %q is not for the caller's roles", r.env.Name))
	}
	if r.pos.started {
		return r.resume(ctx)
	}
	r.deadline = r.now().Add(r.goal.Guardrails.Timeout())
	if err := r.asked(ctx, nil); err != nil {
		return err
	}
	started := goal.Event{Type: goal.TaskStarted, Started: &goal.Started{Attempt: 1, GoalSeq: r.task.Seq, Deadline: r.deadline.UTC()}}
	events := []goal.Event{started}
	if !r.task.Redelivered && r.glance(ctx) {
		started.Started.Revisions, started.Started.ETag = r.seen.observed.Revisions, r.seen.observed.ETag
		events = append(events, r.seen.event())
	}
	r.opts.Hook(BeforeJournalStart)
	err := r.append(ctx, events...)
	r.opts.Hook(AfterJournalStart)
	return err
}

// resume counts the attempt before anything that could end this process too.
// A task that has ended its workers so often is not looked at again.
func (r *run) resume(ctx context.Context) error {
	r.deadline = r.pos.deadline
	if r.pos.resumed >= r.opts.MaxAttempts {
		return failed(goal.WorkerCrashLoop, fmt.Sprintf("%d attempts ended without a step", r.pos.resumed+1))
	}
	r.opts.Hook(BeforeJournalStart)
	err := r.append(ctx, goal.Event{Type: goal.TaskResumed, Started: &goal.Started{
		Attempt: r.pos.attempt + 1, GoalSeq: r.task.Seq, Deadline: r.deadline.UTC(),
	}})
	r.opts.Hook(AfterJournalStart)
	return err
}

// turn does the next thing that the position demands. Success comes first: a
// target that was seen to hold is reached, whatever else is the case.
func (r *run) turn(ctx context.Context) error {
	if r.fresh && len(r.pos.steps) == 0 {
		if checks := Check(r.target, r.pre, r.seen.Observation); len(checks) > 0 {
			return preconditionFailed(checks, "a pre-condition did not hold at the start")
		}
	}
	if r.fresh && r.seen.reached() {
		return reached()
	}
	if err := r.asked(ctx, r.opts.Over); err != nil {
		return err
	}
	if r.pos.inFlight() != nil {
		return r.repeat(ctx)
	}
	if !r.fresh {
		return r.observe(ctx)
	}
	if end := r.pos.tripped(r.goal, len(r.seen.left)); end != nil {
		return end
	}
	return r.step(ctx)
}

// asked looks, between steps, for everyone who may want the task to stop. over
// asks the store; nil: what this process knows is enough, since nothing has been
// started yet.
func (r *run) asked(ctx context.Context, over func(context.Context) (bool, error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.opts.Cancel.Err() != nil {
		return cancelled()
	}
	if over != nil {
		yes, err := over(ctx)
		if err != nil {
			return fmt.Errorf("ask whether %s is over: %w", r.task.Submission.TaskID, err)
		}
		if yes {
			return cancelled()
		}
	}
	if !r.now().Before(r.deadline) {
		return r.timedOut()
	}
	select {
	case <-r.opts.Stop:
		return ErrStopped
	default:
		return nil
	}
}

// append makes events durable and moves the position over them. It has a
// deadline of its own: the task's is over when its last outcome is written.
func (r *run) append(ctx context.Context, events ...goal.Event) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.JournalTimeout)
	defer cancel()
	for i := range events {
		events[i].N, events[i].Time, events[i].Worker = r.pos.last+1+i, r.now().UTC(), r.task.Worker
	}
	if err := r.journal.Append(ctx, events...); err != nil {
		return fmt.Errorf("journal %s of %s: %w", events[0].Type, r.task.Submission.TaskID, err)
	}
	for _, e := range events {
		r.pos.apply(e)
	}
	return nil
}

// bounded ends with the deadline; the cause is then the task's ending.
func (r *run) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.deadline.Sub(r.now()), error(r.timedOut()))
}

// onCancel calls f once the task is known to be cancelled, unless that is to be
// ignored before.
func (r *run) onCancel(f func()) (ignore func() bool) { return context.AfterFunc(r.opts.Cancel, f) }

// interruptible also ends when the task is cancelled. It is for whatever has no
// effect: looking, waiting, deciding.
func (r *run) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, release := r.bounded(ctx)
	ctx, interrupt := context.WithCancelCause(ctx)
	ignore := r.onCancel(func() { interrupt(cancelled()) })
	return ctx, func() {
		ignore()
		interrupt(nil)
		release()
	}
}

// Back-off between tries: doubling from the first to the longest pause, each
// shortened by up to half so that tasks do not come back together.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pause waits before another try, counted from 1; at least so long. It returns
// the cause when ctx ends first.
func pause(ctx context.Context, try int, atLeast time.Duration) error {
	d := min(firstPause<<min(try-1, 16), longestPause)
	d -= time.Duration(rand.Int64N(int64(d)/2 + 1)) //nolint:gosec // jitter is no secret
	timer := time.NewTimer(max(d, atLeast))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

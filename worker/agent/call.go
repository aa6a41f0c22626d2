package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// guarded re-reads the pre-conditioned entities before a call that may change
// the state. It runs before the decision is journaled, so that every journaled
// decision has passed it and a repeated call, whose first sending may have
// moved the versions, need not. The window that stays is the journal's append
// and the call's way: only a tool that carries the condition itself closes it.
func (r *run) guarded(ctx context.Context, replay goal.Replay, p proposal) error {
	if !r.guard.armed() || !replay.Mutates() {
		return nil
	}
	err := r.lookPatiently(ctx)
	if err == nil {
		changes := r.pos.expected.changes(r.seen.version)
		if len(changes) == 0 {
			return nil
		}
		err = preconditionFailed(changes, "a pre-conditioned entity was changed by somebody else")
	}
	// The answer is not journaled, its tokens are spent.
	r.pos.usage.Tokens += p.tokens
	r.pos.usage.Estimated = r.pos.usage.Estimated || p.estimated
	return err
}

// repeat deals with a call that was in flight when its worker stopped.
func (r *run) repeat(ctx context.Context) error {
	in := r.pos.inFlight()
	if in.Decision.Replay != goal.ReplayUnsafe {
		if err := r.ready(ctx); err != nil {
			return err
		}
		spec, may := r.tool(in.Decision.Tool)
		if !may {
			return failed(goal.PermissionDenied, "a call of "+in.Decision.Tool+" was in flight, and the tool is no longer allowed").looking()
		}
		if spec.Replay != goal.ReplayUnsafe {
			return r.call(ctx, in.N, in.Decision, true)
		}
		return failed(goal.OutcomeUnknown, "a call of "+in.Decision.Tool+" was in flight, and the tool is unsafe by now").looking()
	}
	return r.conclude(ctx, goal.Event{Type: goal.StepCompleted, Step: in.N, Outcome: &goal.Outcome{
		Kind: goal.CallUnknown, Message: "the worker stopped while the call was in flight",
	}})
}

// call sends a journaled decision and journals how it went. The deadline
// bounds it; a cancelled task lets it finish.
func (r *run) call(ctx context.Context, n int, d *goal.Decision, repeated bool) error {
	r.fresh = false
	bounded, cancel := r.bounded(ctx)
	defer cancel()
	traceparent := r.task.Traceparent
	if traceparent == "" {
		traceparent = r.task.Submission.Traceparent
	}
	began := r.now()
	r.opts.Hook(BeforeCall)
	out, err := r.env.Tools.Call(bounded, Call{
		TaskID: r.task.Submission.TaskID, Tenant: r.task.Submission.Tenant, Step: n, Tool: d.Tool,
		Arguments: d.Arguments, Key: d.Key, Repeated: repeated, Traceparent: traceparent,
	})
	r.opts.Hook(AfterCall)
	out.Repeated = repeated
	if err != nil {
		var refusal *goal.Refusal
		if out, refusal = notSent(d, err, repeated); refusal != nil {
			return r.conclude(ctx, goal.Event{Type: goal.StepRefused, Step: n, Refusal: refusal})
		}
	}
	if ctx.Err() != nil && !definite(out) {
		// Our own stop cut the call off: it stays in flight.
		return context.Cause(ctx)
	}
	if out.Took == 0 {
		out.Took = goal.Millis(r.now().Sub(began).Round(time.Millisecond))
	}
	out = journalable(out)
	return r.conclude(ctx, goal.Event{Type: goal.StepCompleted, Step: n, Outcome: &out})
}

// notSent is what a toolbox's error means: a refusal, unless the call may have
// been sent all the same, by an earlier attempt or before ctx ended.
func notSent(d *goal.Decision, err error, repeated bool) (goal.Outcome, *goal.Refusal) {
	if repeated || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return goal.Outcome{Kind: goal.CallUnknown, Message: err.Error(), Repeated: repeated}, nil
	}
	refusal := &goal.Refusal{Action: d.Action, Kind: RefusedNotSent, Message: shorten(err.Error(), maxMessage)}
	var arguments *ArgumentsError
	switch {
	case errors.As(err, &arguments):
		refusal.Kind = RefusedArguments
	case errors.Is(err, ErrUnknownTool):
		refusal.Kind = RefusedUnknownTool
	}
	return goal.Outcome{}, refusal
}

// definite reports whether a tool answered.
func definite(out goal.Outcome) bool {
	switch out.Kind {
	case goal.CallOK, goal.CallToolError, goal.CallPrecondition:
		return true
	case goal.CallUnavailable, goal.CallTimeout, goal.CallUnknown:
	}
	return false
}

// journalable is the outcome with a result that is valid JSON and not too
// large. Toolboxes see to it themselves; a journal that cannot be written would
// stop the task for ever.
func journalable(out goal.Outcome) goal.Outcome {
	out.Message = shorten(out.Message, maxMessage)
	if len(out.Result) > 0 && !json.Valid(out.Result) {
		out.Result = encode(string(out.Result))
	}
	if len(out.Result) > goal.MaxInline {
		if out.Size == 0 {
			out.Size = len(out.Result)
		}
		if out.Digest == "" {
			out.Digest = digest(out.Result)
		}
		out.Result = nil
	}
	return out
}

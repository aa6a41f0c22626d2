package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// proposal is the next action, asked for or planned earlier.
type proposal struct {
	action    goal.Action
	none      bool // the planner named no action
	planned   []goal.Action
	why       string
	tokens    int64
	estimated bool
	took      time.Duration
	state     json.RawMessage
}

// step takes the next action, refuses it or journals and calls it.
func (r *run) step(ctx context.Context) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	p, err := r.next(ctx)
	if err != nil {
		return err
	}
	n := r.pos.usage.Steps + 1
	kind, message := r.vet(p)
	var key string
	if kind == "" {
		if key, err = goal.ToolCallKey(r.task.Submission.TaskID, n, p.action.Tool, p.action.Arguments); err != nil {
			kind, message = RefusedArguments, err.Error()
		}
	}
	if kind != "" {
		return r.conclude(ctx, goal.Event{Type: goal.StepRefused, Step: n, Refusal: p.refusal(kind, message)})
	}
	spec, _ := r.tool(p.action.Tool)
	if err := r.guarded(ctx, spec.Replay, p); err != nil {
		return err
	}
	d := &goal.Decision{
		Action: p.action, Key: key, Replay: spec.Replay, Why: p.why, Planned: p.planned,
		Tokens: p.tokens, Estimated: p.estimated, Took: goal.Millis(p.took), PlannerState: p.state,
	}
	r.opts.Hook(BeforeJournalDecision)
	err = r.append(ctx, goal.Event{Type: goal.StepDecided, Step: n, Decision: d})
	r.opts.Hook(AfterJournalDecision)
	if err != nil {
		return err
	}
	return r.call(ctx, n, d, false)
}

func (p proposal) refusal(kind, message string) *goal.Refusal {
	action := p.action
	action.Tool = shorten(action.Tool, 128)
	return &goal.Refusal{
		Action: action, Kind: kind, Message: shorten(message, maxMessage), Why: p.why,
		Tokens: p.tokens, Estimated: p.estimated, Took: goal.Millis(p.took), PlannerState: p.state,
	}
}

// vet says why an action is refused, or nothing.
func (r *run) vet(p proposal) (kind, message string) {
	spent, limit := r.pos.usage.Tokens+p.tokens, r.goal.Guardrails.MaxTokens
	_, may := r.tool(p.action.Tool)
	switch {
	case limit > 0 && spent > limit:
		return RefusedMaxTokens, fmt.Sprintf("%d tokens are spent, %d were allowed", spent, limit)
	case p.none:
		return RefusedNoAction, "the planner named no tool call"
	case !may && (r.others[p.action.Tool] || !r.goal.Guardrails.Allows(p.action.Tool)):
		return RefusedNotAllowed, notAllowed(p.action.Tool, r.tools)
	case !may:
		return RefusedUnknownTool, fmt.Sprintf("There is no tool %q.", shorten(p.action.Tool, 128))
	case p.action.Malformed != "":
		return RefusedArguments, p.action.Malformed
	}
	return "", ""
}

// ready lists the environment's tools, once for each attempt, and checks that
// the goal's allowed_tools are there and are the caller's to use.
func (r *run) ready(ctx context.Context) error {
	if r.listed {
		return nil
	}
	all, err := r.listTools(ctx)
	if err != nil {
		return err
	}
	r.others = map[string]bool{}
	for _, t := range all {
		if !slices.Contains(goal.Replays(), t.Replay) {
			t.Replay = goal.ReplayUnsafe // what nobody classified is never repeated
		}
		if r.goal.Guardrails.Allows(t.Name) && permits(t.Roles, r.task.Roles) {
			r.tools = append(r.tools, t)
		} else {
			r.others[t.Name] = true
		}
	}
	r.listed = true
	unknown, denied := toolFaults(r.goal.Guardrails.AllowedTools, all, r.task.Roles)
	if len(unknown) > 0 {
		return failed(goal.InvalidGoal, "allowed_tools names tools that the environment does not have: "+quoted(unknown))
	}
	if len(denied) > 0 {
		return failed(goal.PermissionDenied, "allowed_tools names tools that are not for the caller's roles: "+quoted(denied))
	}
	return nil
}

// toolFaults lists the names of allowed tools that do not exist, and those
// that the roles do not permit.
func toolFaults(allowed []string, all []ToolSpec, roles []string) (unknown, denied []string) {
	for _, name := range allowed {
		i := slices.IndexFunc(all, func(t ToolSpec) bool { return t.Name == name })
		switch {
		case i < 0:
			unknown = append(unknown, name)
		case !permits(all[i].Roles, roles):
			denied = append(denied, name)
		}
	}
	return unknown, denied
}

func (r *run) listTools(ctx context.Context) ([]ToolSpec, error) {
	ctx, cancel := r.interruptible(ctx)
	defer cancel()
	for try := 1; ; try++ {
		all, err := r.env.Tools.List(ctx)
		if err == nil {
			return all, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if try >= r.opts.ObserveTries {
			return nil, failed(goal.DependencyUnavailable, fmt.Sprintf("the tools could not be listed in %d tries: %v", try, err))
		}
		if err := pause(ctx, try, 0); err != nil {
			return nil, err
		}
	}
}

// tool is a tool that the task may call.
func (r *run) tool(name string) (ToolSpec, bool) {
	i := slices.IndexFunc(r.tools, func(t ToolSpec) bool { return t.Name == name })
	if i < 0 {
		return ToolSpec{}, false
	}
	return r.tools[i], true
}

// next is the action that was planned, or the answer to a new question.
func (r *run) next(ctx context.Context) (proposal, error) {
	if len(r.pos.planned) > 0 {
		return proposal{action: r.pos.planned[0]}, nil
	}
	began := r.now()
	answer, err := r.ask(ctx)
	if err != nil {
		return proposal{}, err
	}
	p := proposal{
		none: len(answer.Actions) == 0, why: firstCharacters(answer.Why, maxWhy),
		tokens: max(answer.Tokens, 0), estimated: answer.Estimated, took: r.now().Sub(began), state: answer.State,
	}
	if len(p.state) > maxPlannerState || !json.Valid(p.state) {
		p.state = nil
	}
	if !p.none {
		p.action = clean(answer.Actions[0])
		p.planned = r.plan(answer.Actions[1:])
	}
	return p, nil
}

// plan is what is kept of an answer's further actions: no more than there are
// steps for, so that one answer cannot pass max_steps, and no more than fits
// into a journal entry. What is cut off can be asked for again.
func (r *run) plan(rest []goal.Action) []goal.Action {
	rest = rest[:min(len(rest), max(r.goal.Guardrails.MaxSteps-r.pos.usage.Steps-1, 0))]
	var out []goal.Action
	size := 0
	for _, a := range rest {
		a = clean(a)
		if size += len(a.Tool) + len(a.Arguments); size > maxPlanned {
			break
		}
		out = append(out, a)
	}
	return out
}

// clean is the action with arguments that can be journaled: an object, or the
// reason why there is none.
func clean(a goal.Action) goal.Action {
	switch {
	case a.Malformed != "":
	case len(a.Arguments) == 0:
		a.Arguments = json.RawMessage("{}")
		return a
	case len(a.Arguments) > maxArguments:
		a.Malformed = fmt.Sprintf("The arguments are larger than %d bytes.", maxArguments)
	default:
		_, err := object(a.Arguments)
		if err == nil {
			return a
		}
		a.Malformed = "The arguments are not a JSON object: " + err.Error()
	}
	a.Arguments, a.Malformed = nil, shorten(a.Malformed, maxMessage)
	return a
}

// ask asks the planner, with the tenant's tokens reserved before and settled
// after it.
func (r *run) ask(ctx context.Context) (Answer, error) {
	// One reservation for each step's question, however often it is repeated.
	id := fmt.Sprintf("%s.%d", r.task.Submission.TaskID, r.pos.usage.Steps+1)
	tenant := r.task.Submission.Tenant
	if r.opts.Balance != nil {
		err := r.reserve(ctx, tenant, id)
		if errors.Is(err, ErrBalance) {
			return Answer{}, trip(goal.GuardrailMaxTokens, "token balance", r.pos.usage.Tokens, r.pos.usage.Steps)
		}
		if err != nil {
			return Answer{}, fmt.Errorf("reserve tokens: %w", err)
		}
	}
	answer, err := r.question(ctx)
	var end *ending
	if r.opts.Balance == nil || err != nil && !errors.As(err, &end) {
		return answer, err
	}
	if settleErr := r.opts.Balance.Settle(ctx, tenant, id, max(answer.Tokens, 0)); settleErr != nil {
		return Answer{}, fmt.Errorf("settle tokens: %w", settleErr)
	}
	return answer, err
}

// reserve holds Options.Reserve tokens for a question, or the half of it, and so
// on, when the balance is almost used up.
func (r *run) reserve(ctx context.Context, tenant, id string) error {
	for tokens := r.opts.Reserve; ; tokens /= 2 {
		err := r.opts.Balance.Reserve(ctx, tenant, id, tokens)
		if !errors.Is(err, ErrBalance) || tokens <= 1 {
			return err
		}
	}
}

// question repeats the question while the planner is unavailable.
func (r *run) question(ctx context.Context) (Answer, error) {
	ctx, cancel := r.interruptible(ctx)
	defer cancel()
	for try := 1; ; try++ {
		answer, err := r.decide(ctx)
		if err == nil {
			return answer, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return Answer{}, cause
		}
		wait, again := retryOf(err)
		switch {
		case !again:
			return Answer{}, failed(goal.PlannerFailed, err.Error()).looking()
		case try >= r.opts.PlannerTries:
			return Answer{}, failed(goal.PlannerFailed, fmt.Sprintf("no answer in %d tries: %v", try, err)).looking()
		case r.now().Add(wait).After(r.deadline):
			return Answer{}, failed(goal.PlannerFailed, fmt.Sprintf("asks to wait %s, beyond the deadline: %v", wait, err)).looking()
		}
		if err := pause(ctx, try, wait); err != nil {
			return Answer{}, err
		}
	}
}

func (r *run) decide(ctx context.Context) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.PlannerTimeout)
	defer cancel()
	r.opts.Hook(BeforeDecide)
	answer, err := r.env.Planner.Decide(ctx, r.situation())
	r.opts.Hook(AfterDecide)
	if err != nil {
		return Answer{}, fmt.Errorf("decide: %w", err)
	}
	return answer, nil
}

// retryOf says whether a planner may be asked again, and after how long at
// least. What is not classified may be.
func retryOf(err error) (time.Duration, bool) {
	var classified *PlannerError
	if !errors.As(err, &classified) {
		return 0, true
	}
	return max(classified.Retry, 0), classified.Kind == PlannerUnavailable
}

// situation is what the planner is told. It gets its own lists.
func (r *run) situation() Situation {
	limits := r.goal.Guardrails
	budget := Budget{Steps: limits.MaxSteps - r.pos.usage.Steps, Tokens: -1, Time: r.deadline.Sub(r.now())}
	if limits.MaxTokens > 0 {
		budget.Tokens = max(limits.MaxTokens-r.pos.usage.Tokens, 0)
	}
	return Situation{
		TaskID: r.task.Submission.TaskID, Tenant: r.task.Submission.Tenant, Goal: r.goal,
		Left: slices.Clone(r.seen.left), State: r.seen.state, Steps: slices.Clone(r.pos.steps),
		Tools: slices.Clone(r.tools), Budget: budget, Notice: r.pos.notice(r.goal, len(r.seen.left)), Deadline: r.deadline,
	}
}

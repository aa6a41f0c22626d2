package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Verdict is what a preflight comes to.
type Verdict string

// The verdicts.
const (
	AlreadySatisfied Verdict = "already_satisfied" // all checks hold, and so does the target
	Ready            Verdict = "ready"             // all checks hold
	Blocked          Verdict = "blocked"           // a check failed
	Unknown          Verdict = "unknown"           // the state could not be read; nothing else failed
)

// Names of the checks, in the order in which they are made and reported.
const (
	CheckRoles         = "roles"          // the environment is the caller's to use
	CheckTools         = "tools"          // allowed_tools exist and are the caller's to use
	CheckBalance       = "token_balance"  // tokens are left
	CheckState         = "state"          // the state can be read
	CheckPreConditions = "pre_conditions" // they hold
	CheckTarget        = "target_state"   // it can be compared; Differences is what is left
)

// CheckProbe is the name of a probe's check.
func CheckProbe(name string) string { return "probe:" + name }

// CheckResult is one check of a preflight.
type CheckResult struct {
	Name        string            `json:"name"`
	OK          bool              `json:"ok"`
	Detail      string            `json:"detail,omitempty"`
	Differences []goal.Difference `json:"differences,omitempty"`

	problem goal.ProblemType // what a failed check is
	errors  []goal.FieldError
}

// Report is the outcome of a preflight. What depends on a check that failed
// is not made: a caller who may not use the environment learns nothing of its
// state.
type Report struct {
	Verdict   Verdict       `json:"verdict"`
	Checks    []CheckResult `json:"checks"`
	LeftTotal int           `json:"left_total"` // what is left, when the state could be read
	Leaves    int           `json:"leaves"`
	StateHash string        `json:"state_hash,omitempty"`
}

// retryAfter is how many seconds a client waits when a dependency is away.
const retryAfter = 5

// Problem is what a submission with this report is refused for, by the first
// check that failed; nil for one that is accepted.
func (r Report) Problem() *goal.Problem {
	for _, c := range r.Checks {
		if c.OK {
			continue
		}
		p := goal.NewProblem(c.problem, c.Detail)
		p.Errors = c.errors
		switch c.problem { //nolint:exhaustive // the others have no members of their own
		case goal.PreconditionMismatch:
			p.Checks = c.Differences
		case goal.DependencyNotAvailable:
			p.RetryAfter = retryAfter
		}
		return p
	}
	return nil
}

// Caller is who submits a goal.
type Caller struct {
	Roles []string
	// Balance answers how many tokens the tenant has left; nil: no balance.
	Balance func(context.Context) (int64, error)
}

// Deadlines of a preflight: a client waits for it.
const (
	probeTimeout = 3 * time.Second
	stateTimeout = 5 * time.Second
)

// Preflight checks what can be known before a goal is accepted, in a fixed
// order and without an effect: roles, allowed tools, probes (all at once),
// token balance, state, pre-conditions, target. Probes and the state have
// deadlines of their own; the whole has that of ctx.
// The same is checked again when the work starts, which is what counts. The
// error is the cause of ctx. It may be called concurrently.
func Preflight(ctx context.Context, env Environment, g goal.Goal, who Caller) (Report, error) {
	p := &preflight{env: env, goal: g, who: who}
	p.report.Verdict = Ready
	p.run(ctx)
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	for _, c := range p.report.Checks {
		switch {
		case c.OK:
		case c.Name != CheckState:
			p.report.Verdict = Blocked
		case p.report.Verdict == Ready:
			p.report.Verdict = Unknown
		}
	}
	if p.report.Verdict == Ready && p.report.LeftTotal == 0 {
		p.report.Verdict = AlreadySatisfied
	}
	return p.report, nil
}

// Admit is what Preflight would refuse the goal for, or nil, and spares what can
// refuse nothing: reading a local state for a goal without pre-conditions.
// Otherwise it is like Preflight.
func Admit(ctx context.Context, env Environment, g goal.Goal, who Caller) (*goal.Problem, error) {
	p := &preflight{env: env, goal: g, who: who, brief: true}
	p.run(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p.report.Problem(), nil
}

type preflight struct {
	env    Environment
	goal   goal.Goal
	who    Caller
	brief  bool // only what can refuse the goal
	report Report
}

func (p *preflight) add(c CheckResult) { p.report.Checks = append(p.report.Checks, c) }

func (p *preflight) run(ctx context.Context) {
	if !p.roles() || !p.tools(ctx) {
		return
	}
	p.probes(ctx)
	p.balance(ctx)
	pre, err := goal.ParsePreConditions(p.goal.PreConditions)
	if err != nil {
		p.add(invalid(CheckPreConditions, "/pre_conditions", err))
		return
	}
	if p.brief && p.env.LocalState && pre.Empty() {
		return
	}
	target, err := object(p.goal.Objective.TargetState)
	if err != nil {
		p.add(invalid(CheckTarget, "/goal/target_state", err))
		return
	}
	p.state(ctx, target, pre)
}

func invalid(check, at string, err error) CheckResult {
	return CheckResult{
		Name: check, Detail: err.Error(), problem: goal.GoalInvalid,
		errors: []goal.FieldError{{Pointer: at, Detail: err.Error()}},
	}
}

func (p *preflight) roles() bool {
	c := CheckResult{Name: CheckRoles, OK: permits(p.env.Roles, p.who.Roles)}
	if !c.OK {
		c.problem = goal.Forbidden
		c.Detail = fmt.Sprintf("environment %q is not for the caller's roles", p.env.Name)
	}
	p.add(c)
	return c.OK
}

func (p *preflight) tools(ctx context.Context) bool {
	c := CheckResult{Name: CheckTools}
	all, err := p.env.Tools.List(ctx)
	if err != nil {
		c.problem, c.Detail = goal.DependencyNotAvailable, "the environment's tools could not be listed"
		p.add(c)
		return false
	}
	allowed := p.goal.Guardrails.AllowedTools
	unknown, denied := toolFaults(allowed, all, p.who.Roles)
	switch {
	case len(unknown) > 0:
		c.problem, c.Detail = goal.GoalInvalid, "the environment has no tools named "+quoted(unknown)
		c.errors = toolErrors(allowed, unknown)
	case len(denied) > 0:
		c.problem, c.Detail = goal.Forbidden, "not for the caller's roles: "+quoted(denied)
	default:
		c.OK = true
	}
	p.add(c)
	return c.OK
}

// toolErrors points at the names in allowed_tools that are unknown.
func toolErrors(allowed, unknown []string) []goal.FieldError {
	var out []goal.FieldError
	for i, name := range allowed {
		if slices.Contains(unknown, name) {
			at := pointer("guardrails", "allowed_tools", strconv.Itoa(i))
			out = append(out, goal.FieldError{Pointer: at, Detail: "the environment has no such tool"})
		}
	}
	return out
}

// probes asks every dependency at the same time and reports in their order.
// What a probe's error says about addresses stays inside.
func (p *preflight) probes(ctx context.Context) {
	if len(p.env.Probes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	failures := make([]error, len(p.env.Probes))
	var all sync.WaitGroup
	for i, probe := range p.env.Probes {
		all.Go(func() { failures[i] = probe.Check(ctx) })
	}
	all.Wait()
	for i, probe := range p.env.Probes {
		c := CheckResult{Name: CheckProbe(probe.Name()), OK: failures[i] == nil}
		if !c.OK {
			c.problem, c.Detail = goal.DependencyNotAvailable, probe.Name()+" does not answer"
		}
		p.add(c)
	}
}

func (p *preflight) balance(ctx context.Context) {
	if p.who.Balance == nil {
		return
	}
	c := CheckResult{Name: CheckBalance}
	switch left, err := p.who.Balance(ctx); {
	case err != nil:
		c.problem, c.Detail = goal.StoreUnavailable, "the token balance could not be read"
	case left <= 0:
		c.problem, c.Detail = goal.TokenBalanceExhausted, ErrBalance.Error()
	default:
		c.OK = true
	}
	p.add(c)
}

func (p *preflight) state(ctx context.Context, target map[string]any, pre goal.PreConditions) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	obs, err := p.env.State.Observe(ctx, union(Entities(target, pre.Match), GuardedEntities(target, pre)))
	if err != nil {
		p.add(CheckResult{Name: CheckState, Detail: "the state could not be read", problem: goal.DependencyNotAvailable})
		return
	}
	p.add(CheckResult{Name: CheckState, OK: true})
	checks := cutDifferences(Check(target, pre, obs))
	c := CheckResult{Name: CheckPreConditions, OK: len(checks) == 0, Differences: checks}
	if !c.OK {
		c.problem, c.Detail = goal.PreconditionMismatch, fmt.Sprintf("%d checks failed", len(checks))
	}
	p.add(c)
	left := Left(target, obs.State)
	p.add(CheckResult{Name: CheckTarget, OK: true, Differences: cutDifferences(left)})
	p.report.LeftTotal, p.report.Leaves = len(left), Leaves(target)
	p.report.StateHash = stateHash(obs.State, Entities(target, pre.Match))
}

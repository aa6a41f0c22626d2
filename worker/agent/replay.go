package agent

import (
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// position is where a task stands, derived from its journal alone: whoever
// folds the same events stands at the same place, and everything that a
// guardrail counts is counted here, so that no crash resets it.
type position struct {
	guard guard

	last      int // number of the last event
	started   bool
	startedAt time.Time
	deadline  time.Time
	attempt   int
	resumed   int // resumptions since the last step

	steps   []Step
	planned []goal.Action // rest of the last answer, to be run without asking
	usage   goal.Usage

	observed *goal.Observed // the last one
	expected version        // of the pre-conditioned entities
	mine     *goal.Outcome  // own call whose effect on expected awaits an observation

	prints []string // fingerprint of each finished step; see progress
	open   []string // parts of the one that awaits the state after it
}

// fold is the position after these events. Notes of others do not count, nor
// do events of an earlier submission that had the same task id.
func fold(events []goal.Event, seq uint64, g guard) *position {
	p := &position{guard: g}
	ours := false
	for _, e := range events {
		if !ofJournal(e) {
			continue
		}
		if e.Type == goal.TaskStarted {
			ours = e.Started.GoalSeq == seq
			*p = position{guard: g, last: p.last}
		}
		if ours {
			p.apply(e)
		}
		p.last = max(p.last, e.N)
	}
	return p
}

// ofJournal reports whether an event is one of ours and whole. What is not
// moves nothing: a note of others, or a type that a newer version writes.
func ofJournal(e goal.Event) bool {
	switch e.Type {
	case goal.TaskStarted, goal.TaskResumed:
		return e.Started != nil
	case goal.StepDecided:
		return e.Decision != nil
	case goal.StepRefused:
		return e.Refusal != nil
	case goal.StepCompleted:
		return e.Outcome != nil
	case goal.StateObserved:
		return e.Observed != nil
	case goal.KeyConflict, goal.TaskEnded:
	}
	return false
}

// apply moves the position over one event.
func (p *position) apply(e goal.Event) {
	p.last = e.N
	switch e.Type {
	case goal.TaskStarted:
		p.started, p.startedAt, p.deadline, p.attempt = true, e.Time, e.Started.Deadline, e.Started.Attempt
	case goal.TaskResumed:
		p.attempt = max(p.attempt, e.Started.Attempt)
		p.resumed++
	case goal.StepDecided:
		p.decided(e)
	case goal.StepRefused:
		p.refused(e)
	case goal.StepCompleted:
		p.completed(e)
	case goal.StateObserved, goal.KeyConflict, goal.TaskEnded:
	}
	if e.Observed != nil {
		p.saw(*e.Observed)
	}
}

// decided: one answer's actions are journaled with its first decision; those
// that follow take them off the list.
func (p *position) decided(e goal.Event) {
	p.resumed = 0
	if len(p.planned) > 0 {
		p.planned = p.planned[1:]
	} else {
		p.planned = e.Decision.Planned
	}
	p.steps = append(p.steps, Step{N: e.Step, Decision: e.Decision})
	p.usage.ToolCalls++
	p.spend(e.Step, e.Decision.Tokens, e.Decision.Estimated)
}

// refused: either a decision that was never made, or one whose call the
// toolbox did not send.
func (p *position) refused(e goal.Event) {
	p.resumed = 0
	p.planned = nil
	if in := p.inFlight(); in != nil && in.N == e.Step {
		p.usage.ToolCalls--
		in.Refusal = e.Refusal
	} else {
		p.steps = append(p.steps, Step{N: e.Step, Refusal: e.Refusal})
	}
	p.spend(e.Step, e.Refusal.Tokens, e.Refusal.Estimated)
	p.open = []string{"refused", e.Refusal.Kind, e.Refusal.Tool, exactArguments(e.Refusal.Action)}
}

func (p *position) completed(e goal.Event) {
	p.resumed = 0
	in := p.inFlight()
	if in == nil || in.N != e.Step {
		return
	}
	in.Outcome = e.Outcome
	if !e.Outcome.OK() {
		// The actions that were planned after this one counted on it.
		p.planned = nil
	}
	if in.Decision.Replay.Mutates() {
		p.mine = e.Outcome
	}
	p.open = []string{"called", in.Decision.Tool, exactArguments(in.Decision.Action), resultDigest(*e.Outcome)}
}

func (p *position) spend(step int, tokens int64, estimated bool) {
	p.usage.Steps = step
	p.usage.Tokens += tokens
	p.usage.Estimated = p.usage.Estimated || estimated
}

// saw takes in an observation: it closes the fingerprint of the step before
// it, and advances what is expected of the pre-conditioned entities over our
// own call. Until something was decided, each observation is a new start.
func (p *position) saw(o goal.Observed) {
	p.observed = &o
	if p.open != nil {
		p.prints = append(p.prints, goal.Digest(append(p.open, o.StateHash)...))
		p.open = nil
	}
	switch {
	case p.mine != nil:
		p.expected = p.guard.wrote(p.expected, *p.mine, journaled(o))
		p.mine = nil
	case len(p.steps) == 0:
		p.expected = journaled(o)
	}
}

// inFlight is the step whose call was sent, or was about to be, and whose
// outcome is not known; or nil.
func (p *position) inFlight() *Step {
	if len(p.steps) == 0 {
		return nil
	}
	last := &p.steps[len(p.steps)-1]
	if last.Decision == nil || last.Outcome != nil || last.Refusal != nil {
		return nil
	}
	return last
}

// lastStep is the last finished step, or the zero Step.
func (p *position) lastStep() Step {
	if len(p.steps) == 0 {
		return Step{}
	}
	return p.steps[len(p.steps)-1]
}

// effects lists the calls that took, or may have taken, effect.
func (p *position) effects() []goal.Effect {
	var out []goal.Effect
	for _, s := range p.steps {
		if s.Decision == nil || s.Refusal != nil || !s.Decision.Replay.Mutates() {
			continue
		}
		if effect := effectOf(s.Outcome); effect != "" {
			out = append(out, goal.Effect{Step: s.N, Tool: s.Decision.Tool, Outcome: effect})
		}
	}
	return out
}

// effectOf is "done", "unknown", or "" for none. An error that answers a
// repeated call says nothing about the first one.
func effectOf(out *goal.Outcome) string {
	if out == nil {
		return "unknown"
	}
	switch out.Kind {
	case goal.CallOK:
		return "done"
	case goal.CallToolError, goal.CallPrecondition:
		if !out.Repeated {
			return ""
		}
	case goal.CallUnavailable, goal.CallTimeout, goal.CallUnknown:
	}
	return "unknown"
}

// exactArguments is the one form of an action's arguments.
func exactArguments(a goal.Action) string {
	if exact, err := goal.Exact(a.Arguments); err == nil {
		return string(exact)
	}
	return string(a.Arguments)
}

// resultDigest tells outcomes apart by what the tool answered. Messages are
// left out: they name times and addresses.
func resultDigest(out goal.Outcome) string {
	if out.Digest != "" {
		return goal.Digest(string(out.Kind), out.Digest)
	}
	result := out.Result
	if exact, err := goal.Exact(result); err == nil {
		result = exact
	}
	return goal.Digest(string(out.Kind), string(result))
}

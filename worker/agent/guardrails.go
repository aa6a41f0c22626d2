package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The kinds of refusals: what a planner wanted and was not done.
const (
	RefusedNotAllowed  = "not_allowed"       // outside allowed_tools, or not for the caller's roles
	RefusedUnknownTool = "unknown_tool"      // the environment has no such tool
	RefusedArguments   = "invalid_arguments" // not an object, too large, or against the tool's schema
	RefusedNoAction    = "no_action"         // the planner saw nothing to do
	RefusedMaxTokens   = "max_tokens"        // the answer passed the limit, so it is not carried out
	RefusedNotSent     = "not_sent"          // the toolbox could not send the call
)

// insistence is how often in a row a planner may be refused for a tool that is
// not allowed, or for doing nothing, the last time included.
const insistence = 2

// maxPeriod is the longest cycle of steps that counts as standing still.
const maxPeriod = 3

// tripped is the ending that the journal demands before another step, or nil.
// It depends on the journal and the goal alone, so every worker that stands at
// this position comes to the same verdict.
func (p *position) tripped(g goal.Goal, left int) *ending {
	limits := g.Guardrails
	last := p.lastStep()
	if last.Outcome != nil && lost(*last.Decision, *last.Outcome) {
		return failed(goal.OutcomeUnknown, fmt.Sprintf("step %d: nobody knows whether %s took effect, and it must not be called again",
			last.N, last.Decision.Tool)).looking()
	}
	if p.refusals(RefusedNotAllowed) >= insistence {
		return trip(goal.GuardrailToolNotAllowed, limits.AllowedTools, last.Refusal.Tool, last.N)
	}
	if p.refusals(RefusedNoAction) >= insistence {
		return failed(goal.PlannerFailed, fmt.Sprintf("the planner sees nothing to do, %d differences are left", left)).looking()
	}
	if limits.MaxTokens > 0 && p.usage.Tokens > limits.MaxTokens {
		return trip(goal.GuardrailMaxTokens, limits.MaxTokens, p.usage.Tokens, last.N)
	}
	if n := p.errors(); n >= limits.ConsecutiveErrors() {
		end := trip(goal.GuardrailNoProgress, limits.ConsecutiveErrors(), n, last.N)
		end.detail = fmt.Sprintf("%d steps in a row failed", n)
		return end
	}
	if n, period := p.progress(); n >= repeats(limits) {
		end := trip(goal.GuardrailNoProgress, repeats(limits), n, last.N)
		end.detail = fmt.Sprintf("the same %s came %d times in a row and changed nothing", cycle(period), n)
		return end
	}
	if p.usage.Steps >= limits.MaxSteps {
		return trip(goal.GuardrailMaxSteps, limits.MaxSteps, p.usage.Steps+1, last.N)
	}
	return nil
}

// lost reports whether a call may have taken effect and may not be repeated.
func lost(d goal.Decision, out goal.Outcome) bool {
	return d.Replay == goal.ReplayUnsafe && (out.Kind == goal.CallTimeout || out.Kind == goal.CallUnknown)
}

// repeats is max_repeats; a repeat needs two.
func repeats(g goal.Guardrails) int { return max(g.Repeats(), 2) }

func cycle(period int) string {
	if period == 1 {
		return "step"
	}
	return fmt.Sprintf("cycle of %d steps", period)
}

// refusals counts the refusals of that kind in a row, back from the last step.
func (p *position) refusals(kind string) int {
	n := 0
	for _, s := range slices.Backward(p.steps) {
		if r := s.Refusal; r == nil || r.Kind != kind {
			break
		}
		n++
	}
	return n
}

// errors counts the failed steps in a row, back from the last. Refusals that
// have a rule of their own neither count nor break the row.
func (p *position) errors() int {
	n := 0
	for _, s := range slices.Backward(p.steps) {
		if s.Refusal != nil {
			switch s.Refusal.Kind {
			case RefusedNotAllowed, RefusedNoAction, RefusedMaxTokens:
				continue
			}
		}
		if s.Outcome != nil && s.Outcome.OK() {
			break
		}
		n++
	}
	return n
}

// progress says how often the last 1 to maxPeriod steps came in a row, with
// the same tool, arguments, result and state each time.
func (p *position) progress() (n, period int) {
	n, period = 0, 1
	for size := 1; size <= maxPeriod; size++ {
		if times := trailing(p.prints, size); times > n {
			n, period = times, size
		}
	}
	return n, period
}

// trailing counts how often the last size prints stand in a row at the end.
func trailing(prints []string, size int) int {
	if len(prints) < size {
		return 0
	}
	same := size
	for i := len(prints) - 1 - size; i >= 0 && prints[i] == prints[i+size]; i-- {
		same++
	}
	return same / size
}

// notice is what the planner must be told about its last step, or nothing.
func (p *position) notice(g goal.Goal, left int) string {
	last := p.lastStep()
	if r := last.Refusal; r != nil {
		switch r.Kind {
		case RefusedNotAllowed:
			return r.Message + " Asking once more for a tool that is not allowed ends the task."
		case RefusedNoAction:
			return fmt.Sprintf("No tool call was named, but %d differences are left. Name a tool call; doing nothing once more ends the task.", left)
		default:
			return r.Message
		}
	}
	if out := last.Outcome; out != nil && last.Decision.Replay.Mutates() && !out.OK() && effectOf(out) == "unknown" {
		return fmt.Sprintf("It is not known whether step %d took effect. Judge by the state before calling %s again.", last.N, last.Decision.Tool)
	}
	if n, period := p.progress(); n >= 2 {
		return fmt.Sprintf("The same %s came %d times in a row and changed nothing. After %d times the task ends: do something else.",
			cycle(period), n, repeats(g.Guardrails))
	}
	return ""
}

// notAllowed is what a planner is told about a tool outside the guardrails.
func notAllowed(tool string, allowed []ToolSpec) string {
	if len(allowed) == 0 {
		return fmt.Sprintf("The tool %q is not allowed; no tool is.", tool)
	}
	names := make([]string, len(allowed))
	for i, t := range allowed {
		names[i] = t.Name
	}
	return fmt.Sprintf("The tool %q is not allowed. Allowed: %s.", tool, shorten(strings.Join(names, ", "), 1024))
}

// timedOut is the end of a task whose deadline has passed.
func (r *run) timedOut() *ending {
	timeout := r.goal.Guardrails.Timeout()
	elapsed := r.now().Sub(r.deadline) + timeout
	return trip(goal.GuardrailTimeout, r.goal.Guardrails.TimeoutSeconds, int(max(elapsed, timeout)/time.Second), r.pos.usage.Steps)
}

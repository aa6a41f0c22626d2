package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits of what a journal entry or a result carries, in bytes.
const (
	maxArguments    = 128 << 10 // of one action
	maxPlanned      = 256 << 10 // of the further actions of one answer
	maxPlannerState = 128 << 10
	maxState        = 256 << 10 // of the observed state in a result
	maxValue        = 1 << 10   // of one value in a list of differences
	maxDifferences  = 64 << 10  // of such a list
	maxWhy          = 280       // characters
	maxMessage      = 2 << 10
)

// ending says how the task ends. It travels as an error through the loop.
type ending struct {
	status goal.State
	reason goal.Reason
	detail string
	trip   *goal.Trip
	checks []goal.Difference
	look   bool // the state is to be observed once more: reached is a success
	from   *goal.Problem
}

// Error implements error.
func (e *ending) Error() string { return "the task ends: " + string(e.reason) + " " + e.detail }

func failed(reason goal.Reason, detail string) *ending {
	return &ending{status: goal.Failed, reason: reason, detail: detail}
}

func (e *ending) looking() *ending {
	e.look = true
	return e
}

// trip is the end by a guardrail; the state is observed once more.
func trip(guardrail goal.Reason, limit, observed any, step int) *ending {
	e := failed(guardrail, fmt.Sprintf("limit %v, observed %v", limit, observed)).looking()
	e.trip = &goal.Trip{Guardrail: guardrail, Limit: limit, Observed: observed, Step: step}
	return e
}

func preconditionFailed(checks []goal.Difference, detail string) *ending {
	e := failed(goal.PreconditionFailed, detail)
	e.checks = checks
	return e
}

func reached() *ending {
	return &ending{status: goal.Succeeded, reason: goal.TargetStateReached}
}

func cancelled() *ending {
	return &ending{status: goal.Cancelled, reason: goal.CancelRequested}
}

// refusedSubmission is the end of a direct submission that was refused.
func refusedSubmission(p *goal.Problem) *ending {
	e := failed(p.Kind().Reason(), p.Detail)
	e.from, e.checks = p, p.Checks
	return e
}

// result is the record of the end, from the journal and the last observation.
func (r *run) result(e *ending) goal.Result {
	out := goal.Result{
		Version: goal.ResultVersion,
		TaskID:  r.task.Submission.TaskID, Tenant: r.task.Submission.Tenant, GoalSeq: r.task.Seq,
		Status: e.status, Reason: e.reason, Detail: shorten(e.detail, maxMessage), Trip: e.trip, Checks: cutDifferences(e.checks),
		Problem: e.from, Left: []goal.Difference{}, Usage: r.pos.usage,
		EndedAt: r.now().UTC(), Worker: r.task.Worker,
	}
	switch {
	case e.from != nil:
		out.HTTPStatus = e.from.Status // what a submission over HTTP would have been answered
	case e.reason == goal.PreconditionFailed:
		out.HTTPStatus = http.StatusPreconditionFailed
	}
	if e.status != goal.Succeeded {
		out.Effects = r.pos.effects()
	}
	if r.pos.started {
		at := r.pos.startedAt.UTC()
		out.StartedAt = &at
	}
	switch {
	case r.seen != nil:
		out.Left, out.LeftTotal, out.StateHash = r.seen.observed.Left, r.seen.observed.LeftTotal, r.seen.observed.StateHash
		if state := encode(project(r.seen.state, r.targetEntities)); len(state) <= maxState {
			out.State = state
		}
	case r.pos.observed != nil:
		out.Left, out.LeftTotal, out.StateHash = r.pos.observed.Left, r.pos.observed.LeftTotal, r.pos.observed.StateHash
	}
	return out
}

// cutDifferences is the list as it is journaled: at most MaxLeft, no value of
// more than maxValue bytes and not more than maxDifferences bytes in all.
func cutDifferences(all []goal.Difference) []goal.Difference {
	if all == nil {
		return nil
	}
	out := make([]goal.Difference, 0, min(len(all), goal.MaxLeft))
	size := 0
	for _, d := range all[:min(len(all), goal.MaxLeft)] {
		d.Want, d.Have = cutValue(d.Want), cutValue(d.Have)
		size += len(d.Pointer) + len(d.Want) + len(d.Have)
		if size > maxDifferences {
			break
		}
		out = append(out, d)
	}
	return out
}

// cutValue replaces a large value by a text that says how large it is.
func cutValue(v json.RawMessage) json.RawMessage {
	if len(v) <= maxValue {
		return v
	}
	return encode(fmt.Sprintf("(%d bytes, too many to show)", len(v)))
}

// shorten cuts s to at most n bytes, at the border of a character.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// firstCharacters cuts s to n characters.
func firstCharacters(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// permits reports whether one of the roles is among those that are needed;
// none needed: everybody may.
func permits(needed, roles []string) bool {
	return len(needed) == 0 || slices.ContainsFunc(needed, func(role string) bool { return slices.Contains(roles, role) })
}

// quoted is a list of names for a message.
func quoted(names []string) string {
	return shorten(`"`+strings.Join(names, `", "`)+`"`, maxMessage)
}

// digest is "sha256:<hex>" of bytes.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

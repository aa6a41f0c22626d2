package dashboard

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// meter is one guardrail: what is used of what there is.
type meter struct {
	Name    string
	Used    string
	Limit   string // empty: none
	Percent string // of the bar
	Full    bool
	Tripped bool
}

func newMeter(name string, used, limit int64, t goal.Task, reason goal.Reason) meter {
	m := meter{Name: name, Used: number(used), Tripped: t.Reason == reason}
	if limit > 0 {
		m.Limit, m.Full = number(limit), used >= limit
		m.Percent = percent(min(float64(used)/float64(limit)*most, most))
	}
	return m
}

func newMeters(t goal.Task, st story, now time.Time) []meter {
	g := t.Guardrails
	errs, same := st.inARow()
	out := []meter{
		newMeter("Steps", int64(t.Usage.Steps), int64(g.MaxSteps), t, goal.GuardrailMaxSteps),
		timeMeter(t, now),
		newMeter("Tokens", t.Usage.Tokens, g.MaxTokens, t, goal.GuardrailMaxTokens),
		newMeter("Errors in a row", int64(errs), int64(g.ConsecutiveErrors()), t, goal.GuardrailNoProgress),
		newMeter("Same call in a row", int64(same), int64(max(g.Repeats(), 2)), t, goal.GuardrailNoProgress),
	}
	if t.Reason == goal.GuardrailNoProgress { // one of the two; errors are looked at first
		out[3].Tripped, out[4].Tripped = out[3].Full, !out[3].Full
	}
	return out
}

func timeMeter(t goal.Task, now time.Time) meter {
	limit := t.Guardrails.Timeout()
	m := meter{Name: "Time", Used: "0 s", Limit: duration(limit), Percent: percent(0), Tripped: t.Reason == goal.GuardrailTimeout}
	if t.StartedAt == nil {
		return m
	}
	end := now
	if t.EndedAt != nil {
		end = *t.EndedAt
	}
	used := end.Sub(*t.StartedAt)
	m.Used, m.Full = duration(used), used >= limit
	m.Percent = percent(min(max(float64(used)/float64(limit)*most, 0), most))
	return m
}

// inARow counts the errors and the equal calls at the end of the journal.
func (st story) inARow() (errs, same int) {
	var last string
	for _, s := range st.Steps {
		if s.Outcome == nil && s.Refusal == nil {
			continue
		}
		if s.Bad() {
			errs++
		} else {
			errs = 0
		}
		this := s.Tool + "\x00" + string(s.Arguments)
		if s.Outcome != nil {
			this += "\x00" + string(s.Outcome.Result) + s.Outcome.Digest
		}
		if s.Observed != nil {
			this += "\x00" + s.Observed.StateHash
		}
		if this == last {
			same++
		} else {
			same, last = 1, this
		}
	}
	return errs, same
}

// condition is one demand on the state before the start.
type condition struct {
	Pointer string
	Want    string
	Have    string
	Mark    mark
}

// newConditions lists what was demanded. Which demands failed is known by their
// pointers; until the start the rest is unknown.
func newConditions(raw json.RawMessage, t goal.Task) ([]condition, []goal.Difference) {
	value, err := goal.Decode(raw)
	members, ok := value.(map[string]any)
	if err != nil || !ok {
		return nil, t.Checks
	}
	g := grower{}
	g.grow(members, "", 0)
	failed := map[string]goal.Difference{}
	for _, c := range t.Checks {
		failed[c.Pointer] = c
	}
	var out []condition
	for _, b := range g.out {
		if !b.Leaf {
			continue
		}
		c := condition{Pointer: b.Pointer, Want: b.Want, Mark: markDone}
		for _, at := range []string{b.Pointer, strings.TrimPrefix(b.Pointer, "/match"), "/pre_conditions" + b.Pointer} {
			if f, bad := failed[at]; bad {
				c.Mark, c.Have = markLeft, string(f.Have)
				delete(failed, at)
				break
			}
		}
		if c.Mark == markDone && t.StartedAt == nil {
			c.Mark = markUnknown
		}
		out = append(out, c)
	}
	var others []goal.Difference
	for _, c := range t.Checks {
		if _, rest := failed[c.Pointer]; rest {
			others = append(others, c)
		}
	}
	return out, others
}

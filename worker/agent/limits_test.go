package agent_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// TestJournalEntriesStaySmall: whatever a planner, a tool or the state says,
// an entry fits into the store and is valid JSON.
func TestJournalEntriesStaySmall(t *testing.T) {
	t.Parallel()
	target := map[string]any{}
	for i := range 200 {
		target[strconv.Itoa(i)] = strings.Repeat("x", 4000)
	}
	raw, err := json.Marshal(map[string]any{"a": target})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, string(raw), goal.Guardrails{MaxSteps: 3, MaxRepeats: 9})
	for id := range target {
		w.set("a", id, strings.Repeat("y", 4000))
	}
	huge := strings.Repeat("z", 1<<20)
	w.decide = func(agent.Situation) (agent.Answer, error) {
		big := put("b", "1", "1", strings.Repeat("n", 100_000))
		return agent.Answer{
			Actions: []goal.Action{big, big, big, big, {Tool: huge, Arguments: json.RawMessage(huge)}},
			Why:     strings.Repeat("é", 1000), State: json.RawMessage(`"` + huge + `"`),
		}, nil
	}
	w.call = func(agent.Call) (goal.Outcome, error) {
		return goal.Outcome{Kind: goal.CallOK, Result: json.RawMessage(huge), Message: huge}, nil
	}
	r := w.end(goal.GuardrailMaxSteps)
	for _, e := range w.events {
		if raw, err := goal.Marshal(e); err != nil || len(raw) > 600_000 {
			t.Errorf("event %s has %d bytes, error %v", e.Type, len(raw), err)
		}
	}
	d, out := w.events[2].Decision, w.events[3].Outcome
	if len(d.Planned) != 2 || len([]rune(d.Why)) != 280 || d.PlannerState != nil {
		t.Errorf("decision with %d planned, why of %d, state of %d", len(d.Planned), len([]rune(d.Why)), len(d.PlannerState))
	}
	if out.Result != nil || out.Size != len(huge)+2 || !strings.HasPrefix(out.Digest, "sha256:") {
		t.Errorf("outcome %d bytes, size %d, digest %s", len(out.Result), out.Size, out.Digest)
	}
	if len(r.Left) != 50 || r.LeftTotal != 200 || r.State != nil || r.StateHash == "" {
		t.Errorf("left %d of %d, state of %d bytes", len(r.Left), r.LeftTotal, len(r.State))
	}
}

// TestReusedTaskID: what an earlier submission with the same id left behind
// does not count.
func TestReusedTaskID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.end(goal.TargetStateReached)
	before := len(w.events)
	w.from = before
	w.set("orders", "W1", "open")
	w.accepted.Seq++
	r := w.end(goal.TargetStateReached)
	if first := w.events[before]; first.Type != goal.TaskStarted || first.N != before+1 || first.Started.Attempt != 1 {
		t.Errorf("first event is %+v", first)
	}
	if r.Usage.Steps != 1 || r.GoalSeq != w.accepted.Seq {
		t.Errorf("result %+v", r)
	}
}

// TestNotesAreNotJournal: what others record about a task changes nothing.
func TestNotesAreNotJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
	if !crashes(t, w, agent.AfterCall, 2) {
		t.Fatal("no crash")
	}
	task := agent.Task{Accepted: w.accepted, History: append(slices.Clip(w.events), goal.Event{N: 99, Type: goal.KeyConflict})}
	r, err := agent.Run(t.Context(), task, agent.Environment{State: w, Tools: w, Planner: planner{w}}, w, agent.Options{})
	if err != nil || r.Usage.Steps != 2 {
		t.Errorf("Run() = %+v, %v", r, err)
	}
	w.checkEffects(t)
}

func TestToolsThatChangedWhileACallWasInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*world)
		reason goal.Reason
	}{
		{"no longer for the roles", func(w *world) { w.tools[2].Roles = []string{"finance"} }, goal.PermissionDenied},
		{"gone", func(w *world) { w.tools = w.tools[:2] }, goal.PermissionDenied},
		{"unsafe by now", func(w *world) { w.tools[2].Replay = goal.ReplayUnsafe }, goal.OutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, took := range []bool{false, true} {
				w := newWorld(t, refund, goal.Guardrails{})
				at := agent.BeforeCall
				if took {
					at = agent.AfterCall
				}
				if !crashes(t, w, at, 1) {
					t.Fatal("no crash")
				}
				calls := len(w.calls)
				c.change(w)
				want := c.reason
				if took {
					want = goal.TargetStateReached // it was observed
				}
				r := w.end(want)
				if len(w.calls) != calls || !took && (len(r.Effects) != 1 || r.Effects[0].Outcome != "unknown") {
					t.Errorf("%d more calls, effects %+v", len(w.calls)-calls, r.Effects)
				}
			}
		})
	}
}

func BenchmarkRun(b *testing.B) {
	w := newWorld(b, refund, goal.Guardrails{})
	w.set("orders", "W1", "refunded")
	b.Run("already satisfied", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.events = nil
			w.end(goal.TargetStateReached)
		}
	})
	b.Run("one step", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.events, w.asked, w.calls = nil, nil, nil
			w.set("orders", "W1", "open")
			clear(w.answers)
			w.end(goal.TargetStateReached)
		}
	})
}

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// crash is what a hook throws to end an attempt where it stands.
type crash struct{ point agent.Point }

// crashes lets one attempt run into a crash at the n-th time it comes to the
// point ("" for any), and reports whether it came there.
func crashes(t *testing.T, w *world, at agent.Point, n int) (crashed bool) {
	t.Helper()
	w.opts.Hook = func(p agent.Point) {
		if at == "" || p == at {
			if n--; n == 0 {
				panic(crash{p})
			}
		}
	}
	defer func() {
		w.opts.Hook = nil
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
		}
	}()
	if _, err := w.run(t.Context()); err != nil {
		t.Fatalf("Run() error %v", err)
	}
	return false
}

// TestCrashAnywhere ends the process at every crash point there is, once, and
// lets another worker go on.
func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		world func(testing.TB) *world
	}{
		{"three steps", func(tb testing.TB) *world {
			tb.Helper()
			return newWorld(tb, `{"a":{"1":1,"2":2,"3":3}}`, goal.Guardrails{})
		}},
		{"one answer with three actions", func(tb testing.TB) *world {
			tb.Helper()
			w := newWorld(tb, `{"a":{"1":1,"2":2,"3":3}}`, goal.Guardrails{})
			w.decide = w.everything
			return w
		}},
		{"a refusal between", func(tb testing.TB) *world {
			tb.Helper()
			w := newWorld(tb, `{"a":{"1":1,"2":2}}`, goal.Guardrails{AllowedTools: []string{"put"}})
			w.decide = func(s agent.Situation) (agent.Answer, error) {
				if len(s.Steps) == 1 {
					return agent.Answer{Actions: []goal.Action{action("touch", "b", "1", "1", "")}, Tokens: 10}, nil
				}
				return w.reach(s)
			}
			return w
		}},
		{"pre-conditions", func(tb testing.TB) *world {
			tb.Helper()
			w := newWorld(tb, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"revisions":{"a/1":0,"a/2":0,"c/1":0}}`)
			return w
		}},
		{"pre-conditions without revisions", func(tb testing.TB) *world {
			tb.Helper()
			w := newWorld(tb, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
			w.revisions = nil
			w.set("c", "1", json.Number("5"))
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"c":{"1":5},"match":{"a":{"1":null}}}`)
			return w
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole := c.world(t)
			want := whole.end(goal.TargetStateReached)
			for n := 1; ; n++ {
				w := c.world(t)
				if !crashes(t, w, "", n) {
					break
				}
				got := w.end(goal.TargetStateReached)
				if got.Usage != want.Usage || got.StateHash != want.StateHash {
					t.Errorf("crash %d: usage %+v, want %+v; hash %s", n, got.Usage, want.Usage, got.StateHash)
				}
				w.checkEffects(t)
			}
		})
	}
}

// everything puts all differences right in one answer.
func (w *world) everything(s agent.Situation) (agent.Answer, error) {
	var all []goal.Action
	for _, d := range s.Left {
		all = append(all, w.put(d))
	}
	return agent.Answer{Actions: all, Tokens: 10}, nil
}

// checkEffects wants one effect for each journaled decision, and every call of
// a step to be the journaled one, letter by letter.
func (w *world) checkEffects(t rapid.TB) {
	t.Helper()
	decided := map[int]*goal.Decision{}
	for _, e := range w.events {
		if e.Decision == nil {
			continue
		}
		if decided[e.Step] != nil {
			t.Errorf("step %d was decided twice", e.Step)
		}
		decided[e.Step] = e.Decision
	}
	sent := map[int]int{}
	for _, c := range w.calls {
		d := decided[c.Step]
		if d == nil {
			t.Fatalf("step %d was called and never journaled", c.Step)
		}
		if c.Key != d.Key || string(c.Arguments) != string(d.Arguments) || c.Tool != d.Tool {
			t.Errorf("step %d was called as %+v, decided as %+v", c.Step, c, d)
		}
		if sent[c.Step]++; d.Replay == goal.ReplayUnsafe && sent[c.Step] > 1 {
			t.Errorf("step %d: an unsafe tool was called %d times", c.Step, sent[c.Step])
		}
	}
	seen := map[string]bool{}
	for _, key := range w.writes {
		if seen[key] {
			t.Errorf("the call with key %s took effect twice", key)
		}
		seen[key] = true
	}
}

// TestCrashWithAnUnsafeTool: whatever the point, it is called at most once,
// and the end is a success or says that nobody knows.
func TestCrashWithAnUnsafeTool(t *testing.T) {
	t.Parallel()
	build := func() *world {
		w := newWorld(t, `{"paid":{"W1":1}}`, goal.Guardrails{})
		w.decide = func(agent.Situation) (agent.Answer, error) {
			return agent.Answer{Actions: []goal.Action{action("charge", "paid", "W1", "0", "")}}, nil
		}
		return w
	}
	unknown := 0
	for n := 1; ; n++ {
		w := build()
		if !crashes(t, w, "", n) {
			break
		}
		charged := w.docs["paid"]["W1"] != nil
		r, err := w.run(t.Context())
		if err != nil {
			t.Fatalf("crash %d: %v", n, err)
		}
		inFlight := w.events[len(w.events)-1].Outcome != nil && w.events[len(w.events)-1].Outcome.Kind == goal.CallUnknown
		switch {
		case r.Reason == goal.TargetStateReached:
		case r.Reason == goal.OutcomeUnknown && inFlight && !charged:
			unknown++
			if len(r.Effects) != 1 || r.Effects[0].Outcome != "unknown" {
				t.Errorf("crash %d: effects %+v", n, r.Effects)
			}
		default:
			t.Errorf("crash %d: reason %s, charged %t, journal %v", n, r.Reason, charged, w.types())
		}
		w.checkEffects(t)
		again, err := w.run(t.Context())
		if err != nil || again.Reason != r.Reason {
			t.Errorf("crash %d: run again: %s %v, want %s", n, again.Reason, err, r.Reason)
		}
	}
	if unknown == 0 {
		t.Error("no crash came between journal and call")
	}
}

// TestAppendsThatFail: each append in turn is lost, or is stored and its answer
// lost.
func TestAppendsThatFail(t *testing.T) {
	t.Parallel()
	for _, stored := range []bool{false, true} {
		for n := 1; ; n++ {
			w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
			w.onAppend = func(i int, _ []goal.Event) (bool, error) {
				if i == n {
					return stored, goal.ErrUnavailable
				}
				return true, nil
			}
			_, err := w.run(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, goal.ErrUnavailable) {
				t.Fatalf("append %d: error %v", n, err)
			}
			r := w.end(goal.TargetStateReached)
			if r.Usage.Steps != 2 {
				t.Errorf("append %d (stored %t): usage %+v", n, stored, r.Usage)
			}
			w.checkEffects(t)
		}
	}
}

// TestCrashLoop: a task that ends its workers before any step does so only
// MaxAttempts times; one that makes steps may go on.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	t.Run("without a step", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		n := 0
		for crashes(t, w, agent.BeforeDecide, 1) {
			n++
		}
		if n != 21 {
			t.Errorf("%d attempts were made, want the first and 20 more", n)
		}
		looks := w.looks
		r := w.end(goal.WorkerCrashLoop)
		if w.looks != looks || r.LeftTotal != 1 {
			t.Errorf("%d looks at a state that may be what kills, left %d", w.looks-looks, r.LeftTotal)
		}
	})
	t.Run("in the first look", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		w.redelivered = true
		for i := 0; crashes(t, w, agent.BeforeObserve, 1); i++ {
			if i > 30 {
				t.Fatal("the crashes are not counted")
			}
		}
		w.end(goal.WorkerCrashLoop)
	})
	t.Run("with steps", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, `{"x":{"1":1}}`, goal.Guardrails{MaxSteps: 50})
		w.decide = func(s agent.Situation) (agent.Answer, error) {
			return agent.Answer{Actions: []goal.Action{put("a", "1", strconv.Itoa(len(s.Steps)), "")}}, nil
		}
		for crashes(t, w, agent.AfterJournalDecision, 1) {
		}
		if r := w.end(goal.GuardrailMaxSteps); r.Usage.Steps != 50 {
			t.Errorf("usage %+v", r.Usage)
		}
	})
}

// TestCrashLoopCountsFromTheLastEvent: a decision is progress, also when its
// outcome is not known yet.
func TestCrashLoopCountsFromTheLastEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	for range 15 {
		crashes(t, w, agent.BeforeDecide, 1)
	}
	crashes(t, w, agent.AfterJournalDecision, 1)
	for range 15 {
		crashes(t, w, agent.BeforeCall, 1)
	}
	w.end(goal.TargetStateReached)
}

// TestResumeJournalsWhatChanged: a state that is no nearer is news all the same.
func TestResumeJournalsWhatChanged(t *testing.T) {
	t.Parallel()
	for _, changed := range []bool{false, true} {
		w := newWorld(t, refund, goal.Guardrails{})
		crashes(t, w, agent.BeforeDecide, 1)
		before := len(w.events)
		if changed {
			w.set("orders", "W1", "open")
		}
		w.end(goal.TargetStateReached)
		if got := w.events[before+1].Type == goal.StateObserved; got != changed {
			t.Errorf("changed %t: journal %v", changed, w.types())
		}
	}
}

// TestRepeatedCallThatIsAnsweredOtherwise: an error says nothing about the
// sending before the crash.
func TestRepeatedCallThatIsAnsweredOtherwise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		out  goal.Outcome
		err  error
		kind goal.OutcomeKind
	}{
		{"tool error", goal.Outcome{Kind: goal.CallToolError}, nil, goal.CallToolError},
		{"pre-condition", goal.Outcome{Kind: goal.CallPrecondition}, nil, goal.CallPrecondition},
		{"arguments refused", goal.Outcome{}, &agent.ArgumentsError{Detail: "new schema"}, goal.CallUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, far, goal.Guardrails{MaxSteps: 1})
			w.decide = differently
			if !crashes(t, w, agent.AfterCall, 1) {
				t.Fatal("no crash")
			}
			w.call = func(agent.Call) (goal.Outcome, error) { return c.out, c.err }
			r := w.end(goal.GuardrailMaxSteps)
			last := w.events[len(w.events)-1]
			if last.Outcome == nil || last.Outcome.Kind != c.kind || !last.Outcome.Repeated {
				t.Errorf("last event %+v", last)
			}
			if len(r.Effects) != 1 || r.Effects[0].Outcome != "unknown" {
				t.Errorf("effects %+v", r.Effects)
			}
		})
	}
}

// TestCrashesProperty: for any goal, any planner and any crashes, there is one
// effect for each decision, and the end is that of a run without crashes.
func TestCrashesProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "planner")
		size := rapid.IntRange(1, 4).Draw(rt, "entities")
		target := map[string]any{}
		for i := range size {
			target[strconv.Itoa(i)] = i
		}
		raw, _ := json.Marshal(map[string]any{"a": target})
		limits := goal.Guardrails{
			MaxSteps:  rapid.IntRange(1, 10).Draw(rt, "max steps"),
			MaxTokens: int64(rapid.SampledFrom([]int{0, 25, 60}).Draw(rt, "max tokens")), AllowedTools: []string{"put", "get", "touch"},
		}
		build := func() *world {
			w := newWorld(t, string(raw), limits)
			w.decide = w.wild(seed)
			return w
		}
		want, err := build().run(t.Context())
		if err != nil {
			rt.Fatalf("whole run: %v", err)
		}
		w := build()
		for _, at := range rapid.SliceOfN(rapid.IntRange(1, 30), 0, 6).Draw(rt, "crashes") {
			crashes(t, w, "", at)
		}
		got, err := w.run(t.Context())
		if err != nil {
			rt.Fatalf("run: %v", err)
		}
		w.checkEffects(rt)
		if got.Reason != want.Reason || got.Usage != want.Usage || got.StateHash != want.StateHash || got.LeftTotal != want.LeftTotal {
			rt.Fatalf("with crashes: %s %+v left %d, want %s %+v left %d\n%s", got.Reason, got.Usage, got.LeftTotal,
				want.Reason, want.Usage, want.LeftTotal, strings.Join(w.lines(), "\n"))
		}
	})
}

// wild is a planner whose answers depend on the step alone, except for their
// wording: right ones, several at once, useless, forbidden and broken ones.
func (w *world) wild(seed uint64) func(agent.Situation) (agent.Answer, error) {
	return func(s agent.Situation) (agent.Answer, error) {
		random := rand.New(rand.NewPCG(seed, uint64(len(s.Steps)))) //nolint:gosec // a test's dice
		right := w.put(s.Left[random.IntN(len(s.Left))])
		answer := agent.Answer{Tokens: int64(random.IntN(20))}
		switch random.IntN(8) {
		case 0:
			answer.Actions = []goal.Action{action("charge", "a", "0", "1", "")}
		case 1:
			answer.Actions = []goal.Action{{Tool: "put", Malformed: "not JSON"}}
		case 2:
			answer.Actions = []goal.Action{action("get", "a", "0", "1", ""), right}
		case 3:
		case 4:
			answer, _ = w.everything(s)
		case 5:
			answer.Actions = []goal.Action{action("touch", "b", "0", strconv.Itoa(random.IntN(2)), "")}
		default:
			answer.Actions = []goal.Action{right}
		}
		return answer, nil
	}
}

// lines is the journal for a failure's message.
func (w *world) lines() []string {
	out := make([]string, len(w.events))
	for i, e := range w.events {
		raw, _ := json.Marshal(e)
		out[i] = string(raw)
	}
	return out
}

// FuzzHistory: no journal makes a worker panic, however it came to be.
func FuzzHistory(f *testing.F) {
	w := newWorld(f, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
	w.end(goal.TargetStateReached)
	whole, err := json.Marshal(w.events)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(`[{"n":1,"type":"task.started.v1"},{"n":2,"type":"step.completed.v1","step":1}]`))
	f.Add([]byte(`[{"n":1,"type":"task.started.v1","started":{"goal_seq":7}},{"type":"step.decided.v1","step":1,"decision":{"planned":[{}]}},{"type":"step.refused.v1","step":1,"refusal":{}}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var events []goal.Event
		if json.Unmarshal(raw, &events) != nil {
			return
		}
		w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
		task := agent.Task{Accepted: w.accepted, History: events}
		env := agent.Environment{State: w, Tools: w, Planner: wordless{w}}
		if _, err := agent.Run(t.Context(), task, env, discard{}, agent.Options{}); err != nil {
			t.Errorf("Run() error %v", err)
		}
	})
}

// discard is a journal that takes everything.
type discard struct{}

func (discard) Append(context.Context, ...goal.Event) error { return nil }

// wordless is the world's planner without its checks.
type wordless struct{ *world }

func (p wordless) Decide(_ context.Context, s agent.Situation) (agent.Answer, error) {
	return p.reach(s)
}

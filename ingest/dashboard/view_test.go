package dashboard

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestTree(t *testing.T) {
	t.Parallel()
	target := json.RawMessage(`{"b": {"x/y": 1, "e": {}, "list": [{"id": 1}]}, "a": null, "n": 12345678901234567890}`)
	left := []goal.Difference{{Pointer: "/b/x~1y", Want: json.RawMessage(`1`), Have: json.RawMessage(`2`)}, {Pointer: "/a", Want: json.RawMessage(`null`), Have: json.RawMessage(`0`)}}
	for _, row := range []struct {
		name         string
		left         []goal.Difference
		known, whole bool
		done         int
		marks        string // of a, b, b/e, b/list, b/x~1y, n
	}{
		{"nothing observed", nil, false, true, 0, "unknown unknown unknown unknown unknown unknown"},
		{"some left", left, true, true, 3, "left left done done left done"},
		{"nothing left", nil, true, true, 5, "done done done done done done"},
		{"list cut", left[:1], true, false, 0, "unknown left unknown unknown left unknown"},
	} {
		tr := newTree(target, row.left, row.known, row.whole)
		var marks []string
		for _, b := range tr.Branches {
			marks = append(marks, string(b.Mark))
		}
		if got := strings.Join(marks, " "); got != row.marks || tr.Done != row.done || tr.Of != 5 {
			t.Errorf("%s: %s, %d of %d", row.name, got, tr.Done, tr.Of)
		}
	}
	tr := newTree(target, left, true, true)
	if b := tr.Branches[5]; b.Want != "12345678901234567890" || b.Name != "n" {
		t.Errorf("number is shown as %+v", b)
	}
	if b := tr.Branches[4]; b.Pointer != "/b/x~1y" || b.Have != "2" || b.Depth != 1 {
		t.Errorf("branch %+v", b)
	}
	if got := newTree(json.RawMessage(`[1]`), nil, true, true); len(got.Branches) != 0 {
		t.Error("a target that is no object is drawn")
	}
	many := map[string]int{}
	for i := range maxBranches + 7 {
		many[strconv.Itoa(i)] = i
	}
	raw, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	if tr := newTree(raw, nil, true, true); len(tr.Branches) != maxBranches || tr.Cut != 7 || tr.Of != maxBranches+7 {
		t.Errorf("%d branches, %d cut, of %d", len(tr.Branches), tr.Cut, tr.Of)
	}
}

func TestWaterfall(t *testing.T) {
	t.Parallel()
	v := newTaskView(ended(snapshot("word"), "word"), at(5000))
	if len(v.Waterfall.Lanes) != 6 { // queue, refused, decided and repeated, taken over, failed, lost
		t.Fatalf("%d lanes", len(v.Waterfall.Lanes))
	}
	describe := func(l lane) string {
		var out []string
		for _, b := range l.Bars {
			out = append(out, strings.TrimSuffix(b.Class+"/"+b.Pattern, "/"))
		}
		return l.Kind + ": " + strings.Join(out, ", ")
	}
	want := []string{
		"queue: wait", "step: plan/cross", "step: gap, plan, lost, call bad/cross, call bad/cross, call/hatch", "resumed: wait",
		"step: gap, call bad/cross", "step: gap, lost",
	}
	for i, l := range v.Waterfall.Lanes {
		if got := describe(l); got != want[i] {
			t.Errorf("lane %d: %s, want %s", i, got, want[i])
		}
	}
	second := v.Steps[1]
	if len(second.Gained) != 1 || second.Verdict() != "ok" || second.KeyPrefix() != "abababababababab" {
		t.Errorf("step 2: %+v", second)
	}
	if third := v.Steps[2]; len(third.Lost) != 1 || third.Failure() != "word" {
		t.Errorf("step 3: %+v", third)
	}
	running := newTaskView(snapshot("word"), at(5000))
	if last := running.Steps[3]; !last.Flight || last.Verdict() != "in flight" || !last.To.Equal(at(5000)) {
		t.Errorf("step in flight: %+v", last)
	}
}

// TestWaterfallStaysOnItsAxis draws journals whose clocks disagree.
func TestWaterfallStaysOnItsAxis(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ms := rapid.IntRange(-5000, 600_000)
		draw := func(name string) time.Time { return at(ms.Draw(rt, name)) }
		s := goal.Snapshot{Accepted: goal.Accepted{At: from, Submission: goal.Submission{TaskID: taskA}}}
		n := 1
		if rapid.Bool().Draw(rt, "started") {
			s.Events = append(s.Events, goal.Event{N: n, Type: goal.TaskStarted, Time: draw("start"), Started: &goal.Started{Deadline: draw("deadline")}})
		}
		for i := range rapid.IntRange(0, 6).Draw(rt, "steps") {
			took := goal.Millis(time.Duration(ms.Draw(rt, "took")) * time.Millisecond)
			n += 3
			if rapid.Bool().Draw(rt, "refused") {
				s.Events = append(s.Events, goal.Event{N: n, Type: goal.StepRefused, Time: draw("refused"), Step: i + 1, Refusal: &goal.Refusal{Took: took}})
				continue
			}
			s.Events = append(s.Events, goal.Event{N: n, Type: goal.StepDecided, Time: draw("decided"), Step: i + 1, Decision: &goal.Decision{Took: took}})
			if rapid.Bool().Draw(rt, "resumed") {
				s.Events = append(s.Events, goal.Event{N: n + 1, Type: goal.TaskResumed, Time: draw("resumed"), Started: &goal.Started{}})
			}
			if rapid.Bool().Draw(rt, "completed") {
				s.Events = append(s.Events, goal.Event{N: n + 2, Type: goal.StepCompleted, Time: draw("completed"), Step: i + 1, Outcome: &goal.Outcome{
					Kind: goal.CallOK, Took: took, Attempts: rapid.IntRange(0, 99).Draw(rt, "attempts"), Repeated: rapid.Bool().Draw(rt, "repeated"),
				}})
			}
		}
		if rapid.Bool().Draw(rt, "ended") {
			s.Result = &goal.Result{Status: goal.Failed, EndedAt: draw("end")}
		}
		for _, l := range newTaskView(s, draw("now")).Waterfall.Lanes {
			for _, b := range l.Bars {
				x, err1 := strconv.ParseFloat(strings.TrimSuffix(b.X, "%"), 64)
				w, err2 := strconv.ParseFloat(strings.TrimSuffix(b.Width, "%"), 64)
				if err1 != nil || err2 != nil || math.IsNaN(x) || x < 0 || w <= 0 || x+w > 100.01 {
					rt.Fatalf("bar from %s, %s wide", b.X, b.Width)
				}
			}
		}
	})
}

func TestQueueIsCutShort(t *testing.T) {
	t.Parallel()
	s := ended(snapshot("word"), "word")
	s.At = from.Add(-time.Hour)
	v := newTaskView(s, at(5000))
	if !v.Waterfall.Cut || v.Waterfall.Lanes[0].Time != "1 h 00 min" || v.Waterfall.Lanes[0].Bars[0].Width != "20.000%" {
		t.Errorf("queue: %+v", v.Waterfall.Lanes[0])
	}
}

func TestMetersAndConditions(t *testing.T) {
	t.Parallel()
	v := newTaskView(ended(snapshot("word"), "word"), at(5000))
	want := []string{"Steps 4/9 false", "Time 1.30 s/1 min 00 s false", "Tokens 12/100 false", "Errors in a row 1/3 false", "Same call in a row 2/3 true"}
	for i, m := range v.Meters {
		if got := fmt.Sprintf("%s %s/%s %v", m.Name, m.Used, m.Limit, m.Tripped); got != want[i] {
			t.Errorf("meter %q, want %q", got, want[i])
		}
	}
	if len(v.Conditions) != 2 || v.Conditions[0].Mark != markDone || v.Conditions[1].Mark != markLeft || len(v.Others) != 1 {
		t.Errorf("conditions: %+v, others %+v", v.Conditions, v.Others)
	}
	queued := snapshot("word")
	queued.Events = nil
	if v := newTaskView(queued, at(10)); v.Conditions[0].Mark != markUnknown || v.Target.Known {
		t.Errorf("queued: %+v", v.Conditions)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "<1 ms", 12 * time.Millisecond: "12 ms", 1240 * time.Millisecond: "1.24 s", 59 * time.Second: "59.0 s", 125 * time.Second: "2 min 05 s",
		200 * time.Minute: "3 h 20 min", 72 * time.Hour: "3 days", -time.Second: "<1 ms",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%s) = %q, want %q", d, got, want)
		}
	}
	for v, want := range map[any]string{0: "0", 9999: "9999", 12345: "12\u2009345", int64(1234567): "1\u2009234\u2009567", "x": "x"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
	if got := words(goal.GuardrailMaxSteps); got != "Guardrail max steps" {
		t.Errorf("words = %q", got)
	}
	if got := shellQuote(`it's $HOME`); got != `'it'\''s $HOME'` {
		t.Errorf("quoted: %s", got)
	}
}

func FuzzClip(f *testing.F) {
	f.Add("héllo", 2)
	f.Add("\xff\u202e\x00", 9)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 0), 1000)
		got := clip(s, n)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\u202e\x00") {
			t.Errorf("clip(%q, %d) = %q", s, n, got)
		}
	})
}

func BenchmarkTaskPage(b *testing.B) {
	w := newWorld(&testing.T{})
	v := newTaskView(ended(snapshot("word"), "word"), at(5000))
	for b.Loop() {
		var n counter
		if err := w.d.pages.ExecuteTemplate(&n, "task-live", v); err != nil {
			b.Fatal(err)
		}
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

package planner_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

func decode(t interface{ Fatalf(string, ...any) }, raw string) map[string]any {
	v, err := goal.Decode([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return v.(map[string]any)
}

func TestBuiltinPlans(t *testing.T) {
	t.Parallel()
	rows := map[string]struct{ target, state, want string }{
		"member of an entity": {
			`{"orders":{"W1":{"status":"refunded"}}}`, `{"orders":{"W1":{"status":"paid","n":1}}}`,
			`state.merge {"collection":"orders","id":"W1","patch":{"status":"refunded"}}`,
		},
		"absent entity": {
			`{"orders":{"W1":{"a":{"b":1},"c":2}}}`, `{}`,
			`state.set {"collection":"orders","id":"W1","value":{"a":{"b":1},"c":2}}`,
		},
		"two entities, one call each": {
			`{"c":{"a":{"x":1,"y":2},"b":{"x":1}}}`, `{"c":{"a":{},"b":{}}}`,
			`state.merge {"collection":"c","id":"a","patch":{"x":1,"y":2}}; state.merge {"collection":"c","id":"b","patch":{"x":1}}`,
		},
		"root member":              {`{"version":9007199254740993}`, `{}`, `state.set {"collection":"version","value":9007199254740993}`},
		"remove an entity":         {`{"c":{"a":null}}`, `{"c":{"a":1}}`, `state.delete {"collection":"c","id":"a"}`},
		"remove a root member":     {`{"a":null}`, `{"a":1}`, `state.delete {"collection":"a"}`},
		"remove a member":          {`{"c":{"a":{"x":null}}}`, `{"c":{"a":{"x":1}}}`, `state.merge {"collection":"c","id":"a","patch":{"x":null}}`},
		"array whole":              {`{"c":{"a":{"l":[null,1]}}}`, `{"c":{"a":{"l":[1]}}}`, `state.merge {"collection":"c","id":"a","patch":{"l":[null,1]}}`},
		"empty object at the root": {`{"a":{}}`, `{}`, `state.set {"collection":"a","value":{}}`},
		"object of nulls":          {`{"c":{"a":{"x":null}}}`, `{"c":{"a":5}}`, `state.set {"collection":"c","id":"a","value":{}}`},
		"names with slashes":       {`{"c":{"a/b~":{"x/":1}}}`, `{"c":{"a/b~":{}}}`, `state.merge {"collection":"c","id":"a/b~","patch":{"x/":1}}`},
		"id is empty":              {`{"c":{"":1}}`, `{"c":{}}`, `state.merge {"collection":"c","patch":{"":1}}`},
		"nothing is left":          {`{"a":1}`, `{"a":1.0}`, ``},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := decode(t, row.state)
			left := agent.Left(decode(t, row.target), state)
			answer, err := planner.Builtin{}.Decide(t.Context(), agent.Situation{Left: left, State: state})
			if err != nil {
				t.Fatal(err)
			}
			calls := make([]string, 0, len(answer.Actions))
			for _, a := range answer.Actions {
				calls = append(calls, a.Tool+" "+string(a.Arguments))
			}
			if got := strings.Join(calls, "; "); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestBuiltinRefusesWhatIsNoPointer(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]goal.Difference{
		"pointer": {Pointer: "a", Want: json.RawMessage(`1`)},
		"root":    {Pointer: "", Want: json.RawMessage(`1`)},
		"want":    {Pointer: "/a", Want: json.RawMessage(`{`)},
	} {
		if _, err := planner.Plan([]goal.Difference{d}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Whatever the state is, the plan reaches the target: at once, or, where a
// collection first has to be made an object, with the second plan.
func TestBuiltinReaches(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		target := object(3).Filter(func(m map[string]any) bool { return len(m) > 0 }).Draw(t, "target")
		state := object(3).Draw(t, "state")
		reach(t, target, state)
	})
}

type fataler interface {
	Fatalf(format string, args ...any)
}

func reach(t fataler, target, state map[string]any) {
	for range 2 {
		actions, err := planner.Plan(agent.Left(target, state), state)
		if err != nil {
			t.Fatalf("plan for %v from %v: %v", target, state, err)
		}
		for _, a := range actions {
			if err := apply(state, a); err != nil {
				t.Fatalf("%s %s: %v", a.Tool, a.Arguments, err)
			}
		}
	}
	if left := agent.Left(target, state); len(left) > 0 {
		t.Fatalf("target %v, state %v, left %v", target, state, left)
	}
}

func FuzzBuiltinReaches(f *testing.F) {
	f.Add(`{"a":{"b":{"c":1,"d":null}}}`, `{"a":{"b":{"c":[1],"d":2}}}`)
	f.Add(`{"a":{"":{"":{}}}}`, `{"a":5}`)
	f.Fuzz(func(t *testing.T, rawTarget, rawState string) {
		target, err1 := goal.Decode([]byte(rawTarget))
		state, err2 := goal.Decode([]byte(rawState))
		want, ok1 := target.(map[string]any)
		have, ok2 := state.(map[string]any)
		if err1 != nil || err2 != nil || !ok1 || !ok2 || len(want) == 0 {
			t.Skip("not a goal")
		}
		reach(t, want, have)
	})
}

// apply is what the state tools do, on a plain tree.
func apply(state map[string]any, a goal.Action) error {
	var args struct {
		Collection   string
		ID           *string
		Value, Patch json.RawMessage
	}
	if err := json.Unmarshal(a.Arguments, &args); err != nil {
		return err
	}
	members, key := state, args.Collection
	if args.ID != nil {
		inner, ok := state[args.Collection].(map[string]any)
		if !ok {
			inner = map[string]any{}
			if a.Tool != "state.delete" {
				state[args.Collection] = inner
			}
		}
		members, key = inner, *args.ID
	}
	var current json.RawMessage
	if v, ok := members[key]; ok {
		current, _ = goal.Marshal(v)
	}
	var err error
	switch a.Tool {
	case "state.set":
		members[key], err = goal.Decode(args.Value)
	case "state.merge":
		var next json.RawMessage
		if next, err = tool.MergePatch(current, args.Patch); err == nil {
			members[key], err = goal.Decode(next)
		}
	case "state.delete":
		delete(members, key)
	default:
		err = fmt.Errorf("unexpected tool %s", a.Tool)
	}
	return err
}

// object generates JSON objects with few names, so that they overlap.
func object(depth int) *rapid.Generator[map[string]any] {
	names := rapid.SampledFrom([]string{"a", "b", "", "x/y", "~"})
	return rapid.MapOfN(names, value(depth-1), 0, 3)
}

func value(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil),
		rapid.SampledFrom([]any{true, "s", json.Number("1"), json.Number("1.0"), json.Number("9007199254740993"), []any{}, []any{nil}, map[string]any{}}),
	)
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) any { return object(depth).Draw(t, "object") }))
}

func TestScript(t *testing.T) {
	t.Parallel()
	script := planner.Script{{Tool: "a"}, {Tool: "b"}}
	var got []string
	for n := range 4 {
		answer, err := script.Decide(t.Context(), agent.Situation{Steps: make([]agent.Step, n)})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answer.Actions {
			got = append(got, a.Tool)
		}
	}
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
}

func BenchmarkPlan(b *testing.B) {
	target := map[string]any{}
	for i := range 50 {
		target[fmt.Sprint("c", i)] = map[string]any{"a": map[string]any{"x": json.Number("1")}}
	}
	left := agent.Left(target, nil)
	for b.Loop() {
		if _, err := planner.Plan(left, maps.Clone(target)); err != nil {
			b.Fatal(err)
		}
	}
}

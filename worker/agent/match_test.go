package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// tree decodes an object.
func tree(tb testing.TB, raw string) map[string]any {
	tb.Helper()
	v, err := goal.Decode([]byte(raw))
	if err != nil {
		tb.Fatalf("Decode(%s): %v", raw, err)
	}
	members, ok := v.(map[string]any)
	if !ok {
		tb.Fatalf("%s is not an object", raw)
	}
	return members
}

func TestLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, target, state, left string }{
		// The contract's table.
		{"sum of floats", `{"n":0.3}`, `{"n":0.30000000000000004}`, `/n`},
		{"beyond 2^53", `{"n":9007199254740993}`, `{"n":9007199254740992}`, `/n`},
		{"null and absent", `{"x":null}`, `{}`, ``},
		{"null and zero", `{"x":null}`, `{"x":0}`, `/x`},
		{"null inside an array", `{"a":[null]}`, `{"a":[]}`, `/a`},
		{"element with another member", `{"a":[{"id":1}]}`, `{"a":[{"id":1,"x":2}]}`, `/a`},
		{"empty object and object", `{"a":{}}`, `{"a":{"b":1}}`, ``},
		{"empty object and absent", `{"a":{}}`, `{}`, `/a`},
		// What else users ask.
		{"members that are not named", `{"plan":"pro"}`, `{"plan":"pro","seats":3}`, ``},
		{"deep and absent", `{"a":{"b":1}}`, `{"a":{}}`, `/a/b`},
		{"deep and all absent", `{"a":{"b":1}}`, `{}`, `/a/b`},
		{"integer as decimal", `{"n":12}`, `{"n":12.0}`, ``},
		{"integer with exponent", `{"n":12}`, `{"n":1.2e1}`, ``},
		{"integer and text", `{"n":12}`, `{"n":"12"}`, `/n`},
		{"negative zero", `{"n":0}`, `{"n":-0}`, ``},
		{"tiny and zero", `{"n":0}`, `{"n":1e-400}`, `/n`},
		{"null and null", `{"x":null}`, `{"x":null}`, ``},
		{"null and false", `{"x":null}`, `{"x":false}`, `/x`},
		{"null and empty text", `{"x":null}`, `{"x":""}`, `/x`},
		{"null and empty array", `{"x":null}`, `{"x":[]}`, `/x`},
		{"null and empty object", `{"x":null}`, `{"x":{}}`, `/x`},
		{"array in another order", `{"a":[1,2]}`, `{"a":[2,1]}`, `/a`},
		{"array with more", `{"a":[1,2]}`, `{"a":[1,2,3]}`, `/a`},
		{"array with numbers spelt otherwise", `{"a":[1,{"b":2}]}`, `{"a":[1.0,{"b":2e0}]}`, ``},
		{"empty array and more", `{"a":[]}`, `{"a":[1]}`, `/a`},
		{"empty array and absent", `{"a":[]}`, `{}`, `/a`},
		{"empty object and text", `{"a":{}}`, `{"a":"b"}`, `/a`},
		{"empty object and null", `{"a":{}}`, `{"a":null}`, `/a`},
		{"false and absent", `{"a":false}`, `{}`, `/a`},
		{"empty text and absent", `{"a":""}`, `{}`, `/a`},
		{"upper and lower case", `{"a":"Pro"}`, `{"a":"pro"}`, `/a`},
		{"composed and combining", `{"a":"é"}`, `{"a":"e\u0301"}`, `/a`},
		{"last member wanted away", `{"orders":{"W1":null}}`, `{}`, ``},
		{"member wanted away of null", `{"orders":{"W1":null}}`, `{"orders":null}`, ``},
		{"member wanted away of a number", `{"orders":{"W1":null}}`, `{"orders":5}`, `/orders`},
		{"object wanted in an absent one", `{"a":{"b":{}}}`, `{}`, `/a/b`},
		{"object instead of a number", `{"a":{"b":1,"c":null}}`, `{"a":5}`, `/a/b`},
		{"number instead of an object", `{"a":5}`, `{"a":{"b":1}}`, `/a`},
		{"pointer escapes", `{"a/b":{"m~n":1,"":2}}`, `{}`, `/a~1b/ /a~1b/m~0n`},
		{"sorted", `{"b":1,"a":{"d":1,"c":1}}`, `{}`, `/a/c /a/d /b`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := agent.Left(tree(t, c.target), tree(t, c.state))
			var at []string
			for _, d := range got {
				at = append(at, d.Pointer)
			}
			if strings.Join(at, " ") != c.left {
				t.Errorf("Left(%s, %s) is at %q, want %q", c.target, c.state, at, c.left)
			}
		})
	}
}

func TestLeftShowsWhatItWantsAndHas(t *testing.T) {
	t.Parallel()
	got, err := goal.Marshal(agent.Left(
		tree(t, `{"a":{"n":9007199254740993,"gone":null,"new":"<é>","list":[1]}}`),
		tree(t, `{"a":{"n":9007199254740992,"gone":{"x":1},"list":null}}`)))
	want := `[{"pointer":"/a/gone","want":null,"have":{"x":1}},{"pointer":"/a/list","want":[1],"have":null},` +
		`{"pointer":"/a/n","want":9007199254740993,"have":9007199254740992},{"pointer":"/a/new","want":"<é>"}]`
	if err != nil || string(got) != want {
		t.Errorf("Left() is\n%s, want\n%s", got, want)
	}
}

func TestLeaves(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]int{
		`{}`: 0, `{"a":1}`: 1, `{"a":{}}`: 1, `{"a":{"b":null,"c":[1,2]},"d":{"e":{"f":1}}}`: 3,
	} {
		if got := agent.Leaves(tree(t, raw)); got != want {
			t.Errorf("Leaves(%s) = %d, want %d", raw, got, want)
		}
	}
}

// values draws trees as goal.Decode makes them.
func values(depth int) *rapid.Generator[any] {
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](false),
		rapid.Map(rapid.SampledFrom([]string{"", "a", "é", "12"}), func(s string) any { return s }),
		rapid.Map(rapid.SampledFrom([]string{"0", "-0", "1", "1.0", "10e-1", "9007199254740993", "1e400"}), func(s string) any { return json.Number(s) }),
	)
	if depth == 0 {
		return scalar
	}
	return rapid.OneOf(scalar,
		rapid.Map(rapid.SliceOfN(values(depth-1), 0, 3), func(l []any) any { return l }),
		rapid.Map(objects(depth-1), func(m map[string]any) any { return m }))
}

func objects(depth int) *rapid.Generator[map[string]any] {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "", "a/b", "~"}), values(depth), 0, 4)
}

// merge puts a target into a state, as RFC 7386 puts a patch.
func merge(target, state map[string]any) map[string]any {
	out := maps.Clone(state)
	if out == nil {
		out = map[string]any{}
	}
	for name, want := range target {
		switch want := want.(type) {
		case nil:
			delete(out, name)
		case map[string]any:
			have, _ := out[name].(map[string]any)
			out[name] = merge(want, have)
		default:
			out[name] = want
		}
	}
	return out
}

func TestLeftProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		target, state := objects(3).Draw(t, "target"), objects(3).Draw(t, "state")
		if left := agent.Left(target, merge(target, state)); len(left) != 0 {
			t.Fatalf("the target merged into the state leaves %+v", left)
		}
		left := agent.Left(target, state)
		if n := agent.Leaves(target); len(left) > n {
			t.Fatalf("%d differences, %d leaves", len(left), n)
		}
		pointers := map[string]bool{}
		for _, d := range left {
			if pointers[d.Pointer] {
				t.Fatalf("%q is listed twice", d.Pointer)
			}
			pointers[d.Pointer] = true
		}
		// What is left is complete: putting it right reaches the target.
		for _, d := range left {
			want, err := goal.Decode(d.Want)
			if err != nil {
				continue // a number beyond a float64, which goal.Decode refuses
			}
			state = merge(nest(d.Pointer, want), state)
		}
		if !strings.Contains(fmt.Sprint(target), "1e400") {
			if rest := agent.Left(target, state); len(rest) != 0 {
				t.Fatalf("after putting %+v right, %+v is left", left, rest)
			}
		}
	})
}

// nest is the tree that has the value at the pointer.
func nest(pointer string, value any) map[string]any {
	tokens := strings.Split(pointer, "/")[1:]
	slices.Reverse(tokens)
	for _, t := range tokens {
		value = map[string]any{strings.NewReplacer("~1", "/", "~0", "~").Replace(t): value}
	}
	return value.(map[string]any) //nolint:forcetypeassert // a pointer of Left has a token
}

func FuzzLeft(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,null]}}`), []byte(`{"a":{"b":[1.0,null],"c":{}}}`))
	f.Add([]byte(`{"a":{}}`), []byte(`{"a":5}`))
	f.Fuzz(func(t *testing.T, target, state []byte) {
		want, err := goal.Decode(target)
		if err != nil {
			return
		}
		have, err := goal.Decode(state)
		if err != nil {
			return
		}
		wanted, ok := want.(map[string]any)
		if !ok {
			return
		}
		found, _ := have.(map[string]any)
		agent.Left(wanted, found)
		if left := agent.Left(wanted, merge(wanted, found)); len(left) != 0 {
			t.Errorf("merged, %+v is left", left)
		}
	})
}

func TestEntities(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, target, want string }{
		{"members of a root member", `{"orders":{"W2":{"status":"x"},"W1":null}}`, `orders/W1 orders/W2`},
		{"scalar, array, null, empty object", `{"n":1,"list":[1],"gone":null,"any":{}}`, `any gone list n`},
		{"id with a slash", `{"a":{"b/c":1}}`, `a/b/c`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var keys []string
			for _, e := range agent.Entities(tree(t, c.target)) {
				keys = append(keys, e.Key())
				if agent.EntityOf(e.Key()) != e {
					t.Errorf("EntityOf(%q) is not %+v", e.Key(), e)
				}
			}
			if got := strings.Join(keys, " "); got != c.want {
				t.Errorf("Entities(%s) = %s, want %s", c.target, got, c.want)
			}
		})
	}
}

func BenchmarkLeft(b *testing.B) {
	target, state := map[string]any{}, map[string]any{}
	for i := range 10 {
		members, found := map[string]any{}, map[string]any{}
		for j := range 5 {
			members[strconv.Itoa(j)] = json.Number(strconv.Itoa(j))
			found[strconv.Itoa(j)] = json.Number(strconv.Itoa(j))
		}
		target[strconv.Itoa(i)], state[strconv.Itoa(i)] = members, found
	}
	state["0"] = map[string]any{"1": json.Number("7")}
	b.ReportAllocs()
	for b.Loop() {
		agent.Left(target, state)
	}
}

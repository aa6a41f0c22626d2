package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestYAML(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ in, want string }{
		"scalars":            {"a: 1\nb: x\nc: true\nd: ~\ne: null\nf:\n", `{"a":1,"b":"x","c":true,"d":null,"e":null,"f":null}`},
		"exact integer":      {"n: 9007199254740993", `{"n":9007199254740993}`},
		"beyond 64 bits":     {"n: 123456789012345678901234567890", `{"n":123456789012345678901234567890}`},
		"exact fraction":     {"n: 0.10000000000000000001", `{"n":0.10000000000000000001}`},
		"trailing zero":      {"n: 1.50", `{"n":1.50}`},
		"hexadecimal":        {"n: 0x10", `{"n":16}`},
		"quoted number":      {`n: "12"`, `{"n":"12"}`},
		"number as a key":    {"12: x", `{"12":"x"}`},
		"sequence":           {"- 1\n- [2, {a: b}]\n", `[1,[2,{"a":"b"}]]`},
		"anchor and alias":   {"a: &x {n: 1}\nb: *x\n", `{"a":{"n":1},"b":{"n":1}}`},
		"literal block":      {"a: |\n  one\n  two\n", `{"a":"one\ntwo\n"}`},
		"folded block":       {"a: >-\n  one\n  two\n", `{"a":"one two"}`},
		"no HTML escaping":   {"a: <b>&c", `{"a":"<b>&c"}`},
		"comments":           {"# x\na: 1 # y\n", `{"a":1}`},
		"plain text date":    {"a: 2026-01-02", `{"a":"2026-01-02"}`},
		"empty object":       {"a: {}\nb: []", `{"a":{},"b":[]}`},
		"a document's start": {"---\na: 1\n", `{"a":1}`},
	} {
		got, err := yamlToJSON([]byte(row.in))
		if err != nil || string(got) != row.want {
			t.Errorf("%s: yamlToJSON(%q) = %s, %v; want %s", name, row.in, got, err, row.want)
		}
	}
}

func TestYAMLThatIsRefused(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("a: &a [x,x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c < 'i'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [%s*%c]\n", c, c, strings.Repeat("*"+string(c-1)+",", 9), c-1)
	}
	for name, row := range map[string]struct{ in, want string }{
		"duplicate":     {"a: 1\na: 2\n", "already defined"},
		"merge key":     {"a: &a {b: 1}\nc:\n  <<: *a\n", "merge keys"},
		"tag":           {"a: !!binary aGk=\n", "!!binary"},
		"not a number":  {"a: .nan\n", "no meaning in JSON"},
		"infinity":      {"a: .inf\n", "no meaning in JSON"},
		"unknown alias": {"a: *b\n", "*b"},
		"two documents": {"a: 1\n---\nb: 2\n", "one YAML document"},
		"nothing":       {"# nothing\n", "one YAML document"},
		"syntax":        {"a: [1\n", "sequence end"},
		"alias bomb":    {bomb.String(), "larger than"},
	} {
		got, err := yamlToJSON([]byte(row.in))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: yamlToJSON = %.60s, %v; want an error with %q", name, got, err, row.want)
		}
	}
}

// TestJSONIsYAML: a goal in JSON that is read as YAML says the same.
func TestJSONIsYAML(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[a-zA-Z0-9 .:_#{}\[\],&*!|>'"%@-]{0,12}`)
	number := rapid.Custom(func(t *rapid.T) any {
		return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?`).Draw(t, "number"))
	})
	scalar := rapid.OneOf(number, rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Just[any](nil))
	tree := rapid.Custom(func(t *rapid.T) any {
		inner := rapid.MapOfN(text, scalar, 0, 4).Draw(t, "object")
		return map[string]any{"o": inner, "list": rapid.SliceOfN(scalar, 0, 4).Draw(t, "list"), "s": scalar.Draw(t, "scalar")}
	})
	rapid.Check(t, func(t *rapid.T) {
		raw, err := goal.Marshal(tree.Draw(t, "tree"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := yamlToJSON(raw)
		if err != nil {
			t.Fatalf("yamlToJSON(%s): %v", raw, err)
		}
		a, errA := goal.Fingerprint(raw)
		b, errB := goal.Fingerprint(got)
		if errA != nil || errB != nil || a != b {
			t.Fatalf("yamlToJSON(%s) = %s", raw, got)
		}
	})
}

// FuzzYAML: whatever is read, what comes out is JSON.
func FuzzYAML(f *testing.F) {
	f.Add([]byte("a: &x [1, 0x1f, .5, ~]\nb: *x\n"))
	f.Add([]byte("goal: {intent: |\n  x\n}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := yamlToJSON(raw)
		if err == nil && !json.Valid(out) {
			t.Errorf("yamlToJSON(%q) = %q", raw, out)
		}
	})
}

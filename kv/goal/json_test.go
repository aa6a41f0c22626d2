package goal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in, pointer, detail string
		offset                    int64
	}{
		{"nothing", "", "", "empty", 0},
		{"white space", " \n", "", "empty", 0},
		{"byte order mark", "\uFEFF{}", "", "byte order mark", 0},
		{"UTF-16", "{\x00}\x00", "", "invalid character", 1},
		{"member given twice", `{"a":1,"a":1}`, "/a", "twice", 7},
		{"member given twice, escaped", `{"x":{"a/b":1,"\u0061/b":2}}`, "/x/a~1b", "twice", 14},
		{"invalid UTF-8", "[\"\xff\"]", "/0", "UTF-8", 2},
		{"encoded surrogate", "[\"\xed\xa0\x80\"]", "/0", "UTF-8", 2},
		{"lone surrogate", `{"a":"\ud800"}`, "/a", "surrogate pair", 6},
		{"reversed surrogates", `["\udc00\ud800"]`, "/0", "surrogate pair", 2},
		{"trailing data", `{} {}`, "", "more after", 2},
		{"trailing text", "{}x", "", "more after", 2},
		{"overflow", `{"a":[0,{"b":1e309}]}`, "/a/1/b", "too large", 18},
		{"negative overflow", `-1e309`, "", "too large", 6},
		{"overflow without an exponent", "[1" + strings.Repeat("0", 309) + "]", "/0", "too large", 311},
		{"truncated", `{"a":`, "/a", "ends before", 5},
		{"control character", "[\"\n\"]", "/0", "invalid character", 2},
		{"comment", "[1/**/]", "", "invalid character", 2},
		{"too deep", strings.Repeat("[", 101) + strings.Repeat("]", 101), strings.Repeat("/0", 100), "100 deep", 101},
		{"far too deep", strings.Repeat("[", 1<<18), strings.Repeat("/0", 100), "100 deep", 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := goal.Decode([]byte(c.in))
			at, ok := errors.AsType[*goal.SyntaxError](err)
			if !ok {
				t.Fatalf("Decode(%.60q) = %v, want a SyntaxError", c.in, err)
			}
			if at.Pointer != c.pointer || at.Offset != c.offset || !strings.Contains(at.Detail, c.detail) {
				t.Errorf("Decode(%.60q) = %q at %q, byte %d; want %q at %q, byte %d", c.in, at.Detail, at.Pointer, at.Offset, c.detail, c.pointer, c.offset)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		want     any
	}{
		{"null", "null", nil},
		{"scalar with white space", " true\n", true},
		{"number as it is written", "[1.0, 1e-400, 9007199254740993]", []any{json.Number("1.0"), json.Number("1e-400"), json.Number("9007199254740993")}},
		{"largest float", "1.7976931348623157e308", json.Number("1.7976931348623157e308")},
		{"rounds down to the largest float", "1.79769313486231580e308", json.Number("1.79769313486231580e308")},
		{"zero with a huge exponent", "0e99999", json.Number("0e99999")},
		{"surrogate pair", `"\ud83d\ude02"`, "😂"},
		{"noncharacter and NUL", `"\uffff\u0000"`, "\uffff\x00"},
		{"names differ in form only", "{\"\u00e9\":1,\"e\u0301\":2}", map[string]any{"\u00e9": json.Number("1"), "e\u0301": json.Number("2")}},
		{"empty ones", `{"":{},"a":[]}`, map[string]any{"": map[string]any{}, "a": []any{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := goal.Decode([]byte(c.in))
			if err != nil || !goal.Equal(got, c.want) {
				t.Errorf("Decode(%s) = %v, %v, want %v", c.in, got, err, c.want)
			}
		})
	}
	deep := strings.Repeat(`{"a":`, 99) + "[]" + strings.Repeat("}", 99)
	if _, err := goal.Decode([]byte(deep)); err != nil {
		t.Errorf("Decode(nested 100 deep) = %v", err)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, a, b string
		want       bool
	}{
		{"numbers by value", `{"n":12}`, `{"n":1.20e1}`, true},
		{"numbers exactly", `9007199254740993`, `9007199254740992`, false},
		{"order of members", `{"a":1,"b":2}`, `{"b":2,"a":1}`, true},
		{"other member", `{"a":null}`, `{"b":null}`, false},
		{"null is not absent", `{"a":null}`, `{}`, false},
		{"order of elements", `[1,2]`, `[2,1]`, false},
		{"shorter array", `[1]`, `[1,1]`, false},
		{"string is not a number", `"12"`, `12`, false},
		{"number is not a string", `12`, `"12"`, false},
		{"true is not null", `true`, `null`, false},
		{"null", `null`, `null`, true},
		{"object is not an array", `{}`, `[]`, false},
		{"array is not null", `[]`, `null`, false},
		{"null is not an object", `null`, `{}`, false},
		{"composed is not decomposed", "\"\u00e9\"", "\"e\u0301\"", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, errA := goal.Decode([]byte(c.a))
			b, errB := goal.Decode([]byte(c.b))
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if got := goal.Equal(a, b); got != c.want {
				t.Errorf("Equal(%s, %s) = %t, want %t", c.a, c.b, got, c.want)
			}
		})
	}
}

// Any spelling of a tree decodes to the tree, and Marshal writes one of them.
func TestDecodeReadsWhatWasMeant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tree := anyTree(t, 4)
		raw := spelling(t, tree)
		got, err := goal.Decode(raw)
		if err != nil || !goal.Equal(got, tree) {
			t.Fatalf("Decode(%q) = %v, %v, want %v", raw, got, err, tree)
		}
		written, err := goal.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		if got, err = goal.Decode(written); err != nil || !goal.Equal(got, tree) {
			t.Fatalf("Decode(Marshal(%v)) = %v, %v", tree, got, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		benchGoal, `{"a":[1,-0.0,1e-400,{"b":null}],"\u0061":"\ud83d\ude02"}`, "[\"\xff\"]", `["\udc00\ud800"]`, "\uFEFF{}", "[1e309]",
		strings.Repeat("[", 101), "{\"\u00e9\":1,\"e\u0301\":2}", "null\n", "{}{}", "[1 2]", "[01]", "[tr ue]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		tree, err := goal.Decode(raw)
		if !bytes.Equal(raw, before) {
			t.Fatal("Decode changed its input")
		}
		if err != nil {
			at, ok := errors.AsType[*goal.SyntaxError](err)
			if !ok || at.Offset < 0 || at.Offset > int64(len(raw)) || !utf8.ValidString(at.Detail) || !utf8.ValidString(at.Pointer) || tree != nil {
				t.Fatalf("Decode = %v, %#v", tree, err)
			}
			return
		}
		if !json.Valid(raw) || !utf8.Valid(raw) {
			t.Fatal("Decode took what is not JSON")
		}
		exact, err := goal.Exact(raw)
		if err != nil {
			t.Fatal(err)
		}
		again, err := goal.Decode(exact)
		if err != nil || !goal.Equal(tree, again) {
			t.Fatalf("Decode(Exact) = %v, %v, want %v", again, err, tree)
		}
		if twice, err := goal.Exact(exact); err != nil || !bytes.Equal(twice, exact) {
			t.Fatalf("Exact(%s) = %s, %v", exact, twice, err)
		}
		one, err1 := goal.Fingerprint(raw)
		two, err2 := goal.Fingerprint(exact)
		if err1 != nil || err2 != nil || one != two {
			t.Fatalf("fingerprints %s, %v and %s, %v", one, err1, two, err2)
		}
	})
}

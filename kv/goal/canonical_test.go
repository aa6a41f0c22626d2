package goal_test

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestCanonicalOfficialVectors(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"arrays", "french", "structures", "unicode", "values", "weird"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := bytes.TrimRight(shared(t, "vectors/jcs-output/"+name+".json"), "\n")
			got, err := goal.Canonical(shared(t, "vectors/jcs-input/"+name+".json"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("Canonical(%s) = %s, %v, want %s", name, got, err, want)
			}
		})
	}
}

// Lines of "bits of the float64 in hex,text that ECMAScript prints".
func TestCanonicalECMAScriptNumbers(t *testing.T) {
	t.Parallel()
	lines := bufio.NewScanner(bytes.NewReader(shared(t, "vectors/es6-head-1000.txt")))
	n := 0
	for ; lines.Scan(); n++ {
		bits, want, _ := strings.Cut(lines.Text(), ",")
		u, err := strconv.ParseUint(bits, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		f := math.Float64frombits(u)
		for _, format := range []byte{'e', 'f', 'g'} {
			in := strconv.FormatFloat(f, format, -1, 64)
			if got, err := goal.Canonical([]byte(in)); err != nil || string(got) != want {
				t.Fatalf("line %d: Canonical(%s) = %s, %v, want %s", n+1, in, got, err, want)
			}
		}
	}
	if lines.Err() != nil || n != 1000 {
		t.Fatalf("read %d lines, %v", n, lines.Err())
	}
}

// The appendix of RFC 8785, and what is known to be hard.
func TestCanonicalNumbers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"-0":                      "0",
		"-0.0e5":                  "0",
		"5e-324":                  "5e-324",
		"-1.7976931348623157e308": "-1.7976931348623157e+308",
		"9007199254740993":        "9007199254740992",
		"295147905179352830000":   "295147905179352830000",
		"999999999999999900000":   "999999999999999900000",
		"1e21":                    "1e+21",
		"1e23":                    "1e+23",
		"9.999999999999997e-7":    "9.999999999999997e-7",
		"0.000001":                "0.000001",
		"1424953923781206.25":     "1424953923781206.2",
		"1e-400":                  "0",
		"333333333.33333329":      "333333333.3333333",
		"123456789012345":         "123456789012345",
		"1230":                    "1230",
		"10e-1":                   "1",
	} {
		if got, err := goal.Canonical([]byte(in)); err != nil || string(got) != want {
			t.Errorf("Canonical(%s) = %s, %v, want %s", in, got, err, want)
		}
	}
}

// hostile is one entry of hostile-results.txt.
type hostile struct{ name, in, answer string }

// hostileInputs reads the entries: a line `H name | in="…"` and one line for each
// implementation, of which the one that follows RFC 8785 most closely counts.
func hostileInputs(t *testing.T) []hostile {
	t.Helper()
	var out []hostile
	lines := bufio.NewScanner(bytes.NewReader(shared(t, "vectors/hostile-results.txt")))
	for lines.Scan() {
		line := lines.Text()
		if head, ok := strings.CutPrefix(line, "H "); ok {
			name, quoted, ok := strings.Cut(head, " | in=")
			in, err := strconv.Unquote(quoted)
			if !ok || err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			out = append(out, hostile{name: name, in: in})
		} else if answer, ok := strings.CutPrefix(strings.TrimSpace(line), "go-json-experiment v1.27.2"); ok {
			out[len(out)-1].answer = strings.TrimSpace(answer)
		}
	}
	if err := lines.Err(); err != nil || len(out) == 0 {
		t.Fatalf("read %d inputs, %v", len(out), err)
	}
	return out
}

func TestCanonicalHostileInputs(t *testing.T) {
	t.Parallel()
	for _, c := range hostileInputs(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := goal.Canonical([]byte(c.in))
			// That implementation clamps overflow to the largest number; we refuse it.
			if strings.HasPrefix(c.answer, "REJECT") || strings.Contains(c.answer, "e+308") {
				if err == nil {
					t.Errorf("Canonical(%q) = %s, want a refusal", c.in, got)
				}
				return
			}
			want, unquoteErr := strconv.Unquote(c.answer)
			if unquoteErr != nil {
				t.Fatalf("%q: %v", c.answer, unquoteErr)
			}
			if err != nil || string(got) != want {
				t.Errorf("Canonical(%q) = %s, %v, want %s", c.in, got, err, want)
			}
		})
	}
}

func TestExactKeepsNumbersApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`[1,1.0,1e0,-0]`, `[1.0,1,10e-1,0]`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`1e-400`, `0`, false},
		{`1e-400`, `10e-401`, true},
		{`[1,2]`, `[2,1]`, false},
		{`{"a":null}`, `{}`, false},
		{`"1"`, `1`, false},
		{"\"\u00e9\"", "\"e\u0301\"", false},
		{`null`, `{}`, false},
	} {
		one, err1 := goal.Fingerprint([]byte(c.a))
		two, err2 := goal.Fingerprint([]byte(c.b))
		if err1 != nil || err2 != nil || (one == two) != c.same {
			t.Errorf("Fingerprint of %s and %s: the same = %t, %v, %v, want %t", c.a, c.b, one == two, err1, err2, c.same)
		}
	}
}

func TestCanonicalFormsRefuseWhatDecodeRefuses(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"a":1,"a":2}`)
	_, err1 := goal.Canonical(raw)
	_, err2 := goal.Exact(raw)
	_, err3 := goal.Fingerprint(raw)
	for _, err := range []error{err1, err2, err3} {
		if _, ok := errors.AsType[*goal.SyntaxError](err); !ok {
			t.Errorf("got %v, want a SyntaxError", err)
		}
	}
}

// The fingerprint does not see order, white space and spelling; the canonical
// forms are their own canonical forms.
func TestFingerprintIsOfTheMeaning(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tree := anyTree(t, 4)
		a, b := spelling(t, tree), spelling(t, tree)
		one, err1 := goal.Fingerprint(a)
		two, err2 := goal.Fingerprint(b)
		if err1 != nil || err2 != nil || one != two {
			t.Fatalf("Fingerprint(%q) = %s, %v; Fingerprint(%q) = %s, %v", a, one, err1, b, two, err2)
		}
		canonical, err := goal.Canonical(a)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := goal.Canonical(b); err != nil || !bytes.Equal(other, canonical) {
			t.Fatalf("Canonical(%q) = %q, %v, want %q", b, other, err, canonical)
		}
		if again, err := goal.Canonical(canonical); err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("Canonical(%q) = %q, %v", canonical, again, err)
		}
		if oracle, err := jcs.Transform(a); err != nil || !bytes.Equal(oracle, canonical) {
			t.Fatalf("Canonical(%q) = %q, want %q, %v", a, canonical, oracle, err)
		}
	})
}

// FuzzCanonical compares with an independent implementation of RFC 8785.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{benchGoal, `{"דּ":1,"😀":2,"€":3,"":4}`, `["\u0000\u001f\b\f\n\r\t\u2028<>&\/"]`, "1e23", "[1e-400,-0]", "[1e309]", "[\"\xff\"]", "{}x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := goal.Canonical(raw)
		want, oracle := jcs.Transform(raw)
		if at, ok := errors.AsType[*goal.SyntaxError](err); ok && strings.Contains(at.Detail, "deep") {
			return // our limit
		}
		if (err == nil) != (oracle == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("Canonical(%q) = %q, %v, want %q, %v", raw, got, err, want, oracle)
		}
	})
}

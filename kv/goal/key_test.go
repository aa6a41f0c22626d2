package goal_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestTaskID(t *testing.T) {
	t.Parallel()
	var preimage []byte
	for _, part := range []string{"acme", "order-42"} {
		preimage = binary.BigEndian.AppendUint64(preimage, uint64(len(part)))
		preimage = append(preimage, part...)
	}
	sum := sha256.Sum256(preimage)
	want := "tsk_" + hex.EncodeToString(sum[:16])
	if got := goal.TaskID("acme", "order-42"); got != want || len(got) != 36 {
		t.Errorf("TaskID = %s, want %s", got, want)
	}
	if goal.TaskID("a", "bc") == goal.TaskID("ab", "c") {
		t.Error("the border between tenant and key does not count")
	}
	if goal.TaskID("a", "K") == goal.TaskID("a", "k") {
		t.Error("the key's case does not count")
	}
}

func TestDigestSeparatesItsParts(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"b", "a"}, {"a\x00\x00\x00\x00\x00\x00\x00\x01b"}} {
		d := goal.Digest(parts...)
		if other, ok := seen[d]; ok {
			t.Errorf("Digest(%q) = Digest(%q)", parts, other)
		}
		if len(d) != 64 || strings.ToLower(d) != d {
			t.Errorf("Digest(%q) = %s, want 64 lower-case hex digits", parts, d)
		}
		seen[d] = parts
	}
}

// keyVector is one entry of key-vectors.json.
type keyVector struct {
	Name, Session, Tool, PayloadIn, Canonical, Preimage, Key, Note string
	Step                                                           int
}

func keyVectors(t *testing.T) map[string]keyVector {
	t.Helper()
	var list []keyVector
	if err := json.Unmarshal(shared(t, "vectors/key-vectors.json"), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]keyVector{}
	for _, v := range list {
		out[v.Name] = v
	}
	return out
}

func TestToolCallKeyVectors(t *testing.T) {
	t.Parallel()
	for name, v := range keyVectors(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := goal.Canonical([]byte(v.PayloadIn)); err != nil || string(got) != v.Canonical {
				t.Errorf("Canonical(%s) = %s, %v, want %s", v.PayloadIn, got, err, v.Canonical)
			}
			key, err := goal.ToolCallKey(v.Session, v.Step, v.Tool, []byte(v.PayloadIn))
			if strings.Contains(v.Session+v.Tool, ":") {
				if err == nil {
					t.Errorf("ToolCallKey(%q, %d, %q) = %s, want a refusal", v.Session, v.Step, v.Tool, key)
				}
				key, err = goal.JoinedKey(v.Session, v.Step, v.Tool, []byte(v.PayloadIn))
			}
			if err != nil || key != v.Key {
				t.Errorf("key of %s = %s, %v, want %s", name, key, err, v.Key)
			}
		})
	}
}

// The notes of the vectors: what must be equal, what must differ, and the two
// collisions that the charset and the exact fingerprint exist for.
func TestToolCallKeyVectorNotes(t *testing.T) {
	t.Parallel()
	vectors := keyVectors(t)
	for name, v := range vectors {
		if other, ok := strings.CutPrefix(v.Note, "must equal "); ok && vectors[other].Key != v.Key {
			t.Errorf("%s and %s differ", name, other)
		}
		if _, other, ok := strings.Cut(v.Note, "must DIFFER from "); ok && vectors[other].Key == v.Key {
			t.Errorf("%s and %s are equal", name, other)
		}
	}
	one, two := vectors["bigint-rounds-1"], vectors["bigint-rounds-2"]
	a, errA := goal.Fingerprint([]byte(one.PayloadIn))
	b, errB := goal.Fingerprint([]byte(two.PayloadIn))
	if errA != nil || errB != nil || one.Key != two.Key || a == b {
		t.Errorf("rounded integers: keys %s and %s, fingerprints %s and %s, %v, %v; want one key and two fingerprints", one.Key, two.Key, a, b, errA, errB)
	}
	if c, d := vectors["delimiter-collision-1"], vectors["delimiter-collision-2"]; c.Key != d.Key {
		t.Error("the delimiter collision is none")
	}
}

func TestToolCallKeyRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", goal.MaxKeyToken)
	if _, err := goal.ToolCallKey(long, 0, "A.b_c~d-9", []byte("{}")); err != nil {
		t.Errorf("the longest session: %v", err)
	}
	for _, c := range []struct {
		name, session, tool, payload string
		step                         int
	}{
		{"empty session", "", "t", "{}", 1},
		{"empty tool", "s", "", "{}", 1},
		{"long session", long + "x", "t", "{}", 1},
		{"long tool", "s", long + "x", "{}", 1},
		{"colon", "s:1", "t", "{}", 1},
		{"space", "s", "a b", "{}", 1},
		{"not ASCII", "s", "é", "{}", 1},
		{"negative step", "s", "t", "{}", -1},
		{"payload", "s", "t", `{"a":1,"a":2}`, 1},
		{"no payload", "s", "t", ``, 1},
		{"overflow", "s", "t", `1e309`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if key, err := goal.ToolCallKey(c.session, c.step, c.tool, []byte(c.payload)); err == nil {
				t.Errorf("ToolCallKey(%.20q, %d, %.20q, %s) = %s, want a refusal", c.session, c.step, c.tool, c.payload, key)
			}
		})
	}
	_, err := goal.ToolCallKey("s", 1, "t", []byte("{"))
	if _, ok := errors.AsType[*goal.SyntaxError](err); !ok {
		t.Errorf("a malformed payload is %v, want a SyntaxError", err)
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", goal.MaxKey)
	for _, c := range []struct{ name, line, want string }{
		{"bare", `k`, "k"},
		{"quoted", `"k"`, "k"},
		{"UUID", `8e03978e-40d5-43e8-bc93-6894a57f9324`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{"base64", `abc+/==`, "abc+/=="},
		{"single quotes belong to a bare key", `'k'`, "'k'"},
		{"case", `Kk`, "Kk"},
		{"white space around", " \t k\t", "k"},
		{"escaped quote", `"a\"b"`, `a"b`},
		{"escaped backslash", `"a\\b"`, `a\b`},
		{"characters that only a quoted key has", `"a b,c;d"`, "a b,c;d"},
		{"parameter", `"k";v=1`, "k"},
		{"parameters of every type", `"k";a;b=?1; c="x\"y";d=:aGk=:;e=tok/en;*f=-1.5;g=@1;h=%"f%c3%bc"`, "k"},
		{"longest", long, long},
		{"longest quoted", `"` + long + `"`, long},
		{"longest with escapes", `"` + strings.Repeat(`\"`, goal.MaxKey) + `"`, strings.Repeat(`"`, goal.MaxKey)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got, p := goal.ParseKey([]string{c.line}); p != nil || got != c.want {
				t.Errorf("ParseKey(%q) = %q, %v, want %q", c.line, got, p, c.want)
			}
		})
	}
}

func TestParseKeyRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", goal.MaxKey+1)
	for _, c := range []struct {
		name  string
		lines []string
		want  goal.ProblemType
	}{
		{"no line", nil, goal.KeyMissing},
		{"empty line", []string{""}, goal.KeyMissing},
		{"white space", []string{" \t"}, goal.KeyMissing},
		{"two lines", []string{"k", "k"}, goal.KeyMalformed},
		{"two keys in a line", []string{"k, k2"}, goal.KeyMalformed},
		{"empty string", []string{`""`}, goal.KeyMalformed},
		{"not closed", []string{`"k`}, goal.KeyMalformed},
		{"only a quote", []string{`"`}, goal.KeyMalformed},
		{"ends with a backslash", []string{`"k\`}, goal.KeyMalformed},
		{"other escape", []string{`"a\n"`}, goal.KeyMalformed},
		{"quote inside", []string{`k"k`}, goal.KeyMalformed},
		{"backslash", []string{`k\k`}, goal.KeyMalformed},
		{"bare with parameter", []string{`k;v=1`}, goal.KeyMalformed},
		{"space inside", []string{`k k`}, goal.KeyMalformed},
		{"tab inside quotes", []string{"\"a\tb\""}, goal.KeyMalformed},
		{"NUL", []string{"a\x00b"}, goal.KeyMalformed},
		{"DEL", []string{"a\x7f"}, goal.KeyMalformed},
		{"not ASCII", []string{"é"}, goal.KeyMalformed},
		{"not ASCII, quoted", []string{`"é"`}, goal.KeyMalformed},
		{"text after the string", []string{`"k"k`}, goal.KeyMalformed},
		{"list of strings", []string{`"k", "l"`}, goal.KeyMalformed},
		{"space before the semicolon", []string{`"k" ;v`}, goal.KeyMalformed},
		{"parameter without a name", []string{`"k";`}, goal.KeyMalformed},
		{"parameter without a value", []string{`"k";v=`}, goal.KeyMalformed},
		{"name in upper case", []string{`"k";V`}, goal.KeyMalformed},
		{"name begins with a digit", []string{`"k";1v`}, goal.KeyMalformed},
		{"parameter's string is not closed", []string{`"k";v="x`}, goal.KeyMalformed},
		{"text after a parameter", []string{`"k";v="x"y`}, goal.KeyMalformed},
		{"too long", []string{long}, goal.KeyMalformed},
		{"too long, quoted", []string{`"` + long + `"`}, goal.KeyMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key, p := goal.ParseKey(c.lines)
			if p == nil || p.Kind() != c.want || p.Status != 400 || key != "" {
				t.Fatalf("ParseKey(%.40q) = %q, %v, want %s", c.lines, key, p, c.want)
			}
			for _, line := range c.lines {
				if len(line) > 8 && strings.Contains(p.Detail, line) {
					t.Errorf("the problem repeats the key: %s", p.Detail)
				}
			}
		})
	}
}

// quoteKey is the RFC 9651 string of a key.
func quoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

func TestParseKeyReadsEveryQuotedKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[ -~]{1,255}`).Draw(t, "key")
		if got, p := goal.ParseKey([]string{quoteKey(key)}); p != nil || got != key {
			t.Fatalf("ParseKey(%q) = %q, %v", quoteKey(key), got, p)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"k", `"k"`, `"a\"b";v=1`, `"k";a;b="c"`, "a,b", `"`, `"\`, " k ", `"k";v=%"x"`, "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, p := goal.ParseKey([]string{line})
		if (p == nil) != (key != "") {
			t.Fatalf("ParseKey(%q) = %q, %v", line, key, p)
		}
		if p != nil {
			return
		}
		for i := range len(key) {
			if key[i] < 0x20 || key[i] > 0x7E {
				t.Fatalf("ParseKey(%q) = %q", line, key)
			}
		}
		if again, p := goal.ParseKey([]string{quoteKey(key)}); p != nil || again != key || len(key) > goal.MaxKey {
			t.Fatalf("the quoted spelling of %q is %q, %v", key, again, p)
		}
	})
}

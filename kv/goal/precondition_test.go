package goal_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const someHash = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

func TestParsePreConditions(t *testing.T) {
	t.Parallel()
	p, err := goal.ParsePreConditions(json.RawMessage(`{
		"state_hash": "` + someHash + `", "etag": "\"v7\"",
		"revisions": {"orders/W1": 7, "orders/a/b": 0, "o/big": 18446744073709551615},
		"match": {"orders": {"W1": {"status": "open"}}}, "account_version": 12, "nothing": null}`))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case p.StateHash != someHash, p.ETag != `"v7"`, p.Empty():
	case len(p.Revisions) != 3, p.Revisions["orders/W1"] != 7, p.Revisions["o/big"] != 1<<64-1:
	case !goal.Equal(p.Match, map[string]any{"orders": map[string]any{"W1": map[string]any{"status": "open"}}}):
	case !goal.Equal(p.Root, map[string]any{"account_version": json.Number("12"), "nothing": nil}):
	default:
		return
	}
	t.Errorf("ParsePreConditions = %+v", p)
}

func TestNoPreConditions(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "null", "{}", `{"revisions":{},"match":{}}`} {
		if p, err := goal.ParsePreConditions(json.RawMessage(raw)); err != nil || !p.Empty() {
			t.Errorf("ParsePreConditions(%q) = %+v, %v, want none", raw, p, err)
		}
	}
}

func TestParsePreConditionsNamesThePlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, raw, want string }{
		{"not an object", `[]`, ": must be an object"},
		{"not JSON", `{"a":1,"a":2}`, "twice at /a"},
		{"hash is a number", `{"state_hash":1}`, "/state_hash: must be sha256:"},
		{"hash in upper case", `{"state_hash":"` + strings.ToUpper(someHash) + `"}`, "/state_hash: must be"},
		{"hash too short", `{"state_hash":"sha256:00"}`, "/state_hash: must be"},
		{"etag", `{"etag":null}`, "/etag: must be"},
		{"empty etag", `{"etag":""}`, "/etag: must be"},
		{"revisions", `{"revisions":[]}`, "/revisions: must be an object"},
		{"revision is a string", `{"revisions":{"a/b":"1"}}`, "/revisions/a~1b: must be a revision number"},
		{"revision is a fraction", `{"revisions":{"a/b":0.5}}`, "/revisions/a~1b: must be a revision number"},
		{"revision is negative", `{"revisions":{"a/b":-1}}`, "/revisions/a~1b: must be a revision number"},
		{"revision beyond uint64", `{"revisions":{"a/b":1e20}}`, "/revisions/a~1b: must be a revision number"},
		{"entity without an id", `{"revisions":{"a/":1}}`, "/revisions/a~1: is not the name of an entity"},
		{"entity without a collection", `{"revisions":{"/b":1}}`, "/revisions/~1b: is not the name of an entity"},
		{"match", `{"match":null}`, "/match: must be an object"},
		{"reserved name", `{"match":{"a":{"$b":1}}}`, "/match/a/$b: begins with $"},
		{"the first of several", `{"match":1,"etag":1,"$x":1}`, "/$x: begins with $"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, err := goal.ParsePreConditions(json.RawMessage(c.raw)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ParsePreConditions(%s): %v, want %q", c.raw, err, c.want)
			}
		})
	}
}

func TestStateHash(t *testing.T) {
	t.Parallel()
	if got, err := goal.StateHash(map[string]any{}); err != nil || got != someHash {
		t.Errorf("StateHash({}) = %s, %v, want %s", got, err, someHash)
	}
	one, err1 := goal.StateHash(map[string]any{"a": json.Number("1.0"), "b": []any{nil, true, "x"}})
	two, err2 := goal.StateHash(map[string]any{"b": []any{nil, true, "x"}, "a": json.Number("1")})
	if err1 != nil || err2 != nil || one != two {
		t.Errorf("StateHash of equal trees: %s, %v and %s, %v", one, err1, two, err2)
	}
	for name, tree := range map[string]any{
		"not a tree": map[string]any{"a": 1}, "overflow": json.Number("1e309"), "no number": json.Number("x"),
		"invalid UTF-8": []any{"\xff"}, "invalid UTF-8 in a name": map[string]any{"\xff": nil},
	} {
		if got, err := goal.StateHash(tree); err == nil {
			t.Errorf("StateHash(%s) = %s, want an error", name, got)
		}
	}
}

package goal_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The example of the public contract, section 1.
const contractGoal = `{
  "goal": { "intent": "Refund order W2378156", "target_state": { "orders": { "W2378156": { "status": "refunded" } } } },
  "guardrails": { "max_steps": 12, "timeout_seconds": 120, "allowed_tools": ["orders.get", "orders.refund"] },
  "pre_conditions": { "account_version": 12 },
  "environment": "shop",
  "context": { "ticket": "T-88" },
  "webhook_url": "https://example.com/hooks/goals"
}`

func TestParseGoal(t *testing.T) {
	t.Parallel()
	g, fingerprint, p := goal.ParseGoal([]byte(contractGoal))
	if p != nil {
		t.Fatal(p)
	}
	want := goal.Goal{
		Objective: goal.Objective{
			Intent:      "Refund order W2378156",
			TargetState: json.RawMessage(`{ "orders": { "W2378156": { "status": "refunded" } } }`),
		},
		Guardrails:    goal.Guardrails{MaxSteps: 12, TimeoutSeconds: 120, AllowedTools: []string{"orders.get", "orders.refund"}},
		PreConditions: json.RawMessage(`{ "account_version": 12 }`),
		Environment:   "shop",
		Context:       json.RawMessage(`{ "ticket": "T-88" }`),
		WebhookURL:    "https://example.com/hooks/goals",
	}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("ParseGoal = %+v, want %+v", g, want)
	}
	if whole, err := goal.Fingerprint([]byte(contractGoal)); err != nil || fingerprint != whole {
		t.Errorf("fingerprint %s, want that of the payload, %s, %v", fingerprint, whole, err)
	}
}

// short is a goal with that guardrail and further members of the root.
func short(guardrail, more string) string {
	return `{"goal":{"intent":"Refund","target_state":{"a":1}},"guardrails":{"max_steps":1,"timeout_seconds":10` + guardrail + `}` + more + `}`
}

func TestParseGoalTakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		check      func(goal.Goal) bool
	}{
		{"no optional member", short("", ""), func(g goal.Goal) bool {
			return g.EnvironmentName() == "default" && g.Guardrails.AllowedTools == nil && g.Guardrails.Allows("x") && g.Guardrails.Repeats() == 3 && g.Guardrails.ConsecutiveErrors() == 3
		}},
		{"no tools", short(`,"allowed_tools":[]`, ""), func(g goal.Goal) bool { return g.Guardrails.AllowedTools != nil && !g.Guardrails.Allows("x") }},
		{"integers in other spellings", `{"guardrails":{"max_steps":1e1,"timeout_seconds":12.0},"goal":{"target_state":{"a":1},"intent":"Refund"}}`, func(g goal.Goal) bool {
			return g.Guardrails.MaxSteps == 10 && g.Guardrails.TimeoutSeconds == 12
		}},
		{"limits", short(`,"max_tokens":9007199254740991,"max_repeats":50,"max_consecutive_errors":1`, ""), func(g goal.Goal) bool {
			return g.Guardrails.MaxTokens == 1<<53-1 && g.Guardrails.Repeats() == 50 && g.Guardrails.ConsecutiveErrors() == 1
		}},
		{"intent counts characters", strings.Replace(short("", ""), "Refund", "€€€€😀", 1), func(g goal.Goal) bool { return g.Objective.Intent == "€€€€😀" }},
		{"$ inside an array is data", strings.Replace(short("", ""), `"a":1`, `"a":[{"$b":1}]`, 1), func(goal.Goal) bool { return true }},
		{"target_state elsewhere", short("", `,"context":{"target_state":{"b":2},"pre_conditions":3}`), func(g goal.Goal) bool {
			return string(g.Objective.TargetState) == `{"a":1}` && g.PreConditions == nil
		}},
		{"exact revision", short("", `,"pre_conditions":{"revisions":{"orders/1":18446744073709551615,"a/b/c":0,"a/1":2e0}}`), func(g goal.Goal) bool {
			p, err := goal.ParsePreConditions(g.PreConditions)
			return err == nil && p.Revisions["orders/1"] == 1<<64-1 && p.Revisions["a/1"] == 2 && len(p.Revisions) == 3
		}},
		{"white space around raw members", "{\"goal\" \t:\n{\"intent\":\"Refund\",\"target_state\" :\n {\"a\":1.0}\n},\"guardrails\":{\"max_steps\":1,\"timeout_seconds\":10}}\n", func(g goal.Goal) bool {
			return string(g.Objective.TargetState) == `{"a":1.0}`
		}},
		{"webhook without TLS is for the notifier to refuse", short("", `,"webhook_url":"HTTP://127.0.0.1/x"`), func(g goal.Goal) bool { return g.WebhookURL != "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g, fingerprint, p := goal.ParseGoal([]byte(c.body))
			if p != nil || !c.check(g) {
				t.Fatalf("ParseGoal(%s) = %+v, %+v", c.body, g, p)
			}
			checkRoundTrip(t, g, fingerprint)
		})
	}
}

func TestParseGoalRefuses(t *testing.T) {
	t.Parallel()
	const none = ""
	for _, c := range []struct {
		name, body, pointer, detail string
	}{
		{"not an object", `[]`, none, "must be an object"},
		{"goal missing", `{"guardrails":{"max_steps":1,"timeout_seconds":10}}`, "/goal", "is required"},
		{"guardrails missing", `{"goal":{"intent":"Refund","target_state":{"a":1}}}`, "/guardrails", "is required"},
		{"goal is no object", strings.Replace(short("", ""), `{"intent":"Refund","target_state":{"a":1}}`, "1", 1), "/goal", "must be an object"},
		{"intent too short", strings.Replace(short("", ""), "Refund", "😀😀😀😀", 1), "/goal/intent", "must be at least 5 characters"},
		{"intent is no string", strings.Replace(short("", ""), `"Refund"`, "12345", 1), "/goal/intent", "must be a string"},
		{"empty target", strings.Replace(short("", ""), `{"a":1}`, "{}", 1), "/goal/target_state", "must have at least 1 member"},
		{"target is null", strings.Replace(short("", ""), `{"a":1}`, "null", 1), "/goal/target_state", "must be an object"},
		{"reserved name", strings.Replace(short("", ""), `"a":1`, `"a":{"$gt":1}`, 1), "/goal/target_state/a/$gt", "begins with $, which is reserved"},
		{"unknown member", short("", `,"guardrail/s":{}`), "/guardrail~1s", "is not a known member"},
		{"unknown member of goal", strings.Replace(short("", ""), `"intent"`, `"priority":1,"intent"`, 1), "/goal/priority", "is not a known member"},
		{"unknown guardrail", short(`,"max_step":1`, ""), "/guardrails/max_step", "is not a known member"},
		{"names are case-sensitive", short(`,"MAX_STEPS":1`, ""), "/guardrails/MAX_STEPS", "is not a known member"},
		{"max_steps 0", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":0`, 1), "/guardrails/max_steps", "must be at least 1"},
		{"max_steps 51", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":51`, 1), "/guardrails/max_steps", "must be at most 50"},
		{"max_steps is not whole", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1.5`, 1), "/guardrails/max_steps", "must be an integer"},
		{"max_steps is a string", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":"1"`, 1), "/guardrails/max_steps", "must be an integer"},
		{"max_steps null", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":null`, 1), "/guardrails/max_steps", "must be an integer"},
		{"nearly whole", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1.`+strings.Repeat("0", 400)+`1`, 1), "/guardrails/max_steps", "must be an integer"},
		{"tiny", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1e-`+strings.Repeat("9", 5000), 1), "/guardrails/max_steps", ""},
		{"huge", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1e308`, 1), "/guardrails/max_steps", "must be at most 50"},
		{"timeout 9", strings.Replace(short("", ""), `"timeout_seconds":10`, `"timeout_seconds":9`, 1), "/guardrails/timeout_seconds", "must be at least 10"},
		{"timeout 601", strings.Replace(short("", ""), `"timeout_seconds":10`, `"timeout_seconds":601`, 1), "/guardrails/timeout_seconds", "must be at most 600"},
		{"tool is no string", short(`,"allowed_tools":["a",1]`, ""), "/guardrails/allowed_tools/1", "must be a string"},
		{"empty tool", short(`,"allowed_tools":[""]`, ""), "/guardrails/allowed_tools/0", "must be at least 1 character"},
		{"no tokens", short(`,"max_tokens":0`, ""), "/guardrails/max_tokens", "must be at least 1"},
		{"negative tokens", short(`,"max_tokens":-1`, ""), "/guardrails/max_tokens", "must be at least 1"},
		{"environment", short("", `,"environment":"a/b"`), "/environment", "must match the pattern ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
		{"empty environment", short("", `,"environment":""`), "/environment", "must match the pattern ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
		{"context", short("", `,"context":"x"`), "/context", "must be an object"},
		{"webhook scheme", short("", `,"webhook_url":"ftp://example.com"`), "/webhook_url", "must match the pattern ^[Hh][Tt][Tt][Pp][Ss]?://"},
		{"webhook without a host", short("", `,"webhook_url":"https:///x"`), "/webhook_url", "must be an absolute http or https URL"},
		{"webhook with a bad escape", short("", `,"webhook_url":"https://a%zz/"`), "/webhook_url", "must be an absolute http or https URL"},
		{"webhook too long", short("", `,"webhook_url":"https://a/`+strings.Repeat("x", 2048)+`"`), "/webhook_url", "must be at most 2048 characters"},
		{"state hash", short("", `,"pre_conditions":{"state_hash":"abc"}`), "/pre_conditions/state_hash", "must match the pattern ^sha256:[0-9a-f]{64}$"},
		{"etag", short("", `,"pre_conditions":{"etag":1}`), "/pre_conditions/etag", "must be a string"},
		{"revision", short("", `,"pre_conditions":{"revisions":{"orders/1":-1}}`), "/pre_conditions/revisions/orders~11", "must be at least 0"},
		{"entity", short("", `,"pre_conditions":{"revisions":{"orders":1}}`), "/pre_conditions/revisions/orders", "is not the name of an entity: collection/id"},
		{"revision beyond uint64", short("", `,"pre_conditions":{"revisions":{"o/1":18446744073709551616}}`), "/pre_conditions/revisions/o~11", "must be at most 18446744073709551615"},
		{"match", short("", `,"pre_conditions":{"match":[]}`), "/pre_conditions/match", "must be an object"},
		{"reserved name in match", short("", `,"pre_conditions":{"match":{"a":{"$b":1}}}`), "/pre_conditions/match/a/$b", "begins with $, which is reserved"},
		{"reserved name in the root", short("", `,"pre_conditions":{"$x":1}`), "/pre_conditions/$x", "begins with $, which is reserved"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, p := goal.ParseGoal([]byte(c.body))
			if p == nil || p.Kind() != goal.GoalInvalid || p.Status != 422 || len(p.Errors) == 0 {
				t.Fatalf("ParseGoal(%.200s) = %+v, want invalid-goal", c.body, p)
			}
			if got := p.Errors[0]; got.Pointer != c.pointer || c.detail != "" && got.Detail != c.detail {
				t.Errorf("ParseGoal(%.200s): %+v, want %q at %s", c.body, p.Errors, c.detail, c.pointer)
			}
			if len(p.Errors) > 1 && c.detail != "" {
				t.Errorf("further errors: %+v", p.Errors)
			}
		})
	}
}

func TestParseGoalListsEveryPlace(t *testing.T) {
	t.Parallel()
	body := `{"goal":{"intent":"R","target_state":[]},"guardrails":{"max_steps":0,"speed":1},"extra":1,"environment":" "}`
	_, _, p := goal.ParseGoal([]byte(body))
	if p == nil {
		t.Fatal("no problem")
	}
	got := []string{}
	for _, e := range p.Errors {
		got = append(got, e.Pointer)
	}
	want := []string{"/environment", "/extra", "/goal/intent", "/goal/target_state", "/guardrails/max_steps", "/guardrails/speed", "/guardrails/timeout_seconds"}
	if !slices.Equal(got, want) {
		t.Errorf("pointers %q, want %q", got, want)
	}
	if p.Detail != "7 places in the goal are wrong." {
		t.Error(p.Detail)
	}
}

func TestParseGoalMalformed(t *testing.T) {
	t.Parallel()
	_, _, p := goal.ParseGoal([]byte(`{"goal":{"intent":"a","intent":"b"}}`))
	if p == nil || p.Kind() != goal.MalformedJSON || p.Status != 400 || len(p.Errors) != 1 || p.Errors[0].Pointer != "/goal/intent" {
		t.Errorf("ParseGoal(duplicate) = %+v, want malformed-json at /goal/intent", p)
	}
	_, _, p = goal.ParseGoal([]byte(`{"a":{"` + strings.Repeat("n", 2000) + `":nul}}`))
	if p == nil || p.Kind() != goal.MalformedJSON || p.Errors[0].Pointer != "/a" {
		t.Errorf("ParseGoal(malformed below a long name) = %+v, want malformed-json at /a", p)
	}
	padded := append([]byte(contractGoal), strings.Repeat(" ", goal.MaxBody-len(contractGoal))...)
	if _, _, p := goal.ParseGoal(padded); p != nil {
		t.Errorf("a body of the largest size: %v", p)
	}
	if _, _, p := goal.ParseGoal(append(padded, ' ')); p == nil || p.Kind() != goal.PayloadTooLarge || p.Status != 413 {
		t.Errorf("a body of one byte more: %+v, want payload-too-large", p)
	}
}

// What would be slow, or large, in a careless implementation: these tests end
// by the test's own deadline if it is.
func TestParseGoalBoundsItsWork(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", goal.MaxBody/2)
	var list []string
	for i := range 9000 {
		list = append(list, `"$`+strconv.Itoa(i)+`":1`)
	}
	many := strings.Join(list, ",")
	for _, c := range []struct{ name, body string }{
		{"long exponent", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1e-`+strings.Repeat("9", 200_000), 1)},
		{"long number", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1.`+strings.Repeat("9", 200_000), 1)},
		{"exponent that big.Rat would expand", strings.Replace(short("", ""), `"max_steps":1`, `"max_steps":1e-99999999`, 1)},
		{"the same in a revision", short("", `,"pre_conditions":{"revisions":{"a/b":1e-99999999}}`)},
		{"many faults below a long name", strings.Replace(short("", ""), `"a":1`, `"`+long+`":{`+many+`}`, 1)},
		{"many unknown members", short("", strings.ReplaceAll(`,`+many, "$", "x"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, p := goal.ParseGoal([]byte(c.body))
			if p == nil || p.Kind() != goal.GoalInvalid {
				t.Fatalf("ParseGoal = %.300v, want invalid-goal", p)
			}
			if out, err := goal.Marshal(p); err != nil || len(out) > goal.MaxWebhookBody || len(p.Errors) > 50 {
				t.Errorf("the problem has %d bytes and %d errors, %v", len(out), len(p.Errors), err)
			}
		})
	}
	exact := strings.Replace(short("", ""), `"a":1`, `"a":1e-`+strings.Repeat("9", 200_000), 1)
	if _, _, p := goal.ParseGoal([]byte(exact)); p != nil {
		t.Errorf("a number that underflows: %.300v", p)
	}
}

// The limits of the package and of the schema are the same.
func TestSchemaHasTheLimits(t *testing.T) {
	t.Parallel()
	tree, err := goal.Decode(goal.Schema())
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) any {
		v := tree
		for name := range strings.SplitSeq(path, "/") {
			v = v.(map[string]any)[name]
		}
		return v
	}
	number := func(n int) json.Number { return json.Number(strconv.Itoa(n)) }
	for path, want := range map[string]any{
		"$id":                            "https://goalkeeper.dev/schemas/goal.json",
		"$schema":                        "https://json-schema.org/draft/2020-12/schema",
		"properties/environment/default": goal.DefaultEnvironment,
		"properties/goal/properties/intent/minLength":                     number(goal.MinIntent),
		"properties/guardrails/properties/max_steps/minimum":              number(1),
		"properties/guardrails/properties/max_steps/maximum":              number(goal.MaxStepsLimit),
		"properties/guardrails/properties/timeout_seconds/minimum":        number(goal.MinTimeoutSeconds),
		"properties/guardrails/properties/timeout_seconds/maximum":        number(goal.MaxTimeoutSeconds),
		"properties/guardrails/properties/max_repeats/default":            number(goal.DefaultMaxRepeats),
		"properties/guardrails/properties/max_consecutive_errors/default": number(goal.DefaultMaxConsecutiveErrors),
		"properties/guardrails/properties/allowed_tools/items/maxLength":  number(goal.MaxKeyToken),
		"additionalProperties":                       false,
		"properties/goal/additionalProperties":       false,
		"properties/guardrails/additionalProperties": false,
	} {
		if got := at(path); got != want {
			t.Errorf("schema: %s is %v, want %v", path, got, want)
		}
	}
	for where, typ := range map[string]reflect.Type{
		"properties":                       reflect.TypeFor[goal.Goal](),
		"properties/goal/properties":       reflect.TypeFor[goal.Objective](),
		"properties/guardrails/properties": reflect.TypeFor[goal.Guardrails](),
	} {
		described := at(where).(map[string]any)
		if len(described) != typ.NumField() {
			t.Errorf("%s has %d members, %s has %d", where, len(described), typ.Name(), typ.NumField())
		}
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			member, ok := described[name].(map[string]any)
			if !ok || member["title"] == nil || member["description"] == nil {
				t.Errorf("%s: %s has no title or description", where, name)
			}
		}
	}
	for _, example := range at("examples").([]any) {
		body, err := goal.Marshal(example)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, p := goal.ParseGoal(body); p != nil {
			t.Errorf("the schema's example %s: %+v", body, p)
		}
	}
}

func TestSchemaIsACopy(t *testing.T) {
	t.Parallel()
	goal.Schema()[0] = 'x'
	if goal.Schema()[0] != '{' {
		t.Error("a caller can change the schema")
	}
}

// A goal that is encoded again is the same goal: hostile strings and numbers
// keep their value, and so does the fingerprint.
func TestGoalSurvivesEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		target := map[string]any{"a": anyTree(t, 3)}
		body := spelling(t, map[string]any{
			"goal":           map[string]any{"intent": rapid.StringN(5, 40, -1).Draw(t, "intent"), "target_state": target},
			"guardrails":     map[string]any{"max_steps": json.Number("12"), "timeout_seconds": json.Number("6e2"), "allowed_tools": []any{"<&>", "\u2028"}},
			"context":        map[string]any{"x": anyTree(t, 3)},
			"pre_conditions": map[string]any{"match": map[string]any{"y": anyTree(t, 2)}},
		})
		g, fingerprint, p := goal.ParseGoal(body)
		if p != nil {
			if p.Kind() == goal.GoalInvalid && strings.Contains(p.Errors[0].Detail, "reserved") {
				return
			}
			t.Fatalf("ParseGoal(%q) = %+v", body, p)
		}
		checkRoundTrip(t, g, fingerprint)
	})
}

type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func checkRoundTrip(t fataler, g goal.Goal, fingerprint string) {
	stored, err := goal.Marshal(goal.Submission{Version: goal.SubmissionVersion, Goal: g})
	if err != nil {
		t.Fatal(err)
	}
	var s goal.Submission
	if err := json.Unmarshal(stored, &s); err != nil {
		t.Fatal(err)
	}
	body, err := goal.Marshal(s.Goal)
	if err != nil {
		t.Fatal(err)
	}
	again, same, p := goal.ParseGoal(body)
	if p != nil || same != fingerprint || !reflect.DeepEqual(again, s.Goal) {
		t.Fatalf("encoded again: %q, %+v, fingerprint %s, want %s", body, p, same, fingerprint)
	}
}

func FuzzParseGoal(f *testing.F) {
	for _, s := range []string{
		contractGoal, short("", ""), short(`,"max_tokens":1e2`, `,"pre_conditions":{"revisions":{"a/b":1},"etag":"x","state_hash":"y"}`),
		short(`,"max_steps":2`, ""), `{"goal":{"intent":"\u2028<>&x","target_state":{"$a":1e-400}}}`, `[]`, ``, "\uFEFF{}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		g, fingerprint, p := goal.ParseGoal(body)
		if p == nil {
			if whole, err := goal.Fingerprint(body); err != nil || whole != fingerprint {
				t.Fatalf("fingerprint %s, want %s, %v", fingerprint, whole, err)
			}
			if _, err := goal.ParsePreConditions(g.PreConditions); err != nil {
				t.Fatalf("pre-conditions of an accepted goal: %v", err)
			}
			checkRoundTrip(t, g, fingerprint)
			return
		}
		if p.Kind() != goal.PayloadTooLarge && len(p.Errors) == 0 || fingerprint != "" {
			t.Fatalf("%+v says not where", p)
		}
		for _, e := range p.Errors {
			if e.Detail == "" || !utf8.ValidString(e.Pointer) || !utf8.ValidString(e.Detail) || e.Pointer != "" && e.Pointer[0] != '/' {
				t.Fatalf("error %+v", e)
			}
		}
	})
}

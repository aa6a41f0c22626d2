package goal_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// indented is the wire form of v, one member a line.
func indented(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := goal.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// What is stored and sent. A change of these files is a change of a wire shape:
// old records must still be read, and the version must rise if they cannot be.
func TestWireShapes(t *testing.T) {
	t.Parallel()
	ended := exampleSnapshot()
	ended.Events, ended.Result = exampleEvents(), exampleResult()
	hook, err := goal.NewWebhook(ended)
	if err != nil {
		t.Fatal(err)
	}
	problem := goal.NewProblem(goal.PreconditionMismatch, "account_version is 13.")
	problem.Instance, problem.RetryAfter = "/v1/tasks", 3
	problem.Errors = []goal.FieldError{{Pointer: "/goal/a~1b", Detail: "is <wrong>"}}
	problem.Checks = []goal.Difference{{Pointer: "/account_version", Want: json.RawMessage("12"), Have: json.RawMessage("13")}}
	shapes := map[string]any{
		"task.queued": exampleSnapshot().Task(), "task.ended": ended.Task(), "submission": ended.Submission,
		"result": ended.Result, "problem": problem, "webhook": hook, "webhook.body": json.RawMessage(hook.Body),
		"batch": goal.Batch{Version: goal.BatchVersion, Events: ended.Events[7:], Webhook: hook},
	}
	for _, e := range ended.Events {
		shapes[string(e.Type)] = e
	}
	for name, v := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name, indented(t, v))
		})
	}
}

// A stored record is read as it was written.
func TestStoredRecordsRoundTrip(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot()
	result := *exampleResult()
	ended, started := result.EndedAt.UTC(), result.StartedAt.UTC()
	result.EndedAt, result.StartedAt = ended, &started
	result.Trip.Limit, result.Trip.Observed = 2.0, 3.0
	batch := goal.Batch{Version: goal.BatchVersion, Events: exampleEvents()}
	batch.Events[7].Ended.Trip.Limit, batch.Events[7].Ended.Trip.Observed = 2.0, 3.0
	for name, v := range map[string]any{"submission": &s.Submission, "result": &result, "batch": &batch} {
		raw, err := goal.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(raw, got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again, err := goal.Marshal(got); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%s is read as\n%s, %v, want\n%s", name, again, err, raw)
		}
	}
}

func TestEveryEventTypeHasAnExample(t *testing.T) {
	t.Parallel()
	seen := map[goal.EventType]bool{}
	for _, e := range exampleEvents() {
		seen[e.Type] = true
	}
	for _, typ := range goal.EventTypes() {
		if !seen[typ] {
			t.Errorf("no example of %s", typ)
		}
	}
}

func TestMillis(t *testing.T) {
	t.Parallel()
	raw, err := goal.Marshal(goal.Millis(1999 * time.Microsecond))
	if err != nil || string(raw) != "1" {
		t.Errorf("Marshal = %s, %v, want 1", raw, err)
	}
	var m goal.Millis
	if err := json.Unmarshal([]byte("250"), &m); err != nil || m != goal.Millis(250*time.Millisecond) {
		t.Errorf("Unmarshal = %v, %v, want 250ms", time.Duration(m), err)
	}
	if err := json.Unmarshal([]byte(`"250ms"`), &m); err == nil {
		t.Error("a text is taken for milliseconds")
	}
}

func TestMarshalKeepsText(t *testing.T) {
	t.Parallel()
	raw, err := goal.Marshal(map[string]any{"a": "<b>&\u00e9", "n": json.Number("9007199254740993")})
	if want := "{\"a\":\"<b>&\u00e9\",\"n\":9007199254740993}"; err != nil || string(raw) != want {
		t.Errorf("Marshal = %s, %v, want %s", raw, err, want)
	}
	if _, err := goal.Marshal(func() {}); err == nil {
		t.Error("a function is encoded")
	}
}

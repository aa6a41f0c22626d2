package goal_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// hookBody is a webhook's body as a receiver reads it.
type hookBody struct {
	Type, Timestamp string
	Data            struct {
		ID          string
		Status      string
		TargetState json.RawMessage `json:"target_state"`
		Result      json.RawMessage
		ResultURL   string `json:"result_url"`
		Omitted     []string
		Left        []goal.Difference
		LeftTotal   int `json:"left_total"`
		Trace       []goal.Event
		CancelAsked bool            `json:"cancel_requested"`
		Raw         json.RawMessage `json:"-"`
	}
}

func readHook(t fataler, h *goal.Webhook) hookBody {
	if len(h.Body) > goal.MaxWebhookBody || !utf8.ValidString(h.Body) {
		t.Fatalf("a body of %d bytes, valid UTF-8: %t", len(h.Body), utf8.ValidString(h.Body))
	}
	var body hookBody
	if err := json.Unmarshal([]byte(h.Body), &body); err != nil {
		t.Fatal(err)
	}
	return body
}

func TestHookType(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status goal.State
		reason goal.Reason
		want   string
	}{
		{goal.Succeeded, goal.TargetStateReached, "goal.target_reached"},
		{goal.Cancelled, goal.CancelRequested, "goal.cancelled"},
		{goal.Failed, goal.GuardrailTimeout, "goal.guardrail_tripped"},
		{goal.Failed, goal.GuardrailToolNotAllowed, "goal.guardrail_tripped"},
		{goal.Failed, goal.PreconditionFailed, "goal.precondition_failed"},
		{goal.Failed, goal.ToolFailed, "goal.failed"},
		{goal.Failed, goal.QueueExpired, "goal.failed"},
	} {
		if got := goal.HookType(c.status, c.reason); got != c.want {
			t.Errorf("HookType(%s, %s) = %s, want %s", c.status, c.reason, got, c.want)
		}
	}
}

func TestWebhookID(t *testing.T) {
	t.Parallel()
	id := goal.WebhookID("default", "tsk_1")
	if id != goal.WebhookID("default", "tsk_1") || id == goal.WebhookID("default", "tsk_2") || id == goal.WebhookID("other", "tsk_1") {
		t.Error("the id does not name the task")
	}
	if strings.Contains(id, ".") || !strings.HasPrefix(id, "msg_") {
		t.Errorf("WebhookID = %s", id)
	}
}

func TestNewWebhook(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot()
	s.Events, s.CancelAsked = exampleEvents(), true
	if h, err := goal.NewWebhook(s); err == nil {
		t.Errorf("a webhook of a running task: %+v", h)
	}
	s.Result = exampleResult()
	h, err := goal.NewWebhook(s)
	if err != nil {
		t.Fatal(err)
	}
	body := readHook(t, h)
	if h.URL != s.Submission.Goal.WebhookURL || h.Tenant != "default" || h.TaskID != s.Submission.TaskID || h.ID != goal.WebhookID(h.Tenant, h.TaskID) {
		t.Errorf("webhook %+v", h)
	}
	if body.Type != goal.HookGuardrailTripped || body.Timestamp != "2026-11-30T11:00:42Z" || body.Data.ID != h.TaskID || body.Data.Omitted != nil || body.Data.Trace != nil || body.Data.CancelAsked {
		t.Errorf("body %+v", body)
	}
	if !strings.Contains(h.Body, `"<delivered>"`) || !strings.Contains(h.Body, "9007199254740993") || strings.Contains(h.Body, "secret") {
		t.Errorf("the body escapes HTML, rounds, or tells a secret: %s", h.Body)
	}
	s.Submission.Goal.WebhookURL = ""
	if h, err := goal.NewWebhook(s); h != nil || err != nil {
		t.Errorf("without a URL: %+v, %v", h, err)
	}
}

func TestNewWebhookResult(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		size   int
		inline bool
	}{{"at the limit", goal.MaxWebhookResult, true}, {"beyond it", goal.MaxWebhookResult + 1, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := exampleSnapshot()
			s.Result = exampleResult()
			s.Result.State = json.RawMessage(`"` + strings.Repeat("x", c.size-2) + `"`)
			h, err := goal.NewWebhook(s)
			if err != nil {
				t.Fatal(err)
			}
			body := readHook(t, h)
			if (body.Data.Result != nil) != c.inline || (body.Data.ResultURL == "") != c.inline {
				t.Errorf("result of %d bytes, link %q", len(body.Data.Result), body.Data.ResultURL)
			}
		})
	}
}

// Whatever is large, the body fits and says what it lacks.
func TestNewWebhookFits(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("ab\u20ac\x01", 40_000)
	value, err := goal.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	differences := slices.Repeat([]goal.Difference{{Pointer: "/a", Want: value}}, 3)
	for name, enlarge := range map[string]func(*goal.Snapshot){
		"target_state":             func(s *goal.Snapshot) { s.Submission.Goal.Objective.TargetState = value },
		"guardrails.allowed_tools": func(s *goal.Snapshot) { s.Submission.Goal.Guardrails.AllowedTools = strings.SplitAfter(text, "b") },
		"intent":                   func(s *goal.Snapshot) { s.Submission.Goal.Objective.Intent = text },
		"environment":              func(s *goal.Snapshot) { s.Submission.Goal.Environment = text },
		"webhook_url":              func(s *goal.Snapshot) { s.Submission.Goal.WebhookURL = "https://a/" + strings.Repeat("x", 70_000) },
		"detail":                   func(s *goal.Snapshot) { s.Result.Detail = text },
		"left":                     func(s *goal.Snapshot) { s.Result.Left = differences },
		"failed_checks":            func(s *goal.Snapshot) { s.Result.Checks = differences },
		"effects":                  func(s *goal.Snapshot) { s.Result.Effects = []goal.Effect{{Tool: text}} },
		"trip.limit":               func(s *goal.Snapshot) { s.Result.Trip.Limit = text },
		"problem.errors":           func(s *goal.Snapshot) { s.Result.Problem.Errors = []goal.FieldError{{Detail: text}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := exampleSnapshot()
			s.Events, s.Result = exampleEvents(), exampleResult()
			enlarge(&s)
			h, err := goal.NewWebhook(s)
			if err != nil {
				t.Fatal(err)
			}
			body := readHook(t, h)
			if body.Type == "" || body.Data.Status != "failed" || !slices.Contains(body.Data.Omitted, name) || body.Data.LeftTotal != 1 || body.Data.Left == nil {
				t.Errorf("body %.500s", h.Body)
			}
			if slices.Contains(body.Data.Omitted, "target_state") != (body.Data.TargetState == nil) {
				t.Errorf("target_state is %.20s, omitted %q", body.Data.TargetState, body.Data.Omitted)
			}
		})
	}
}

func TestNewWebhookIsBoundedAndDeterministic(t *testing.T) {
	t.Parallel()
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Repeat(rapid.String().Draw(t, "piece"), rapid.IntRange(0, 600).Draw(t, "times"))
	})
	rapid.Check(t, func(t *rapid.T) {
		s := exampleSnapshot()
		s.Events, s.Result = exampleEvents(), exampleResult()
		value, err := goal.Marshal(text.Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		g, r := &s.Submission.Goal, s.Result
		g.Objective.Intent, r.Detail = text.Draw(t, "intent"), text.Draw(t, "detail")
		g.Objective.TargetState, r.State = value, value
		g.Guardrails.AllowedTools = rapid.SliceOfN(text, 0, 3).Draw(t, "tools")
		r.Left = slices.Repeat([]goal.Difference{{Pointer: text.Draw(t, "pointer"), Want: value}}, rapid.IntRange(0, goal.MaxLeft).Draw(t, "left"))
		r.Trip.Observed = text.Draw(t, "observed")
		one, err := goal.NewWebhook(s)
		if err != nil {
			t.Fatal(err)
		}
		readHook(t, one)
		if two, err := goal.NewWebhook(s); err != nil || *two != *one {
			t.Fatalf("another body for the same task, %v", err)
		}
	})
}

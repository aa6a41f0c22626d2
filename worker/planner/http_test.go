package planner_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
)

func serveFuzz(f *testing.F, h http.Handler) *planner.OpenAI {
	f.Helper()
	srv := httptest.NewServer(h)
	p, err := planner.NewOpenAI(planner.OpenAIConfig{BaseURL: srv.URL + "/v1", Model: "m"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { p.Close(); srv.Close() })
	return p
}

func httpPlanner(t *testing.T, h http.HandlerFunc) *planner.HTTP {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	p, err := planner.NewHTTP(planner.HTTPConfig{URL: srv.URL, Headers: map[string]string{"X-Key": "s3cret"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestHTTPQuestion(t *testing.T) {
	t.Parallel()
	var got string
	p := httpPlanner(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got = string(raw)
		if r.Header.Get("X-Key") != "s3cret" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("headers %v", r.Header)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	s := situation()
	s.Goal.WebhookURL = "https://h/?token=s3cret"
	s.Deadline = time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	s.Steps = []agent.Step{
		{N: 1, Decision: &goal.Decision{Action: goal.Action{Tool: "t", Arguments: json.RawMessage(`{"a":1}`)}, PlannerState: json.RawMessage(`{"mine":1}`)}, Outcome: &goal.Outcome{Kind: goal.CallOK}},
		{N: 2, Refusal: &goal.Refusal{Action: goal.Action{Tool: "x"}, Kind: "unknown_tool", Message: "no"}},
	}
	answer, err := p.Decide(t.Context(), s)
	if err != nil || len(answer.Actions) != 0 {
		t.Fatalf("answer %+v, %v", answer, err)
	}
	for _, want := range []string{
		`"task_id":"tsk_1"`, `"tenant":"acme"`, `"want":9007199254740993`, `"m":9007199254740995`, `"planner_state":{"mine":1}`,
		`"refused":{"kind":"unknown_tool","message":"no"}`, `"deadline":"2026-01-02T02:04:05Z"`, `"budget":{"steps":5,"seconds":60}`, `"kind":"ok"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if strings.Contains(got, "token") || strings.Contains(got, "webhook") {
		t.Errorf("the webhook's URL is told: %s", got)
	}
}

func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		status  int
		body    string
		kind    agent.PlannerErrorKind
		actions int
	}{
		"actions":        {200, `{"actions":[{"tool":"a","arguments":{"n":9007199254740993}},{"tool":"b"}],"why":"w","tokens":5,"planner_state":{"x":1}}`, "", 2},
		"one action":     {200, `{"action":{"tool":"a","arguments":{}}}`, "", 1},
		"nothing":        {200, `{}`, "", 0},
		"both":           {200, `{"action":{"tool":"a"},"actions":[{"tool":"b"}]}`, agent.PlannerBadAnswer, 0},
		"misspelt":       {200, `{"action_s":[]}`, agent.PlannerBadAnswer, 0},
		"not JSON":       {200, `<html>`, agent.PlannerBadAnswer, 0},
		"twice":          {200, `{"why":"a","why":"b"}`, agent.PlannerBadAnswer, 0},
		"a list":         {200, `[]`, agent.PlannerBadAnswer, 0},
		"negative":       {200, `{"tokens":-1}`, agent.PlannerBadAnswer, 0},
		"503":            {503, ``, agent.PlannerUnavailable, 0},
		"401":            {401, ``, agent.PlannerConfig, 0},
		"402":            {402, ``, agent.PlannerQuota, 0},
		"413":            {413, ``, agent.PlannerContext, 0},
		"too large":      {200, `"` + strings.Repeat("x", 5<<20) + `"`, agent.PlannerUnavailable, 0},
		"another status": {201, `{}`, agent.PlannerConfig, 0},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := httpPlanner(t, func(w http.ResponseWriter, _ *http.Request) { fail(w, row.status, row.body) })
			answer, err := p.Decide(t.Context(), situation())
			var pe *agent.PlannerError
			if row.kind != "" {
				if !errors.As(err, &pe) || pe.Kind != row.kind {
					t.Errorf("answer %+v, %v; want %s", answer, err, row.kind)
				}
				return
			}
			if err != nil || len(answer.Actions) != row.actions {
				t.Fatalf("answer %+v, %v", answer, err)
			}
			if row.actions == 2 && (string(answer.Actions[0].Arguments) != `{"n":9007199254740993}` || answer.Tokens != 5 || answer.Why != "w" || string(answer.State) != `{"x":1}`) {
				t.Errorf("answer %+v", answer)
			}
		})
	}
	if _, err := planner.NewHTTP(planner.HTTPConfig{URL: "h"}); err == nil {
		t.Error("a relative URL: no error")
	}
}

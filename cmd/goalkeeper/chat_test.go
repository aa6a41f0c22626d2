package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
)

// chatModel is a chat-completions server that plays a whole model: for each
// model name it knows a list of calls, and answers the next one that the
// conversation does not hold yet.
type chatModel struct {
	calls map[string][]goal.Action // by model name; not changed once serving
}

// chatRequest is the part of a request that the model looks at.
type chatRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role       string          `json:"role"`
		ToolCallID string          `json:"tool_call_id"`
		ToolCalls  json.RawMessage `json:"tool_calls"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

// ServeHTTP answers POST /chat/completions.
func (m *chatModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Tools) == 0 {
		http.Error(w, `{"error": {"message": "no tools, or not JSON"}}`, http.StatusBadRequest)
		return
	}
	answered := 0
	for _, msg := range q.Messages {
		if msg.Role == "tool" {
			answered++
		}
	}
	message := map[string]any{"role": "assistant", "content": "There is nothing left to do."}
	finish := "stop"
	if script := m.calls[q.Model]; answered < len(script) {
		a := script[answered]
		message = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
			"id": fmt.Sprintf("call_%d", answered), "type": "function",
			"function": map[string]any{"name": strings.ReplaceAll(a.Tool, ".", "__"), "arguments": string(a.Arguments)},
		}}}
		finish = "tool_calls"
	}
	body, err := goal.Marshal(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "model": q.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": finish, "message": message}},
		"usage":   map[string]any{"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// newChatModel serves the experts' calls of the worlds, by world.
func newChatModel(tb testing.TB, worlds []world) string {
	tb.Helper()
	m := &chatModel{calls: map[string][]goal.Action{}}
	for _, w := range worlds {
		for _, s := range w.Script {
			m.calls[w.name] = append(m.calls[w.name], goal.Action{Tool: s.Tool, Arguments: s.Arguments})
		}
	}
	return m.serve(tb)
}

func (m *chatModel) serve(tb testing.TB) string {
	tb.Helper()
	srv := httptest.NewServer(m)
	tb.Cleanup(srv.Close)
	return srv.URL
}

// TestRetail runs the retail goals with the built-in planner and, played by a
// model, through the chat protocol: both reach the experts' end states.
func TestRetail(t *testing.T) {
	t.Parallel()
	d := loadReal(t, "retail")
	worlds := d.worlds(2)
	half := len(worlds) / 2
	model := &chatModel{calls: map[string][]goal.Action{}}
	url := model.serve(t)
	s := newSite(t, true, func(c *config) {
		for i, w := range worlds {
			e := environmentConfig{Name: w.name}
			if i >= half {
				e.Planner = plannerConfig{Type: "openai", BaseURL: url, Model: w.name}
				model.calls[w.name] = d.plan(t, w)
			}
			c.Environments = append(c.Environments, e)
		}
	})
	s.load(d, worlds)
	var ids []string
	for _, w := range worlds {
		// The retail tools are not here: state.* tools reach the target.
		sub := w.submission(s.hooks.url)
		sub["guardrails"] = map[string]any{"max_steps": 50, "timeout_seconds": 120}
		ids = append(ids, s.submit(w.name, sub))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.hooks.await(ctx, ids...); err != nil {
		t.Error(err)
	}
	for _, bad := range s.check(worlds, ids) {
		t.Error(bad)
	}
	if task := s.task(ids[half]); task.Usage.Tokens != int64(100*task.Usage.Steps) {
		t.Errorf("the model reported 100 tokens an answer, %d were accounted for %d steps", task.Usage.Tokens, task.Usage.Steps)
	}
}

// TestRetailKilled runs the retail goals through the chat protocol while worker
// processes are killed.
func TestRetailKilled(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	d := loadReal(t, "retail")
	worlds := d.worlds(1)
	model := &chatModel{calls: map[string][]goal.Action{}}
	url := model.serve(t)
	s := newSite(t, false, func(c *config) {
		c.Worker.AckWait = duration(2 * time.Second)
		for _, w := range worlds {
			model.calls[w.name] = d.plan(t, w)
			c.Environments = append(c.Environments, environmentConfig{
				Name: w.name, Planner: plannerConfig{Type: "openai", BaseURL: url, Model: w.name},
			})
		}
	})
	s.load(d, worlds)
	var ids []string
	const kills = 13
	s.killWorkers(kills, func(int) {
		for range len(worlds) / kills {
			w := worlds[len(ids)]
			sub := w.submission(s.hooks.url)
			sub["guardrails"] = map[string]any{"max_steps": 50, "timeout_seconds": 300}
			ids = append(ids, s.submit(w.name, sub))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := s.hooks.await(ctx, ids...); err != nil {
		t.Error(err)
	}
	for _, bad := range s.check(worlds, ids) {
		t.Error(bad)
	}
}

// plan is how the built-in planner would reach a world's target.
func (d realData) plan(tb testing.TB, w world) []goal.Action {
	tb.Helper()
	var g struct {
		TargetState json.RawMessage `json:"target_state"`
	}
	if err := json.Unmarshal(w.Goal, &g); err != nil {
		tb.Fatal(err)
	}
	v, err := goal.Decode(g.TargetState)
	if err != nil {
		tb.Fatal(err)
	}
	target := v.(map[string]any)
	state := map[string]any{}
	for collection, entities := range target {
		shown := map[string]any{}
		for id := range entities.(map[string]any) {
			if e, ok := d.db[collection][id]; ok {
				shown[id] = e
			}
		}
		state[collection] = shown
	}
	actions, err := planner.Plan(agent.Left(target, state), state)
	if err != nil {
		tb.Fatal(err)
	}
	return actions
}

// TestChatSpan looks at the span of a request to a model: named by the GenAI
// conventions, inside the plan's, with nothing of what was said.
func TestChatSpan(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	failing := plannerFunc(func() (agent.Answer, error) {
		return agent.Answer{}, &agent.PlannerError{Kind: agent.PlannerQuota, Err: errors.New("secret words")}
	})
	e := agent.Environment{Name: "shop", Planner: chatPlanner{Planner: failing, tracer: tracer, model: "m1", url: "https://llm.example/v1?key=secret"}}
	e = newMetrics(newRegistry()).observed(e, tracer)
	if _, err := e.Planner.Decide(t.Context(), agent.Situation{Tenant: "default"}); err == nil {
		t.Fatal("no error")
	}
	spans := recorder.Ended()
	if len(spans) != 2 || spans[0].Name() != "chat m1" || spans[1].Name() != "plan shop" || spans[0].Parent().SpanID() != spans[1].SpanContext().SpanID() {
		t.Fatalf("spans: %v", spans)
	}
	text := fmt.Sprint(spans[0].Attributes(), spans[0].Status())
	if strings.Contains(text, "secret") || !strings.Contains(text, "llm.example") || !strings.Contains(text, "quota") {
		t.Errorf("the span says %s", text)
	}
}

type plannerFunc func() (agent.Answer, error)

func (f plannerFunc) Decide(context.Context, agent.Situation) (agent.Answer, error) { return f() }

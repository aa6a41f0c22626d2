package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
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

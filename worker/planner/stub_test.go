package planner_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
)

// stub is a chat-completions server with one named behaviour for each way in
// which real servers differ, and a mode that plays a scripted model.
type stub struct {
	t        *testing.T
	behave   func(w http.ResponseWriter, r chatRequest, nth int)
	mu       sync.Mutex
	requests []chatRequest
	headers  []http.Header
}

// chatRequest is what the stub was sent.
type chatRequest struct {
	Model      string           `json:"model"`
	Messages   []chatMessage    `json:"messages"`
	Tools      []map[string]any `json:"tools"`
	ToolChoice any              `json:"tool_choice"`
	Stream     *bool            `json:"stream"`
	all        map[string]any
}

type chatMessage struct {
	Role       string         `json:"role"`
	Content    *string        `json:"content"`
	ToolCalls  []chatToolCall `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
	Reasoning  string         `json:"reasoning_content"`
}

type chatToolCall struct {
	ID       string         `json:"id"`
	Type     string         `json:"type"`
	Extra    map[string]any `json:"extra_content"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func newStub(t *testing.T, behave func(w http.ResponseWriter, r chatRequest, nth int)) (*stub, planner.OpenAIConfig) {
	t.Helper()
	s := &stub{t: t, behave: behave}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, planner.OpenAIConfig{BaseURL: srv.URL + "/v1/", Model: "m", Key: "s3cret"}
}

func newOpenAI(t *testing.T, cfg planner.OpenAIConfig) *planner.OpenAI {
	t.Helper()
	p, err := planner.NewOpenAI(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (s *stub) seen() []chatRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]chatRequest(nil), s.requests...)
}

// ServeHTTP implements http.Handler. It checks what every real server checks.
func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/v1/chat/completions" || r.Method != http.MethodPost {
		s.t.Errorf("request %s %s, %v", r.Method, r.URL.Path, err)
	}
	var req chatRequest
	if err := json.Unmarshal(body, &req); err != nil {
		s.t.Errorf("body: %v", err)
	}
	if err := json.Unmarshal(body, &req.all); err != nil {
		s.t.Errorf("body: %v", err)
	}
	if err := req.check(); err != nil {
		s.t.Errorf("a real server would refuse the request: %v\n%s", err, body)
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	s.headers = append(s.headers, r.Header)
	nth := len(s.requests)
	s.mu.Unlock()
	s.behave(w, req, nth)
}

// check is what servers insist on: every call is answered once, after the
// message that made it, ids are unique, arguments are objects, names are in
// the alphabet.
func (r chatRequest) check() error {
	if r.Model == "" || len(r.Messages) < 2 || r.Messages[0].Role != "system" || r.Stream == nil || *r.Stream {
		return errors.New("model, messages or stream")
	}
	open, used := map[string]bool{}, map[string]bool{}
	for i, m := range r.Messages {
		if m.Role != "tool" && len(open) > 0 {
			return fmt.Errorf("message %d: calls %v have no answer", i, open)
		}
		switch m.Role {
		case "assistant":
			if (m.Content == nil || *m.Content == "") && len(m.ToolCalls) == 0 {
				return fmt.Errorf("message %d is empty", i)
			}
			for _, c := range m.ToolCalls {
				var args map[string]any
				if c.ID == "" || used[c.ID] || c.Type != "function" || json.Unmarshal([]byte(c.Function.Arguments), &args) != nil || badName(c.Function.Name) {
					return fmt.Errorf("message %d: call %+v", i, c)
				}
				open[c.ID], used[c.ID] = true, true
			}
		case "tool":
			if !open[m.ToolCallID] || m.Content == nil {
				return fmt.Errorf("message %d answers %q", i, m.ToolCallID)
			}
			delete(open, m.ToolCallID)
		case "system", "user":
			if m.Content == nil || *m.Content == "" {
				return fmt.Errorf("message %d has no content", i)
			}
		default:
			return fmt.Errorf("message %d: role %q", i, m.Role)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("calls %v have no answer", open)
	}
	if (len(r.Tools) == 0) != (r.ToolChoice == nil) {
		return fmt.Errorf("%d tools with tool_choice %v", len(r.Tools), r.ToolChoice)
	}
	return nil
}

func badName(name string) bool {
	return name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != ""
}

// reply writes a completion with this message and, if set, usage.
func reply(w http.ResponseWriter, message, finish, usage string) {
	if usage != "" {
		usage = `,"usage":` + usage
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":%s,"finish_reason":%q}]%s}`, message, finish, usage)
}

// toolMessage is an assistant message with one call.
func toolMessage(name, arguments string) string {
	return fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":%q,"arguments":%s}}]}`, name, arguments)
}

// fail answers an error.
func fail(w http.ResponseWriter, status int, body string, header ...string) {
	for i := 0; i+1 < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// scripted plays a model that makes these calls, whatever happens: the n-th
// answer is found by the answers that the conversation already holds.
func scripted(actions []goal.Action) func(http.ResponseWriter, chatRequest, int) {
	return func(w http.ResponseWriter, r chatRequest, _ int) {
		n := 0
		for _, m := range r.Messages {
			if m.Role == "assistant" {
				n++
			}
		}
		if n >= len(actions) {
			reply(w, `{"role":"assistant","content":"I am done."}`, "stop", "")
			return
		}
		args, err := json.Marshal(string(actions[n].Arguments))
		if err != nil {
			panic(err)
		}
		reply(w, toolMessage(strings.ReplaceAll(actions[n].Tool, ".", "__"), string(args)), "tool_calls", `{"total_tokens":100}`)
	}
}

package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// The names of the field that bounds an answer's length. Servers know one or
// the other.
const (
	fieldMaxTokens           = "max_tokens"
	fieldMaxCompletionTokens = "max_completion_tokens"
)

// OpenAIConfig configures a planner behind the chat-completions protocol, as
// OpenAI, vLLM, Ollama, llama.cpp, LM Studio and many gateways speak it.
type OpenAIConfig struct {
	BaseURL     string            // up to, without, /chat/completions
	Model       string            //
	Key         string            // bearer token; empty: none. Never logged
	Headers     map[string]string // may hold secrets; never logged
	Timeout     time.Duration     // of one answer; 0: DefaultTimeout
	MaxTokens   int               // of one answer; 0: the server's default
	Temperature *float64          // nil: the server's default, which some models insist on
	// ParallelToolCalls is sent where set: not every server knows it.
	ParallelToolCalls *bool
	// NoReasoningEcho keeps the model's reasoning out of later requests. Some
	// servers insist on getting it back, a few fail on it.
	NoReasoningEcho bool
	Instructions    string         // added to the system message
	ExtraBody       map[string]any // further members of the request, as the server documents them
}

// OpenAI is a planner behind the chat-completions protocol. It keeps no
// conversation: every request is rebuilt from the journal, so any worker can
// go on with any task.
type OpenAI struct {
	cfg      OpenAIConfig
	c        *client
	maxField atomic.Value // string: the name that this server knows
}

// NewOpenAI checks the configuration. Close it at the end.
func NewOpenAI(cfg OpenAIConfig) (*OpenAI, error) {
	if cfg.Model == "" {
		return nil, errors.New("planner: no model")
	}
	headers := maps.Clone(cfg.Headers)
	if cfg.Key != "" {
		if headers == nil {
			headers = map[string]string{}
		}
		headers["Authorization"] = "Bearer " + cfg.Key
	}
	c, err := newClient(strings.TrimRight(cfg.BaseURL, "/")+"/chat/completions", headers, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"model", "messages", "tools", "stream"} {
		if _, ok := cfg.ExtraBody[name]; ok {
			return nil, fmt.Errorf("planner: extra body may not set %q", name)
		}
	}
	o := &OpenAI{cfg: cfg, c: c}
	o.maxField.Store(fieldMaxTokens)
	return o, nil
}

// Close closes idle connections.
func (o *OpenAI) Close() { o.c.close() }

// Decide implements agent.Planner. One question takes one request; a second
// one only where the server does not know a field's name, or the conversation
// was too long and could be shortened.
func (o *OpenAI) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	names := nameTools(s.Tools)
	answer, err := o.ask(ctx, s, names, false)
	var pe *agent.PlannerError
	if errors.As(err, &pe) && pe.Kind == agent.PlannerContext && len(s.Steps) > 0 {
		answer, err = o.ask(ctx, s, names, true)
	}
	return answer, err
}

// ask makes one request, and a second one when a field's name was refused.
func (o *OpenAI) ask(ctx context.Context, s agent.Situation, names toolNames, short bool) (agent.Answer, error) {
	for again := false; ; again = true {
		field := o.maxField.Load().(string)
		body, err := o.request(s, names, field, short)
		if err != nil {
			return agent.Answer{}, err
		}
		r, err := o.c.post(ctx, body)
		if err != nil {
			return agent.Answer{}, err
		}
		if r.status == http.StatusOK {
			return o.answer(r.body, len(body), names)
		}
		said := readError(r.body)
		if !again && o.cfg.MaxTokens > 0 && r.status == http.StatusBadRequest && said.refuses(field) {
			o.maxField.Store(other(field))
			continue
		}
		return agent.Answer{}, o.failure(r, said)
	}
}

func other(field string) string {
	if field == fieldMaxTokens {
		return fieldMaxCompletionTokens
	}
	return fieldMaxTokens
}

// request builds the body. Only members that every server knows are sent
// unless they were configured.
func (o *OpenAI) request(s agent.Situation, names toolNames, maxField string, short bool) ([]byte, error) {
	body := map[string]any{}
	maps.Copy(body, o.cfg.ExtraBody)
	body["model"], body["stream"] = o.cfg.Model, false
	body["messages"] = o.messages(s, names, short)
	if tools := names.describe(s.Tools); len(tools) > 0 {
		body["tools"], body["tool_choice"] = tools, "auto"
		if o.cfg.ParallelToolCalls != nil {
			body["parallel_tool_calls"] = *o.cfg.ParallelToolCalls
		}
	}
	if o.cfg.MaxTokens > 0 {
		body[maxField] = o.cfg.MaxTokens
	}
	if o.cfg.Temperature != nil {
		body["temperature"] = *o.cfg.Temperature
	}
	return goal.Marshal(body)
}

// said is what a server says about a failure. Servers differ in the shape:
// error may be an object or a text, and stand alone or not.
type said struct {
	Message, Type, Code, Param string
	raw                        string
}

func readError(body []byte) said {
	out := said{raw: string(body)}
	var wire struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &wire) != nil {
		return out
	}
	var fields struct {
		Message, Type, Param string
		Code                 any
	}
	if json.Unmarshal(wire.Error, &fields) == nil {
		out.Message, out.Type, out.Param = fields.Message, fields.Type, fields.Param
		if fields.Code != nil {
			out.Code = fmt.Sprint(fields.Code)
		}
	} else {
		_ = json.Unmarshal(wire.Error, &out.Message) // neither object nor text: the raw body is shown
	}
	if out.Message == "" {
		out.Message = wire.Message
	}
	return out
}

// refuses reports whether the server does not know a field.
func (s said) refuses(field string) bool {
	return s.Param == field || s.Param == "" && strings.Contains(s.Message, "'"+field+"'")
}

// text is what to show of it.
func (s said) text() string {
	if s.Message == "" {
		return s.raw
	}
	if s.Param != "" {
		return s.Message + " (" + s.Param + ")"
	}
	return s.Message
}

// quota marks what stays refused however long one waits.
var quota = []string{"insufficient_quota", "credit_balance", "spend_limit", "billing"}

// tooLong marks a conversation over the model's context.
var tooLong = []string{"context_length_exceeded", "maximum context length", "context window", "context size", "prompt is too long"}

// failure classifies a server's error.
func (o *OpenAI) failure(r reply, s said) error {
	text := s.text()
	if o.cfg.Key != "" { // a server may quote it
		text = strings.ReplaceAll(text, o.cfg.Key, "[key]")
	}
	e := failure(r, text)
	all := strings.ToLower(s.Code + " " + s.Type + " " + s.Message)
	switch {
	case (r.status == http.StatusTooManyRequests || r.status == http.StatusBadRequest) && containsAny(all, quota):
		e.Kind, e.Retry = agent.PlannerQuota, 0
	case r.status == http.StatusBadRequest && containsAny(all, tooLong):
		e.Kind = agent.PlannerContext
	}
	return e
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

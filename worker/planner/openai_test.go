package planner_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
)

func situation() agent.Situation {
	return agent.Situation{
		TaskID: "tsk_1", Tenant: "acme",
		Goal: goal.Goal{Objective: goal.Objective{
			Intent: "Refund W1", TargetState: json.RawMessage(`{"orders":{"W1":{"n":9007199254740993}}}`),
		}, Context: json.RawMessage(`{"ticket":"T-88"}`)},
		Left:   []goal.Difference{{Pointer: "/orders/W1/n", Want: json.RawMessage(`9007199254740993`)}},
		State:  map[string]any{"orders": map[string]any{"W1": map[string]any{"m": json.Number("9007199254740995")}}},
		Tools:  []agent.ToolSpec{{Name: "orders.refund", Description: "Refund", InputSchema: json.RawMessage(`{"type":"object"}`)}, {Name: "state.set"}},
		Budget: agent.Budget{Steps: 5, Tokens: -1, Time: time.Minute},
	}
}

// Every way in which servers answer a call, and what is made of it.
func TestOpenAIAnswers(t *testing.T) {
	t.Parallel()
	ok := func(message, finish, usage string) func(http.ResponseWriter, chatRequest, int) {
		return func(w http.ResponseWriter, _ chatRequest, _ int) { reply(w, message, finish, usage) }
	}
	refund := func(args string) string { return "orders.refund " + args }
	rows := map[string]struct {
		behave  func(http.ResponseWriter, chatRequest, int)
		actions []string // tool and arguments, or tool and "!" for malformed
		why     string
	}{
		"plain":                    {ok(toolMessage("orders__refund", `"{\"id\":9007199254740993}"`), "tool_calls", `{"total_tokens":12}`), []string{refund(`{"id":9007199254740993}`)}, ""},
		"finish stop":              {ok(toolMessage("orders__refund", `"{}"`), "stop", ""), []string{refund(`{}`)}, ""},
		"finish tool_call":         {ok(toolMessage("orders__refund", `"{}"`), "tool_call", ""), []string{refund(`{}`)}, ""},
		"finish tool_calling":      {ok(toolMessage("orders__refund", `"{}"`), "tool_calling", ""), []string{refund(`{}`)}, ""},
		"id missing":               {ok(`{"content":null,"tool_calls":[{"type":"function","function":{"name":"orders__refund","arguments":"{}"}}]}`, "tool_calls", ""), []string{refund(`{}`)}, ""},
		"ids repeated":             {ok(`{"tool_calls":[{"id":"a","function":{"name":"orders__refund","arguments":"{}"}},{"id":"a","function":{"name":"state__set","arguments":"{}"}}]}`, "tool_calls", ""), []string{refund(`{}`), "state.set {}"}, ""},
		"arguments an object":      {ok(toolMessage("orders__refund", `{"a":1.10}`), "tool_calls", ""), []string{refund(`{"a":1.10}`)}, ""},
		"arguments empty":          {ok(toolMessage("orders__refund", `""`), "tool_calls", ""), []string{refund(`{}`)}, ""},
		"arguments null":           {ok(toolMessage("orders__refund", `null`), "tool_calls", ""), []string{refund(`{}`)}, ""},
		"arguments null text":      {ok(toolMessage("orders__refund", `"null"`), "tool_calls", ""), []string{refund(`{}`)}, ""},
		"arguments left out":       {ok(`{"tool_calls":[{"function":{"name":"orders__refund"}}]}`, "tool_calls", ""), []string{refund(`{}`)}, ""},
		"arguments not JSON":       {ok(toolMessage("orders__refund", `"{\"a\":"`), "tool_calls", ""), []string{refund("!")}, ""},
		"arguments a list":         {ok(toolMessage("orders__refund", `"[1]"`), "tool_calls", ""), []string{refund("!")}, ""},
		"arguments twice":          {ok(toolMessage("orders__refund", `"{\"a\":1,\"a\":2}"`), "tool_calls", ""), []string{refund("!")}, ""},
		"arguments NaN":            {ok(toolMessage("orders__refund", `"{\"a\":NaN}"`), "tool_calls", ""), []string{refund("!")}, ""},
		"arguments with a tail":    {ok(toolMessage("orders__refund", `"{} done"`), "tool_calls", ""), []string{refund("!")}, ""},
		"arguments cut":            {ok(toolMessage("orders__refund", `"{\"a\":"`), "length", ""), []string{refund("!")}, ""},
		"call is no object":        {ok(`{"tool_calls":["x",null]}`, "tool_calls", ""), []string{"unreadable !", " {}"}, ""},
		"our own spelling":         {ok(toolMessage("orders.refund", `"{}"`), "tool_calls", ""), []string{refund(`{}`)}, ""},
		"unknown tool":             {ok(toolMessage("rm_rf", `"{}"`), "tool_calls", ""), []string{"rm_rf {}"}, ""},
		"call as text":             {ok(`{"content":"<tool_call>{\"name\":\"orders__refund\"}</tool_call>"}`, "stop", ""), nil, "as text"},
		"call as text, tool_calls": {ok(`{"content":"<function=orders__refund>","tool_calls":[]}`, "stop", ""), nil, "as text"},
		"prose":                    {ok(`{"content":"I refunded W1."}`, "stop", ""), nil, "I refunded W1."},
		"content in parts":         {ok(`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "stop", ""), nil, "ab"},
		"content null":             {ok(`{"content":null}`, "stop", ""), nil, ""},
		"content of another shape": {ok(`{"content":{"x":1}}`, "stop", ""), nil, ""},
		"refusal":                  {ok(`{"content":null,"refusal":"I cannot"}`, "stop", ""), nil, "refused: I cannot"},
		"filter":                   {ok(`{"content":""}`, "content_filter", ""), nil, "filter"},
		"cut before any call":      {ok(`{"content":"Let me"}`, "length", ""), nil, "token limit"},
		"thinks aloud and calls":   {ok(`{"content":"Because.","reasoning_content":"hm","tool_calls":[{"function":{"name":"orders__refund","arguments":"{}"}}]}`, "tool_calls", ""), []string{refund(`{}`)}, "Because."},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, cfg := newStub(t, row.behave)
			answer, err := newOpenAI(t, cfg).Decide(t.Context(), situation())
			if err != nil {
				t.Fatal(err)
			}
			if len(answer.Actions) != len(row.actions) || !strings.Contains(answer.Why, row.why) || !json.Valid(answer.State) {
				t.Fatalf("answer %+v; want %q, %q", answer, row.actions, row.why)
			}
			for i, a := range answer.Actions {
				got := a.Tool + " " + string(a.Arguments)
				if a.Malformed != "" {
					got = a.Tool + " !"
				}
				if got != row.actions[i] {
					t.Errorf("action %d: %s, want %s", i, got, row.actions[i])
				}
			}
			if answer.Tokens <= 0 {
				t.Errorf("%d tokens", answer.Tokens)
			}
		})
	}
}

func TestOpenAITokens(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		usage     string
		tokens    int64
		estimated bool
	}{
		"total":           {`{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9}`, 9, false},
		"without a total": {`{"prompt_tokens":3,"completion_tokens":4}`, 7, false},
		"null":            {`null`, 0, true},
		"missing":         {``, 0, true},
		"zero":            {`{"total_tokens":0}`, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) {
				reply(w, `{"content":"x"}`, "stop", row.usage)
			})
			answer, err := newOpenAI(t, cfg).Decide(t.Context(), situation())
			if err != nil || answer.Estimated != row.estimated || !row.estimated && answer.Tokens != row.tokens || answer.Tokens == 0 {
				t.Errorf("%d tokens, estimated %t, %v; want %d, %t", answer.Tokens, answer.Estimated, err, row.tokens, row.estimated)
			}
		})
	}
}

// Every way in which servers fail.
func TestOpenAIErrors(t *testing.T) {
	t.Parallel()
	status := func(code int, body string, header ...string) func(http.ResponseWriter, chatRequest, int) {
		return func(w http.ResponseWriter, _ chatRequest, _ int) { fail(w, code, body, header...) }
	}
	rows := map[string]struct {
		behave func(http.ResponseWriter, chatRequest, int)
		kind   agent.PlannerErrorKind
		retry  time.Duration
		text   string
	}{
		"429":                      {status(429, `{"error":{"message":"slow down"}}`, "Retry-After", "7"), agent.PlannerUnavailable, 7 * time.Second, "slow down"},
		"429 in ms":                {status(429, `{}`, "Retry-After-Ms", "1500", "Retry-After", "7"), agent.PlannerUnavailable, 1500 * time.Millisecond, ""},
		"429 in fractions":         {status(429, `{}`, "Retry-After", "0.25"), agent.PlannerUnavailable, 250 * time.Millisecond, ""},
		"429 for hours":            {status(429, `{}`, "Retry-After", "7200"), agent.PlannerUnavailable, time.Minute, ""},
		"429 unreadable":           {status(429, `{}`, "Retry-After", "soon"), agent.PlannerUnavailable, 0, ""},
		"429 NaN":                  {status(429, `{}`, "Retry-After", "NaN"), agent.PlannerUnavailable, 0, ""},
		"429, quota by code":       {status(429, `{"error":{"message":"x","code":"insufficient_quota"}}`, "Retry-After", "7"), agent.PlannerQuota, 0, ""},
		"429, quota by type":       {status(429, `{"error":{"type":"credit_balance_exhausted"}}`), agent.PlannerQuota, 0, ""},
		"402":                      {status(402, `no credit`), agent.PlannerQuota, 0, "no credit"},
		"500":                      {status(500, `oops`), agent.PlannerUnavailable, 0, "oops"},
		"503 with HTML":            {status(503, `<html>down</html>`, "Retry-After", "1"), agent.PlannerUnavailable, time.Second, ""},
		"529":                      {status(529, `{"error":{"message":"overloaded"}}`), agent.PlannerUnavailable, 0, "overloaded"},
		"408":                      {status(408, ``), agent.PlannerUnavailable, 0, ""},
		"409":                      {status(409, ``), agent.PlannerUnavailable, 0, ""},
		"401":                      {status(401, `{"error":{"message":"Incorrect API key: s3cret"}}`), agent.PlannerConfig, 0, "Incorrect API key: [key]"},
		"403":                      {status(403, ``), agent.PlannerConfig, 0, ""},
		"404":                      {status(404, `{"error":"model not found"}`), agent.PlannerConfig, 0, "model not found"},
		"400 names the field":      {status(400, `{"error":{"message":"not with tools","param":"reasoning_effort"}}`), agent.PlannerConfig, 0, "reasoning_effort"},
		"400, context by code":     {status(400, `{"error":{"message":"x","code":"context_length_exceeded"}}`), agent.PlannerContext, 0, ""},
		"400, context by text":     {status(400, `{"message":"This model's maximum context length is 8192 tokens"}`), agent.PlannerContext, 0, ""},
		"400, code is a number":    {status(400, `{"error":{"message":"bad","code":400}}`), agent.PlannerConfig, 0, "bad"},
		"413":                      {status(413, ``), agent.PlannerContext, 0, ""},
		"redirect":                 {status(302, ``, "Location", "https://h/"), agent.PlannerConfig, 0, ""},
		"200 with HTML":            {status(200, `<html>`), agent.PlannerUnavailable, 0, ""},
		"200 empty":                {status(200, ``), agent.PlannerUnavailable, 0, ""},
		"200, no choices":          {status(200, `{"choices":[]}`), agent.PlannerUnavailable, 0, ""},
		"200, no message":          {status(200, `{"choices":[{}]}`), agent.PlannerUnavailable, 0, ""},
		"200, message is a number": {status(200, `{"choices":[{"message":1}]}`), agent.PlannerUnavailable, 0, ""},
		"cut body": {func(w http.ResponseWriter, _ chatRequest, _ int) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"choices":`)
		}, agent.PlannerUnavailable, 0, ""},
		"hang": {func(http.ResponseWriter, chatRequest, int) { time.Sleep(time.Second) }, agent.PlannerUnavailable, 0, ""},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cfg := newStub(t, row.behave)
			if name == "hang" {
				cfg.Timeout = 300 * time.Millisecond
			}
			answer, err := newOpenAI(t, cfg).Decide(t.Context(), situation())
			var pe *agent.PlannerError
			if !errors.As(err, &pe) || pe.Kind != row.kind || pe.Retry != row.retry || !strings.Contains(err.Error(), row.text) {
				t.Fatalf("answer %+v, %v; want %s after %s: %q", answer, err, row.kind, row.retry, row.text)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("error shows the key: %v", err)
			}
			if len(s.seen()) != 1 {
				t.Errorf("%d requests", len(s.seen()))
			}
		})
	}
}

func TestOpenAIUnreachable(t *testing.T) {
	t.Parallel()
	p := newOpenAI(t, planner.OpenAIConfig{BaseURL: "http://127.0.0.1:1/?key=s3cret", Model: "m"})
	_, err := p.Decide(t.Context(), situation())
	var pe *agent.PlannerError
	if !errors.As(err, &pe) || pe.Kind != agent.PlannerUnavailable || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestOpenAIRequest(t *testing.T) {
	t.Parallel()
	s, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) { reply(w, `{"content":"x"}`, "stop", "") })
	temperature, parallel := 0.0, false
	cfg.Temperature, cfg.ParallelToolCalls, cfg.MaxTokens = &temperature, &parallel, 99
	cfg.Headers, cfg.Instructions, cfg.ExtraBody = map[string]string{"X-Team": "t"}, "Be brief.", map[string]any{"seed": 7}
	sit := situation()
	sit.Notice, sit.Budget.Tokens = "Mind this.", 77
	if _, err := newOpenAI(t, cfg).Decide(t.Context(), sit); err != nil {
		t.Fatal(err)
	}
	got := s.seen()[0]
	if h := s.headers[0]; h.Get("Authorization") != "Bearer s3cret" || h.Get("X-Team") != "t" {
		t.Errorf("headers %v", h)
	}
	for name, want := range map[string]any{
		"temperature": 0.0, "parallel_tool_calls": false, "max_tokens": 99.0, "seed": 7.0, "tool_choice": "auto", "stream": false,
	} {
		if got.all[name] != want {
			t.Errorf("%s is %v, want %v", name, got.all[name], want)
		}
	}
	var told strings.Builder
	for _, m := range got.Messages {
		told.WriteString(m.Role + ": " + *m.Content + "\n")
	}
	text := told.String()
	for _, want := range []string{"Be brief.", "Refund W1", "T-88", "9007199254740993", "9007199254740995", "Mind this.", "Steps left: 5", "Tokens left: 77"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not told in\n%s", want, text)
		}
	}
}

func TestOpenAIRequestWithoutTools(t *testing.T) {
	t.Parallel()
	s, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) { reply(w, `{"content":"x"}`, "stop", "") })
	sit := situation()
	sit.Tools = nil
	if _, err := newOpenAI(t, cfg).Decide(t.Context(), sit); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tools", "tool_choice", "max_tokens", "temperature", "parallel_tool_calls"} {
		if v, ok := s.seen()[0].all[name]; ok {
			t.Errorf("%s is sent: %v", name, v)
		}
	}
}

// A server that knows only the new name gets it at once, and from then on.
func TestOpenAISwapsMaxTokens(t *testing.T) {
	t.Parallel()
	s, cfg := newStub(t, func(w http.ResponseWriter, r chatRequest, _ int) {
		if _, old := r.all["max_tokens"]; old {
			fail(w, 400, `{"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.","param":"max_tokens"}}`)
			return
		}
		reply(w, `{"content":"x"}`, "stop", "")
	})
	cfg.MaxTokens = 5
	p := newOpenAI(t, cfg)
	for range 2 {
		if _, err := p.Decide(t.Context(), situation()); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.seen(); len(got) != 3 || got[2].all["max_completion_tokens"] != 5.0 {
		t.Errorf("%d requests, the last with %v", len(got), got[len(got)-1].all["max_completion_tokens"])
	}
}

// journal makes steps out of an answer, as the loop does.
func journal(steps []agent.Step, answer agent.Answer, outcomes ...goal.Outcome) []agent.Step {
	for i, a := range answer.Actions {
		d := &goal.Decision{Action: a}
		if i == 0 {
			d.PlannerState = answer.State
		}
		step := agent.Step{N: len(steps) + 1, Decision: d}
		if i < len(outcomes) {
			step.Outcome = &outcomes[i]
		}
		steps = append(steps, step)
	}
	return steps
}

// What was decided comes back as the messages that it was, with an answer to
// every call, so that no server refuses the conversation.
func TestOpenAIConversation(t *testing.T) {
	t.Parallel()
	both := `{"content":"Both.","reasoning_content":"secret thought","tool_calls":[
		{"id":"dup","type":"function","extra_content":{"google":{"thought_signature":"sig"}},"function":{"name":"orders__refund","arguments":"{\"id\":9007199254740993}"}},
		{"id":"dup","type":"function","function":{"name":"state__set","arguments":"{}"}},
		{"id":"dup","type":"function","function":{"name":"state__set","arguments":"{\"broken"}}]}`
	s, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, nth int) {
		if nth == 1 {
			reply(w, both, "tool_calls", "")
			return
		}
		reply(w, `{"content":"x"}`, "stop", "")
	})
	p := newOpenAI(t, cfg)
	sit := situation()
	answer, err := p.Decide(t.Context(), sit)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := []goal.Outcome{
		{Kind: goal.CallOK, Result: json.RawMessage(`{"big":"` + strings.Repeat("x", 40<<10) + `"}`)},
		{Kind: goal.CallToolError, Status: 404, Message: "404 Not Found", Result: json.RawMessage(`{"why":9007199254740993}`)},
	}
	answer.Actions = answer.Actions[:2] // the third was dropped by the loop
	sit.Steps = journal(nil, answer, outcomes...)
	sit.Steps = append(sit.Steps,
		agent.Step{N: 3, Refusal: &goal.Refusal{Kind: "no_action", Message: "the planner named no tool call", PlannerState: json.RawMessage(`{"content":"I am done"}`)}},
		agent.Step{N: 4, Refusal: &goal.Refusal{Action: goal.Action{Tool: "a.b"}, Kind: "unknown_tool", Message: "There is no tool"}},
		agent.Step{N: 5, Decision: &goal.Decision{Action: goal.Action{Tool: "orders.refund", Arguments: json.RawMessage(`{"id":1}`)}}}, // lost in a crash
	)
	if _, err := p.Decide(t.Context(), sit); err != nil {
		t.Fatal(err)
	}
	m := s.seen()[1].Messages
	var first strings.Builder
	for _, x := range m {
		first.WriteString(x.Role[:1])
	}
	if roles := first.String(); roles != "su"+"attt"+"a"+"at"+"at"+"u" {
		t.Fatalf("roles %s", roles)
	}
	if m[2].Reasoning != "secret thought" || *m[2].Content != "Both." || m[2].ToolCalls[0].Extra["google"] == nil {
		t.Errorf("assistant message %+v", m[2])
	}
	if got := m[2].ToolCalls[0].Function.Arguments; got != `{"id":9007199254740993}` {
		t.Errorf("arguments %s", got)
	}
	for i, want := range map[int]string{3: "result_cut", 4: `"why":9007199254740993`, 5: "not_executed", 8: "There is no tool", 10: "lost in a crash"} {
		if !strings.Contains(*m[i].Content, want) || len(*m[i].Content) > 20<<10 {
			t.Errorf("message %d: %.200s; want %q", i, *m[i].Content, want)
		}
	}
	if m[7].ToolCalls[0].Function.Name != "a__b" || m[9].ToolCalls[0].Function.Arguments != `{"id":1}` {
		t.Errorf("made-up calls %+v %+v", m[7].ToolCalls, m[9].ToolCalls)
	}
	if *m[6].Content != "I am done" {
		t.Errorf("answer without a call: %q", *m[6].Content)
	}
}

func TestOpenAIWithoutReasoningEcho(t *testing.T) {
	t.Parallel()
	s, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) {
		reply(w, `{"reasoning_content":"hm","tool_calls":[{"function":{"name":"state__set","arguments":"{}"}}]}`, "tool_calls", "")
	})
	cfg.NoReasoningEcho = true
	p := newOpenAI(t, cfg)
	sit := situation()
	answer, err := p.Decide(t.Context(), sit)
	if err != nil || strings.Contains(string(answer.State), "hm") {
		t.Fatalf("state %s, %v", answer.State, err)
	}
	sit.Steps = journal(nil, answer)
	if _, err := p.Decide(t.Context(), sit); err != nil || s.seen()[1].Messages[2].Reasoning != "" {
		t.Errorf("reasoning %q, %v", s.seen()[1].Messages[2].Reasoning, err)
	}
}

// A conversation that is too long is asked again once, with results cut.
func TestOpenAIShortensOnce(t *testing.T) {
	t.Parallel()
	const limit = 12 << 10
	s, cfg := newStub(t, func(w http.ResponseWriter, r chatRequest, _ int) {
		size := 0
		for _, m := range r.Messages {
			if m.Content != nil {
				size += len(*m.Content)
			}
		}
		if size > limit {
			fail(w, 400, `{"error":{"code":"context_length_exceeded","message":"too long"}}`)
			return
		}
		reply(w, toolMessage("state__set", `"{}"`), "tool_calls", "")
	})
	p := newOpenAI(t, cfg)
	sit := situation()
	for range 3 {
		sit.Steps = journal(sit.Steps, agent.Answer{Actions: []goal.Action{{Tool: "state.set"}}},
			goal.Outcome{Kind: goal.CallOK, Result: json.RawMessage(`"` + strings.Repeat("x", 10<<10) + `"`)})
	}
	if answer, err := p.Decide(t.Context(), sit); err != nil || len(answer.Actions) != 1 || len(s.seen()) != 2 {
		t.Errorf("answer %+v, %v after %d requests", answer, err, len(s.seen()))
	}
	sit.State["x"] = strings.Repeat("y", limit)
	_, err := p.Decide(t.Context(), sit)
	var pe *agent.PlannerError
	if !errors.As(err, &pe) || pe.Kind != agent.PlannerContext || len(s.seen()) != 4 {
		t.Errorf("%v after %d requests", err, len(s.seen()))
	}
}

// Whatever a model answered before, the next request is one that servers take:
// the stub checks each.
func TestOpenAIConversationIsAlwaysWellFormed(t *testing.T) {
	t.Parallel()
	_, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) { reply(w, `{"content":"x"}`, "stop", "") })
	p := newOpenAI(t, cfg)
	rapid.Check(t, func(rt *rapid.T) {
		sit := situation()
		for n := range rapid.IntRange(0, 6).Draw(rt, "steps") {
			var state json.RawMessage
			switch rapid.IntRange(0, 3).Draw(rt, "state") {
			case 0:
				state = json.RawMessage(`{"content":"t","calls":[{"function":{"name":"a","arguments":"{}"},"type":"function"},{"function":{"name":"b","arguments":"{}"},"type":"function"}]}`)
			case 1:
				state = json.RawMessage(`{"content":"only words"}`)
			case 2:
				state = json.RawMessage(`{"calls":[null]}`)
			}
			a := goal.Action{Tool: rapid.SampledFrom([]string{"a", "x.y/z", ""}).Draw(rt, "tool")}
			step := agent.Step{N: n + 1, Decision: &goal.Decision{Action: a, PlannerState: state}}
			if rapid.Bool().Draw(rt, "refused") {
				step = agent.Step{N: n + 1, Refusal: &goal.Refusal{Action: a, PlannerState: state}}
			}
			sit.Steps = append(sit.Steps, step)
		}
		if _, err := p.Decide(t.Context(), sit); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestOpenAIToolNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long.", 30)
	var call string
	s, cfg := newStub(t, func(w http.ResponseWriter, _ chatRequest, _ int) {
		reply(w, toolMessage(call, `"{}"`), "tool_calls", "")
	})
	p := newOpenAI(t, cfg)
	sit := situation()
	sit.Tools = []agent.ToolSpec{{Name: "a.b"}, {Name: "a__b"}, {Name: long}, {Name: "é.x"}}
	call = "first"
	if _, err := p.Decide(t.Context(), sit); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, described := range s.seen()[0].Tools {
		name := described["function"].(map[string]any)["name"].(string)
		if badName(name) || seen[name] {
			t.Errorf("name %q", name)
		}
		seen[name] = true
		call = name
		answer, err := p.Decide(t.Context(), sit)
		if err != nil || answer.Actions[0].Tool != sit.Tools[i].Name {
			t.Errorf("%s comes back as %+v, %v", name, answer.Actions, err)
		}
	}
}

func TestOpenAIConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]planner.OpenAIConfig{
		"no model": {BaseURL: "https://h"}, "no URL": {Model: "m"}, "header": {BaseURL: "https://h", Model: "m", Key: "a\nb"},
		"extra body": {BaseURL: "https://h", Model: "m", ExtraBody: map[string]any{"stream": true}},
	} {
		if _, err := planner.NewOpenAI(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// No answer of a server, however broken, does more than end in an error or in
// actions with an object for arguments.
func FuzzOpenAIAnswer(f *testing.F) {
	f.Add(`{"choices":[{"message":{"tool_calls":[{"function":{"name":"a","arguments":"{}"}}]}}]}`)
	f.Add(`{"choices":[{"message":{"tool_calls":[null,1,{"function":null}],"content":[{"text":1}]}}],"usage":{"total_tokens":-1}}`)
	var body string
	s := &stub{t: nil, behave: func(w http.ResponseWriter, _ chatRequest, _ int) { _, _ = io.WriteString(w, body) }}
	p := serveFuzz(f, s)
	f.Fuzz(func(t *testing.T, raw string) {
		s.t, s.requests, s.headers, body = t, nil, nil, raw
		sit := situation()
		answer, err := p.Decide(t.Context(), sit)
		if err != nil {
			if _, ok := errors.AsType[*agent.PlannerError](err); !ok {
				t.Fatalf("%v is not classified", err)
			}
			return
		}
		for i, a := range answer.Actions {
			if a.Malformed == "" {
				if v, err := goal.Decode(a.Arguments); err != nil {
					t.Fatalf("action %d: %v of %v", i, err, v)
				}
			}
		}
		if answer.Tokens < 0 {
			t.Fatalf("%s tokens", strconv.FormatInt(answer.Tokens, 10))
		}
		sit.Steps = journal(nil, answer)
		if _, err := p.Decide(t.Context(), sit); err != nil { // the stub checks the conversation
			t.Fatal(err)
		}
	})
}

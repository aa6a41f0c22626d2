package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// completion is an answer of a chat-completions server, as far as all servers
// agree on it.
type completion struct {
	Choices []struct {
		Message      json.RawMessage `json:"message"`
		FinishReason string          `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	} `json:"usage"`
}

// message is an assistant message. Its calls are kept raw too: some servers
// put fields of their own into them that they want back.
type message struct {
	Content   json.RawMessage   `json:"content"`
	Refusal   string            `json:"refusal"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
}

// toolCall is a call in an assistant message.
type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// reasoningFields are the members of an assistant message in which servers
// tell the model's reasoning, and that some of them insist on getting back.
var reasoningFields = []string{"reasoning_content", "reasoning", "reasoning_details"}

// memory is what this planner keeps with an answer, in Answer.State: the
// assistant message as it goes into later requests.
type memory struct {
	Content   string                     `json:"content,omitempty"`
	Calls     []json.RawMessage          `json:"calls,omitempty"`
	Reasoning map[string]json.RawMessage `json:"reasoning,omitempty"`
}

// answer reads a completion. Whether there are calls decides, not the finish
// reason, which servers disagree on. Prose is never taken for a call.
func (o *OpenAI) answer(body []byte, asked int, names toolNames) (agent.Answer, error) {
	var c completion
	if err := json.Unmarshal(body, &c); err != nil {
		return agent.Answer{}, unavailable(errors.New("the answer is not JSON of a completion"))
	}
	if len(c.Choices) == 0 || isNull(c.Choices[0].Message) {
		return agent.Answer{}, unavailable(errors.New("the answer has no choice"))
	}
	choice := c.Choices[0]
	var m message
	if err := json.Unmarshal(choice.Message, &m); err != nil {
		return agent.Answer{}, unavailable(errors.New("the answer's message has another shape"))
	}
	content := joinContent(m.Content)
	out := agent.Answer{Why: why(content, m, choice.FinishReason)}
	out.Tokens, out.Estimated = c.tokens(asked, len(body))
	kept := memory{Content: content}
	if !o.cfg.NoReasoningEcho {
		kept.Reasoning = reasoningOf(choice.Message)
	}
	for _, raw := range m.ToolCalls {
		action, echo := names.read(raw, choice.FinishReason == "length")
		out.Actions = append(out.Actions, action)
		kept.Calls = append(kept.Calls, echo)
	}
	var err error
	out.State, err = goal.Marshal(kept)
	return out, err
}

func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// tokens is what the answer cost; without a report it is a quarter of the
// bytes, marked as an estimate.
func (c completion) tokens(asked, answered int) (n int64, estimated bool) {
	if u := c.Usage; u != nil {
		if n = max(u.Total, u.Prompt+u.Completion); n > 0 {
			return n, false
		}
	}
	return int64(asked+answered) / 4, true
}

// joinContent reads content that is a text, an array of parts, or null.
func joinContent(raw json.RawMessage) string {
	var text string
	if isNull(raw) || json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// why is what the trace shows.
func why(content string, m message, finish string) string {
	switch {
	case len(m.ToolCalls) > 0:
		return content
	case m.Refusal != "":
		return "The model refused: " + m.Refusal
	case finish == "content_filter":
		return "The provider's filter withheld the answer."
	case finish == "length":
		return "The answer was cut at the token limit before any tool call."
	case containsAny(content, []string{"<tool_call", "<function=", "[TOOL_CALLS]", "<|tool"}):
		return "The model wrote a tool call as text, which is not executed."
	default:
		return content
	}
}

func reasoningOf(raw json.RawMessage) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return nil
	}
	out := map[string]json.RawMessage{}
	for _, name := range reasoningFields {
		if v := members[name]; !isNull(v) {
			out[name] = v
		}
	}
	return out
}

// read takes one call: the action, and the call as it is echoed later, whose
// arguments are always a text with an object in it, since servers that read
// their own history back fail on anything else.
func (n toolNames) read(raw json.RawMessage, cut bool) (goal.Action, json.RawMessage) {
	var call toolCall
	if err := json.Unmarshal(raw, &call); err != nil {
		return goal.Action{Tool: "unreadable", Malformed: "The tool call has another shape than the protocol's."}, nil
	}
	action := goal.Action{Tool: n.original(call.Function.Name)}
	action.Arguments, action.Malformed = arguments(call.Function.Arguments)
	if cut && action.Malformed != "" {
		action.Malformed = "The answer was cut at the token limit. " + action.Malformed
	}
	return action, echo(raw, call.Function.Name, action.Arguments)
}

// arguments reads a call's arguments: a text with JSON in it, as the protocol
// has it, or the object itself; nothing at all is an empty object.
func arguments(raw json.RawMessage) (args json.RawMessage, malformed string) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	if isNull(raw) {
		return json.RawMessage("{}"), ""
	}
	v, err := goal.Decode(raw)
	if err != nil {
		return nil, "The arguments are not JSON: " + err.Error()
	}
	if _, ok := v.(map[string]any); !ok {
		return nil, "The arguments are not a JSON object."
	}
	return raw, ""
}

// echo is a call as later requests repeat it. The id is set when it is
// repeated.
func echo(raw json.RawMessage, name string, args json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		members = map[string]json.RawMessage{}
	}
	if args == nil {
		args = json.RawMessage("{}")
	}
	function, err := goal.Marshal(map[string]string{"name": safeName(name), "arguments": string(args)})
	if err != nil {
		return nil // strings always encode
	}
	delete(members, "id")
	delete(members, "index")
	members["type"], members["function"] = json.RawMessage(`"function"`), function
	out, err := goal.Marshal(members)
	if err != nil {
		return nil // it came from JSON
	}
	return out
}

// callID names the i-th call of the answer that step n began. Servers leave
// ids out, leave them empty or use them twice, so they are always ours.
func callID(n, i int) string { return fmt.Sprintf("call_%d_%d", n, i) }

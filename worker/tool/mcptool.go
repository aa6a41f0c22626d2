package tool

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// mcpTool is a tool as a server describes it.
type mcpTool struct {
	name   string // the server's own name
	spec   agent.ToolSpec
	schema schema
	keyArg string // argument that takes the key; empty: none
}

// keyArguments are the names under which tools take a key.
var keyArguments = []string{"idempotency_key", "idempotencyKey"}

// describe makes a tool out of a server's description.
func (s MCPServer) describe(t *mcp.Tool) *mcpTool {
	input, _ := t.InputSchema.(map[string]any)
	keyArg := s.keyArgument(input)
	raw := planned(input, keyArg)
	out := &mcpTool{name: t.Name, keyArg: keyArg, spec: agent.ToolSpec{
		Name: s.Name + "." + t.Name, Description: t.Description, InputSchema: raw, Roles: s.Roles,
		Replay: s.replay(t, keyArg),
	}}
	// Servers publish other drafts and references of their own. What cannot be
	// compiled here is left to the server to check.
	if checked, err := compile(raw); err == nil {
		out.schema = checked
	}
	return out
}

// keyArgument finds the argument of a tool that takes the key.
func (s MCPServer) keyArgument(input map[string]any) string {
	properties, _ := input["properties"].(map[string]any)
	names := keyArguments
	if s.KeyArgument != "" {
		names = []string{s.KeyArgument}
	}
	for _, name := range names {
		if _, ok := properties[name]; ok {
			return name
		}
	}
	return ""
}

// replay classifies a tool: by configuration, by the hints of a trusted
// server, by an argument that takes the key, else unsafe.
func (s MCPServer) replay(t *mcp.Tool, keyArg string) goal.Replay {
	if r, ok := s.Replay[t.Name]; ok {
		return r
	}
	hints := t.Annotations
	switch {
	case s.Trusted && hints != nil && hints.ReadOnlyHint:
		return goal.ReplayRead
	case keyArg != "":
		return goal.ReplayKeyed
	case s.Trusted && hints != nil && hints.IdempotentHint:
		return goal.ReplayIdempotent
	default:
		return goal.ReplayUnsafe
	}
}

// planned is the schema as planners see it: without the argument that we fill
// in, and without $schema, since servers name drafts that they do not use.
func planned(input map[string]any, keyArg string) json.RawMessage {
	out := make(map[string]any, len(input))
	for k, v := range input {
		if k != "$schema" {
			out[k] = v
		}
	}
	if properties, ok := input["properties"].(map[string]any); ok && keyArg != "" {
		rest := make(map[string]any, len(properties))
		for k, v := range properties {
			if k != keyArg {
				rest[k] = v
			}
		}
		out["properties"] = rest
		if required, ok := input["required"].([]any); ok {
			out["required"] = slices.DeleteFunc(slices.Clone(required), func(v any) bool { return v == keyArg })
		}
	}
	raw, err := goal.Marshal(out)
	if err != nil {
		return nil // it came from JSON
	}
	return raw
}

// withKey is the arguments with the key in its place. Every other argument
// keeps its bytes.
func (t *mcpTool) withKey(raw json.RawMessage, key string) (json.RawMessage, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = emptyArguments
	}
	if t.keyArg == "" {
		return raw, nil
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal(raw, &args); err != nil {
		return nil, &agent.ArgumentsError{Detail: err.Error()}
	}
	if args == nil {
		args = map[string]json.RawMessage{}
	}
	quoted, err := goal.Marshal(key)
	if err != nil {
		return nil, err
	}
	args[t.keyArg] = quoted
	return goal.Marshal(args)
}

// resultOf is a tool's answer as JSON or text. A structured answer is repeated
// as a text by most servers; the text is taken, because its numbers are exact.
// Contents that are not text are shown as the protocol writes them.
func resultOf(r *mcp.CallToolResult) []byte {
	texts, all := textsOf(r)
	switch {
	case r.StructuredContent == nil && all:
		return bytes.Join(texts, []byte("\n"))
	case r.StructuredContent != nil && len(texts) == 1 && all && repeats(texts[0], r.StructuredContent):
		return texts[0]
	case r.StructuredContent != nil && len(r.Content) == 0:
		return marshal(r.StructuredContent)
	case r.StructuredContent != nil:
		return marshal(map[string]any{"structured": r.StructuredContent, "content": r.Content})
	default:
		return marshal(map[string]any{"content": r.Content})
	}
}

func marshal(v any) []byte {
	raw, err := goal.Marshal(v)
	if err != nil {
		return nil // it came from JSON
	}
	return raw
}

// textsOf returns the texts of an answer, and whether it holds nothing else.
func textsOf(r *mcp.CallToolResult) (texts [][]byte, all bool) {
	for _, c := range r.Content {
		t, ok := c.(*mcp.TextContent)
		if !ok {
			return texts, false
		}
		texts = append(texts, []byte(t.Text))
	}
	return texts, true
}

// repeats reports whether a text is the JSON of a value that the SDK decoded.
func repeats(text []byte, v any) bool {
	var decoded any
	return json.Unmarshal(text, &decoded) == nil && reflect.DeepEqual(decoded, v)
}

// inexact reports whether an answer has integers that the SDK's decoding may
// have rounded.
func inexact(r *mcp.CallToolResult) bool {
	texts, all := textsOf(r)
	if r.StructuredContent == nil || len(texts) == 1 && all && repeats(texts[0], r.StructuredContent) {
		return false
	}
	return hasLarge(r.StructuredContent)
}

func hasLarge(v any) bool {
	switch v := v.(type) {
	case float64:
		return math.Abs(v) >= 1<<53
	case map[string]any:
		for _, m := range v {
			if hasLarge(m) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasLarge)
	}
	return false
}

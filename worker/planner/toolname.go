package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// maxToolName is the longest name that every server takes.
const maxToolName = 64

// toolNames translates between our names, which hold dots, and the alphabet
// [A-Za-z0-9_-]{1,64} of the protocol.
type toolNames struct {
	wire map[string]string // by ours
	ours map[string]string // by wire
}

// nameTools names the tools of one request. A name depends on the tool's own
// name alone unless two collide, so that it stays the same over a task.
func nameTools(tools []agent.ToolSpec) toolNames {
	n := toolNames{wire: map[string]string{}, ours: map[string]string{}}
	for _, t := range tools {
		name := wireName(t.Name)
		if _, taken := n.ours[name]; taken {
			name = hashedName(name, t.Name)
		}
		n.wire[t.Name], n.ours[name] = name, t.Name
	}
	return n
}

// safeName keeps a name that servers take, and translates any other: a model
// may have made it up.
func safeName(name string) string {
	if name != "" && len(name) <= maxToolName && strings.IndexFunc(name, outside) < 0 {
		return name
	}
	return wireName(name)
}

// outside reports whether a character is outside the protocol's alphabet.
func outside(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
		return false
	default:
		return true
	}
}

func wireName(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case !outside(r):
			b.WriteRune(r)
		case r == '.':
			b.WriteString("__")
		default:
			b.WriteByte('_')
		}
	}
	if b.Len() > maxToolName || b.Len() == 0 {
		return hashedName(b.String(), name)
	}
	return b.String()
}

// hashedName makes a name unique by a digest of the original.
func hashedName(wire, original string) string {
	sum := sha256.Sum256([]byte(original))
	suffix := "_" + hex.EncodeToString(sum[:4])
	return wire[:min(len(wire), maxToolName-len(suffix))] + suffix
}

// original is our name of a tool; a name that nobody has is kept, so that the
// loop can refuse it by that name.
func (n toolNames) original(wire string) string {
	if ours, ok := n.ours[wire]; ok {
		return ours
	}
	return wire
}

// describe is the tools as a request lists them.
func (n toolNames) describe(tools []agent.ToolSpec) []any {
	out := make([]any, 0, len(tools))
	for _, t := range tools {
		schema := t.InputSchema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		out = append(out, map[string]any{"type": "function", "function": map[string]any{
			"name": n.wire[t.Name], "description": t.Description, "parameters": schema,
		}})
	}
	return out
}

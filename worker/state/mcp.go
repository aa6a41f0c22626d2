package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// MCPReader is a session with an MCP server, as *tool.MCP is. Both methods may
// be called concurrently; a tool's error is an error.
type MCPReader interface {
	CallTool(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error)
	ReadResource(ctx context.Context, uri string) ([]byte, error)
}

// MCPConfig configures a state that an MCP server tells: by a tool that only
// reads, or by a resource. Exactly one of Tool and Resource is set.
type MCPConfig struct {
	Server MCPReader
	// Tool is called with Arguments, in which a string value that is
	// "{collection}" or "{id}" stands for that part of the entity.
	Tool      string
	Arguments map[string]any
	// Resource is the URI, with {collection} and {id} as places.
	Resource string
	// Pointer is the RFC 6901 pointer of the value in the answer.
	Pointer string
	// Text says that the value there is a string that holds JSON, as a file that
	// a server reads out.
	Text     bool
	Timeout  time.Duration // of one read; 0: DefaultTimeout
	MaxBytes int           // of one answer; 0: DefaultMaxBytes
}

// MCP is a state that an MCP server tells. As with HTTP, the places say how
// much one read brings. MCP has no revisions and no ETag.
type MCP struct {
	cfg   MCPConfig
	scope scope
}

// NewMCP checks the configuration.
func NewMCP(cfg MCPConfig) (*MCP, error) {
	if cfg.Server == nil {
		return nil, errors.New("state: no MCP server")
	}
	if (cfg.Tool != "") == (cfg.Resource != "") {
		return nil, errors.New("state: needs an MCP tool or a resource, not both")
	}
	if err := checkPointer(cfg.Pointer); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	m := &MCP{cfg: cfg}
	var places []string
	for _, place := range []string{"collection", "id"} {
		if m.names("{" + place + "}") {
			places = append(places, place)
		}
	}
	var err error
	if m.scope, err = scopeOf(places); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return m, nil
}

// names reports whether the configuration has a place.
func (m *MCP) names(place string) bool {
	if m.cfg.Resource != "" {
		return strings.Contains(m.cfg.Resource, place)
	}
	return slices.Contains(slices.Collect(maps.Values(m.cfg.Arguments)), any(place))
}

// Observe implements agent.State.
func (m *MCP) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	return observe(ctx, entities, m.scope, m.read)
}

func (m *MCP) read(ctx context.Context, e agent.Entity) (answer, error) {
	if m.scope == oneEntity && e.ID == "" {
		return answer{}, errWhole
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	raw, err := m.ask(ctx, e)
	if err != nil {
		return answer{}, err
	}
	if len(raw) > m.cfg.MaxBytes {
		return answer{}, fmt.Errorf("the answer is larger than %d bytes", m.cfg.MaxBytes)
	}
	a, err := decode(raw, m.cfg.Pointer)
	if err != nil || !m.cfg.Text || !a.present {
		return a, err
	}
	text, ok := a.value.(string)
	if !ok {
		return answer{}, errors.New("the value is not a string that holds JSON")
	}
	return decode([]byte(text), "")
}

func (m *MCP) ask(ctx context.Context, e agent.Entity) ([]byte, error) {
	if m.cfg.Resource != "" {
		uri := strings.NewReplacer("{collection}", url.PathEscape(e.Collection), "{id}", url.PathEscape(e.ID)).Replace(m.cfg.Resource)
		return m.cfg.Server.ReadResource(ctx, uri)
	}
	args := make(map[string]any, len(m.cfg.Arguments))
	for name, v := range m.cfg.Arguments {
		switch v {
		case "{collection}":
			v = e.Collection
		case "{id}":
			v = e.ID
		}
		args[name] = v
	}
	raw, err := goal.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	return m.cfg.Server.CallTool(ctx, m.cfg.Tool, raw)
}

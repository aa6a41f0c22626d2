package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Defaults of an MCP server.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultCallTimeout    = 30 * time.Second // of one attempt
	mcpAttempts           = 2                // a session is rebuilt once
	toolsFresh            = time.Minute      // how long a list of tools is not asked for again
	refreshPatience       = 5 * time.Second  // how long to wait for a new list when there is an old one
)

// Members of _meta that every call carries. SEP-3182, which would have given
// the protocol a field of its own, was closed.
const (
	MetaKey         = "dev.goalkeeper/idempotency-key"
	metaTraceparent = "traceparent"
)

// MCPServer configures a server of the Model Context Protocol.
type MCPServer struct {
	Name string // its tools are called "<name>.<tool>"; no dots
	// Command runs a server on stdin and stdout; URL reaches one over
	// streamable HTTP. Exactly one of them is set.
	Command []string
	Dir     string
	Env     map[string]string // with PATH all that the command sees; may hold secrets, never logged
	URL     string
	Headers map[string]string // may hold secrets; never logged

	Tools   []string               // which tools to offer; empty: all
	Roles   []string               // who may use them; empty: everybody
	Trusted bool                   // believe its readOnlyHint and idempotentHint
	Replay  map[string]goal.Replay // by the tool's own name; wins over everything else
	// KeyArgument names the argument that takes the Idempotency-Key; empty:
	// idempotency_key or idempotencyKey, where a tool's schema has it.
	KeyArgument     string
	ProtocolVersion string        // empty: the newest that both speak
	ConnectTimeout  time.Duration // 0: DefaultConnectTimeout
	CallTimeout     time.Duration // 0: DefaultCallTimeout
	StopTimeout     time.Duration // between end of input, SIGTERM and SIGKILL; 0: 2 s

	Objects Objects      // nil: what is too large is cut
	Log     *slog.Logger // nil: slog.Default
}

// MCP is the tools of one server. It keeps one session for all calls: opened
// by the first one, and opened anew after any transport error. All methods
// may be called concurrently.
type MCP struct {
	cfg     MCPServer
	client  *mcp.Client
	results results
	log     *slog.Logger
	dial    chan struct{} // one token: who holds it opens the session
	closing sync.WaitGroup

	mu       sync.Mutex // guards what follows
	link     *link      // nil: no session
	failed   error      // of the last try to open one
	failedAt time.Time
	tools    map[string]*mcpTool
	listed   time.Time // when somebody last went to ask for them
	closed   bool
}

// NewMCP checks the configuration; nothing is started or sent before the first
// call. Close it at the end.
func NewMCP(cfg MCPServer) (*MCP, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("MCP server %q: %w", cfg.Name, err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = DefaultCallTimeout
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &MCP{
		cfg: cfg, log: cfg.Log, results: results{objects: cfg.Objects, log: cfg.Log}, dial: make(chan struct{}, 1),
		client: mcp.NewClient(&mcp.Implementation{Name: "goalkeeper", Version: "1"}, &mcp.ClientOptions{
			Capabilities:   &mcp.ClientCapabilities{}, // nothing that a server could ask us for
			MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		}),
	}, nil
}

func (s MCPServer) check() error {
	switch {
	case !validName(s.Name) || strings.Contains(s.Name, "."):
		return errors.New("a name is 1 to 128 of [A-Za-z0-9_~-]")
	case (len(s.Command) > 0) == (s.URL != ""):
		return errors.New("needs a command or a URL, not both")
	}
	for tool, replay := range s.Replay {
		if !slices.Contains(goal.Replays(), replay) {
			return fmt.Errorf("replay of %s: %q is not one of read, keyed, idempotent, unsafe", tool, replay)
		}
	}
	for name, value := range s.Headers {
		if !validHeader(name, value) {
			return fmt.Errorf("header %q is malformed or not for configuration", name)
		}
	}
	if s.URL != "" {
		u, err := url.Parse(s.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return errors.New("not an absolute http or https URL")
		}
	}
	return nil
}

// Has implements Source.
func (m *MCP) Has(name string) bool { return strings.HasPrefix(name, m.cfg.Name+".") }

// Name is the server's name.
func (m *MCP) Name() string { return m.cfg.Name }

// List implements agent.Toolbox. While the server cannot be reached it answers
// what it last knew.
func (m *MCP) List(ctx context.Context) ([]agent.ToolSpec, error) {
	tools, err := m.known(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("list the tools of MCP server %q: %w", m.cfg.Name, err)
	}
	out := make([]agent.ToolSpec, 0, len(tools))
	for _, t := range tools {
		out = append(out, t.spec)
	}
	sortSpecs(out)
	return out, nil
}

// known returns the tools by full name, asking the server when the list is old
// or when again is set.
func (m *MCP) known(ctx context.Context, again bool) (map[string]*mcpTool, error) {
	m.mu.Lock()
	tools, fresh := m.tools, m.tools != nil && time.Since(m.listed) < toolsFresh
	if !fresh || again {
		m.listed = time.Now() // one caller asks, the others go on with what is known
	}
	m.mu.Unlock()
	if fresh && !again {
		return tools, nil
	}
	patience := m.cfg.ConnectTimeout + m.cfg.CallTimeout
	if tools != nil {
		patience = min(patience, refreshPatience)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found := map[string]*mcpTool{}
	err := m.read(ctx, func(ctx context.Context, s *mcp.ClientSession) error {
		clear(found)
		for t, err := range s.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			if len(m.cfg.Tools) > 0 && !slices.Contains(m.cfg.Tools, t.Name) {
				continue
			}
			known := m.cfg.describe(t)
			if !validName(known.spec.Name) {
				m.log.WarnContext(ctx, "tool is left out: its name cannot be part of a key", "tool", known.spec.Name)
				continue
			}
			found[known.spec.Name] = known
		}
		return nil
	})
	if err != nil {
		if tools != nil {
			return tools, nil
		}
		return nil, err
	}
	m.mu.Lock()
	m.tools = found
	m.mu.Unlock()
	return found, nil
}

// Call implements agent.Toolbox. After a transport error the session is
// rebuilt and the call repeated once with the same key, unless the tool is
// unsafe and something may have been sent.
func (m *MCP) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	started := time.Now()
	t, err := m.find(ctx, c.Tool)
	if err != nil {
		if errors.Is(err, agent.ErrUnknownTool) {
			return goal.Outcome{}, err
		}
		_, message := m.explain(ctx, err)
		return goal.Outcome{
			Kind: goal.CallUnavailable, Message: message + "; nothing was sent", Attempts: 1, Took: goal.Millis(time.Since(started)),
		}, nil
	}
	if _, err := t.schema.check(c.Arguments); err != nil {
		return goal.Outcome{}, err
	}
	args, err := t.withKey(c.Arguments, c.Key)
	if err != nil {
		return goal.Outcome{}, err
	}
	params := &mcp.CallToolParams{Name: t.name, Arguments: args, Meta: mcp.Meta{MetaKey: c.Key}}
	if c.Traceparent != "" {
		params.Meta[metaTraceparent] = c.Traceparent
	}
	out := m.attempts(ctx, c, t, params)
	out.Repeated, out.Took = c.Repeated, goal.Millis(time.Since(started))
	return out, nil
}

// find returns a tool; one that is not in the list is looked for once more.
func (m *MCP) find(ctx context.Context, name string) (*mcpTool, error) {
	for _, again := range []bool{false, true} {
		tools, err := m.known(ctx, again)
		if err != nil {
			return nil, err
		}
		if t := tools[name]; t != nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%w %q", agent.ErrUnknownTool, name)
}

func (m *MCP) attempts(ctx context.Context, c agent.Call, t *mcpTool, params *mcp.CallToolParams) goal.Outcome {
	for n := 1; ; n++ {
		out, again := m.attempt(ctx, c, t, params)
		out.Attempts = n
		if !again || n == mcpAttempts {
			return out
		}
		m.log.InfoContext(ctx, "tool call is repeated", "tool", c.Tool, "task", c.TaskID, "step", c.Step,
			"attempt", n, "kind", out.Kind, "cause", out.Message)
		if pause(ctx, n, 0) != nil {
			return out
		}
	}
}

// attempt sends the call once. Again says that a repeat is allowed and may help.
func (m *MCP) attempt(ctx context.Context, c agent.Call, t *mcpTool, params *mcp.CallToolParams) (out goal.Outcome, again bool) {
	l, err := m.connect(ctx)
	if err != nil {
		_, message := m.explain(ctx, err)
		return goal.Outcome{Kind: goal.CallUnavailable, Message: message + "; nothing was sent"}, true
	}
	ctx, cancel := context.WithTimeout(withCall(ctx, c), m.cfg.CallTimeout)
	defer cancel()
	result, err := l.session.CallTool(ctx, params)
	if err == nil {
		return m.answered(ctx, result), false
	}
	var rpc *jsonrpc.Error
	if errors.As(err, &rpc) && ctx.Err() == nil {
		return refusedByServer(rpc, t.spec.Replay)
	}
	kind, message := m.explain(ctx, err)
	if ctx.Err() == nil {
		m.drop(l, err) // whatever it was: the next call starts afresh
	}
	safe := t.spec.Replay != goal.ReplayUnsafe
	if !safe && kind != goal.CallTimeout {
		kind = goal.CallUnknown
	}
	return goal.Outcome{Kind: kind, Message: message}, safe && ctx.Err() == nil
}

// refusedByServer is the outcome of a JSON-RPC error: the server's answer that
// it did not run the tool, or that it failed in doing so.
func refusedByServer(rpc *jsonrpc.Error, replay goal.Replay) (out goal.Outcome, again bool) {
	out = goal.Outcome{Kind: goal.CallToolError, Message: cutText(rpc.Message)}
	switch rpc.Code {
	case jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidRequest, jsonrpc.CodeParseError:
		return out, false
	}
	if replay == goal.ReplayUnsafe {
		out.Kind = goal.CallUnknown
		return out, false
	}
	out.Kind = goal.CallUnavailable
	return out, true
}

// maxMessage is the longest text of a server that an outcome's message holds.
const maxMessage = 1024

func cutText(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage]
	}
	return strings.ToValidUTF8(s, "")
}

// answered is the outcome of a tool's own answer.
func (m *MCP) answered(ctx context.Context, r *mcp.CallToolResult) goal.Outcome {
	if r.NeedsInput() {
		return goal.Outcome{Kind: goal.CallToolError, Message: "the tool asks for input, which a goal cannot give"}
	}
	out := goal.Outcome{Kind: goal.CallOK}
	if r.IsError {
		out.Kind, out.Message = goal.CallToolError, "the tool answered an error"
	}
	m.results.attach(ctx, &out, resultOf(r), DefaultMaxResponse)
	return out
}

// explain says in words for clients what went wrong. The cause is logged where
// the session ends.
func (m *MCP) explain(ctx context.Context, err error) (goal.OutcomeKind, string) {
	text := err.Error()
	server := fmt.Sprintf("MCP server %q", m.cfg.Name)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ctx.Err(), context.DeadlineExceeded):
		return goal.CallTimeout, server + " did not answer in time"
	case errors.Is(err, context.Canceled):
		return goal.CallUnavailable, "cancelled"
	case strings.Contains(text, "maximum line length"), strings.Contains(text, "exceeds"):
		return goal.CallUnavailable, server + " sent an answer over the frame limit; its session was closed"
	case strings.Contains(text, "invalid character"):
		return goal.CallUnavailable, server + " wrote non-protocol text to stdout"
	default:
		return goal.CallUnavailable, server + " is not reachable or broke the connection"
	}
}

// CallTool calls a tool by its own name for reading, and returns its answer:
// what a state source needs. A tool's error is an error.
func (m *MCP) CallTool(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	var out json.RawMessage
	err := m.read(ctx, func(ctx context.Context, s *mcp.ClientSession) error {
		r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			return err
		}
		if r.IsError || r.NeedsInput() {
			return &toolError{tool: tool, text: cutText(string(resultOf(r)))}
		}
		if inexact(r) {
			return &toolError{tool: tool, text: "the answer has integers beyond 2^53 only in its structured part, which is not exact"}
		}
		out = resultOf(r)
		return nil
	})
	return out, err
}

// toolError is an answer that says no; asking again does not help.
type toolError struct{ tool, text string }

func (e *toolError) Error() string { return "tool " + e.tool + " answered an error: " + e.text }

// ReadResource reads a resource as text.
func (m *MCP) ReadResource(ctx context.Context, uri string) ([]byte, error) {
	var out []byte
	err := m.read(ctx, func(ctx context.Context, s *mcp.ClientSession) error {
		r, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return err
		}
		if len(r.Contents) != 1 {
			return &toolError{tool: "resources/read", text: fmt.Sprintf("%d contents instead of one", len(r.Contents))}
		}
		out = r.Contents[0].Blob
		if out == nil {
			out = []byte(r.Contents[0].Text)
		}
		return nil
	})
	return out, err
}

// read does something that changes nothing, and repeats it once on a new
// session after a transport error.
func (m *MCP) read(ctx context.Context, do func(context.Context, *mcp.ClientSession) error) error {
	for n := 1; ; n++ {
		err := m.readOnce(ctx, do)
		var (
			rpc *jsonrpc.Error
			no  *toolError
		)
		if err == nil || n == mcpAttempts || errors.As(err, &rpc) || errors.As(err, &no) || ctx.Err() != nil {
			return err
		}
		if pause(ctx, n, 0) != nil {
			return err
		}
	}
}

func (m *MCP) readOnce(ctx context.Context, do func(context.Context, *mcp.ClientSession) error) error {
	l, err := m.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	err = do(ctx, l.session)
	var (
		rpc *jsonrpc.Error
		no  *toolError
	)
	if err != nil && ctx.Err() == nil && !errors.As(err, &rpc) && !errors.As(err, &no) {
		m.drop(l, err)
	}
	return err
}

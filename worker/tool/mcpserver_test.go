package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// serverMode makes this test binary play an MCP server over stdio.
const serverMode = "GOALKEEPER_TEST_MCP_SERVER"

// Modes of the stdio server.
const (
	modePlain    = "plain"
	modeNoisy    = "noisy"    // writes text to stdout before the protocol
	modeSilent   = "silent"   // never answers
	modeStubborn = "stubborn" // ignores the end of input and SIGTERM, and leaves a child behind
)

func serveStdio(mode string) {
	fmt.Fprintln(os.Stderr, "server is starting")
	switch mode {
	case modeNoisy:
		fmt.Println("Welcome to my server!")
	case modeSilent:
		time.Sleep(30 * time.Second)
		return
	case modeStubborn:
		signal.Ignore(syscall.SIGTERM)
		child := exec.CommandContext(context.Background(), "sleep", "60")
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
		defer time.Sleep(30 * time.Second)
	}
	p := &played{}
	if err := p.server().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, "server ended:", err)
	}
}

// played is a server with one tool for each behaviour, and what it was sent.
type played struct {
	mu    sync.Mutex
	calls []playedCall
}

type playedCall struct {
	tool, args, key, header, trace string
}

func (p *played) seen() []playedCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]playedCall(nil), p.calls...)
}

func (p *played) note(req *mcp.CallToolRequest) {
	c := playedCall{tool: req.Params.Name, args: string(req.Params.Arguments)}
	c.key, _ = req.Params.Meta[tool.MetaKey].(string)
	c.trace, _ = req.Params.Meta["traceparent"].(string)
	if req.Extra != nil {
		c.header = req.Extra.Header.Get("Idempotency-Key")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func (p *played) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "played", Version: "1"}, nil)
	add := func(name, properties string, hints *mcp.ToolAnnotations, h mcp.ToolHandler) {
		schema := json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","additionalProperties":false,"properties":{` + properties + `}}`)
		s.AddTool(&mcp.Tool{Name: name, InputSchema: schema, Annotations: hints}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			p.note(req)
			return h(ctx, req)
		})
	}
	echo := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(string(req.Params.Arguments)), nil
	}
	add("echo", `"n":{"type":"integer"}`, &mcp.ToolAnnotations{ReadOnlyHint: true}, echo)
	add("pay", `"amount":{"type":"integer"},"idempotency_key":{"type":"string"}`, nil, echo)
	add("put", `"v":{}`, &mcp.ToolAnnotations{IdempotentHint: true}, echo)
	add("fail", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r := text(`{"why":"no"}`)
		r.IsError = true
		return r, nil
	})
	add("refuse", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "not like this"}
	})
	add("crash", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "oops"}
	})
	add("slow", ``, nil, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select { // the notice that the call was cancelled may get lost with the session
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
		return nil, errors.New("too late")
	})
	add("die", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	add("huge", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Repeat("x", 20<<20)), nil
	})
	add("large", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(`["` + strings.Repeat("x", 100<<10) + `"]`), nil
	})
	add("both", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r := text(`{"n": 9007199254740993}`)
		r.StructuredContent = json.RawMessage(`{"n":9007199254740993}`)
		return r, nil
	})
	add("structured", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: json.RawMessage(`{"n":9007199254740993}`)}, nil
	})
	add("picture", ``, nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: []byte("abc"), MIMEType: "image/png"}}}, nil
	})
	s.AddResource(&mcp.Resource{URI: "state://orders/W1", Name: "W1"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "state://orders/W1", Text: `{"n":9007199254740993}`}}}, nil
	})
	return s
}

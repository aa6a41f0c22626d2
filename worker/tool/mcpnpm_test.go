package tool_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// npmServer is the command of a published server, or skips the test.
func npmServer(t *testing.T, name string, args ...string) []string {
	t.Helper()
	modules := os.Getenv("GOALKEEPER_NODE_MODULES")
	if modules == "" {
		t.Skip("GOALKEEPER_NODE_MODULES is not set: no published MCP servers to talk to")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node: ", err)
	}
	return append([]string{node, filepath.Join(modules, "@modelcontextprotocol", name, "dist", "index.js")}, args...)
}

func specOf(t *testing.T, m *tool.MCP, name string) agent.ToolSpec {
	t.Helper()
	specs, err := m.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no tool %s", name)
	return agent.ToolSpec{}
}

func TestMCPEverything(t *testing.T) {
	t.Parallel()
	m := newMCP(t, tool.MCPServer{Command: npmServer(t, "server-everything", "stdio"), Trusted: true})
	if s := specOf(t, m, "srv.echo"); !json.Valid(s.InputSchema) || s.Description == "" {
		t.Errorf("echo is described as %+v", s)
	}
	out, err := m.Call(t.Context(), mcpCall("echo", `{"message":"Grüße"}`))
	if err != nil || !out.OK() || !strings.Contains(string(out.Result), "Grüße") {
		t.Errorf("echo: %+v, %v", out, err)
	}
}

func TestMCPEverythingOverHTTP(t *testing.T) {
	t.Parallel()
	command := npmServer(t, "server-everything", "streamableHttp")
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	awaitPort(t, port)
	m := newMCP(t, tool.MCPServer{URL: "http://127.0.0.1:" + strconv.Itoa(port) + "/mcp"})
	out, err := m.Call(t.Context(), mcpCall("get-sum", `{"a":2,"b":3}`))
	if err != nil || !out.OK() || !strings.Contains(string(out.Result), "5") {
		t.Errorf("get-sum: %+v, %v", out, err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(refusingURL(t), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func awaitPort(t *testing.T, port int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // a foreign process: there is nothing else to wait on
	}
}

func TestMCPFilesystem(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := newMCP(t, tool.MCPServer{Command: npmServer(t, "server-filesystem", dir), Trusted: true})
	if s := specOf(t, m, "srv.read_text_file"); s.Replay != goal.ReplayRead {
		t.Errorf("read_text_file is %s, want read by the hint of a trusted server", s.Replay)
	}
	write, err := json.Marshal(map[string]string{"path": filepath.Join(dir, "a.txt"), "content": "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := m.Call(t.Context(), mcpCall("write_file", string(write))); err != nil || !out.OK() {
		t.Fatalf("write_file: %+v, %v", out, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(got) != "hello" {
		t.Errorf("file holds %q, %v", got, err)
	}
	out, err := m.Call(t.Context(), mcpCall("read_text_file", `{"path":"/etc/hostname"}`))
	if err != nil || out.Kind != goal.CallToolError {
		t.Errorf("a path outside: %+v, %v; want the tool's own error", out, err)
	}
}

func TestMCPMemory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.jsonl")
	m := newMCP(t, tool.MCPServer{
		Command: npmServer(t, "server-memory"), Env: map[string]string{"MEMORY_FILE_PATH": file},
		Replay: map[string]goal.Replay{"create_entities": goal.ReplayIdempotent},
	})
	c := mcpCall("create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["wrote"]}]}`)
	for range 2 {
		if out, err := m.Call(t.Context(), c); err != nil || !out.OK() {
			t.Fatalf("create_entities: %+v, %v", out, err)
		}
	}
	raw, err := m.CallTool(t.Context(), "read_graph", json.RawMessage(`{}`))
	if err != nil || strings.Count(string(raw), `"Ada"`) != 1 {
		t.Errorf("graph %s, %v", raw, err)
	}
}

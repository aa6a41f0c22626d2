package tool_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

func newMCP(t *testing.T, cfg tool.MCPServer) *tool.MCP {
	t.Helper()
	cfg.Name = "srv"
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m, err := tool.NewMCP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// stdio is this test binary as a server.
func stdio(t *testing.T, mode string) tool.MCPServer {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return tool.MCPServer{Command: []string{exe}, Env: map[string]string{serverMode: mode}, StopTimeout: 200 * time.Millisecond}
}

// overHTTP is a played server behind streamable HTTP.
func overHTTP(t *testing.T) (*played, tool.MCPServer) {
	t.Helper()
	p := &played{}
	s := p.server()
	srv := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(srv.Close)
	return p, tool.MCPServer{URL: srv.URL}
}

func mcpCall(name, args string) agent.Call {
	return agent.Call{TaskID: "tsk_1", Step: 1, Tool: "srv." + name, Arguments: json.RawMessage(args), Key: "thekey", Traceparent: "00-trace"}
}

func TestMCPList(t *testing.T) {
	t.Parallel()
	_, cfg := overHTTP(t)
	want := map[string]struct{ plain, trusted goal.Replay }{
		"srv.echo": {goal.ReplayUnsafe, goal.ReplayRead}, "srv.pay": {goal.ReplayKeyed, goal.ReplayKeyed},
		"srv.put": {goal.ReplayUnsafe, goal.ReplayIdempotent}, "srv.fail": {goal.ReplayRead, goal.ReplayRead},
	}
	for _, trusted := range []bool{false, true} {
		cfg.Trusted, cfg.Replay, cfg.Roles = trusted, map[string]goal.Replay{"fail": goal.ReplayRead}, []string{"r"}
		cfg.Tools = []string{"echo", "pay", "put", "fail"}
		specs, err := newMCP(t, cfg).List(t.Context())
		if err != nil || len(specs) != len(want) {
			t.Fatalf("list %v, %v", specs, err)
		}
		for _, s := range specs {
			expect := want[s.Name].plain
			if trusted {
				expect = want[s.Name].trusted
			}
			if s.Replay != expect || s.Roles[0] != "r" {
				t.Errorf("%s, trusted %t: %s, want %s", s.Name, trusted, s.Replay, expect)
			}
			if text := string(s.InputSchema); strings.Contains(text, "idempotency_key") || strings.Contains(text, "$schema") {
				t.Errorf("planner sees %s", text)
			}
		}
	}
}

func TestMCPKeyReachesTheServer(t *testing.T) {
	t.Parallel()
	p, cfg := overHTTP(t)
	m := newMCP(t, cfg)
	out, err := m.Call(t.Context(), mcpCall("pay", `{"amount":9007199254740993}`))
	if err != nil || !out.OK() || string(out.Result) != `{"amount":9007199254740993,"idempotency_key":"thekey"}` {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	got := p.seen()
	if len(got) != 1 || got[0].key != "thekey" || got[0].header != "thekey" || got[0].trace != "00-trace" {
		t.Errorf("server saw %+v", got)
	}
}

func TestMCPOutcomes(t *testing.T) {
	t.Parallel()
	_, cfg := overHTTP(t)
	cfg.Replay = map[string]goal.Replay{"crash": goal.ReplayKeyed}
	store := &objects{}
	cfg.Objects = store
	m := newMCP(t, cfg)
	cfg.CallTimeout = time.Second
	hasty := newMCP(t, cfg)
	rows := map[string]struct {
		tool     string
		kind     goal.OutcomeKind
		attempts int
		want     string // in result or message
	}{
		"text as JSON":      {"echo", goal.CallOK, 1, `{}`},
		"tool's own error":  {"fail", goal.CallToolError, 1, `{"why":"no"}`},
		"refused":           {"refuse", goal.CallToolError, 1, `not like this`},
		"failed, keyed":     {"crash", goal.CallUnavailable, 2, `oops`},
		"too slow":          {"slow", goal.CallTimeout, 1, `in time`},
		"exact text wins":   {"both", goal.CallOK, 1, `{"n": 9007199254740993}`},
		"only structured":   {"structured", goal.CallOK, 1, `{"n":`},
		"picture":           {"picture", goal.CallOK, 1, `image/png`},
		"large is put away": {"large", goal.CallOK, 1, `xxx`},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := m
			if row.tool == "slow" {
				server = hasty
			}
			out, err := server.Call(t.Context(), mcpCall(row.tool, `{}`))
			if err != nil || out.Kind != row.kind || out.Attempts != row.attempts || !strings.Contains(string(out.Result)+out.Message, row.want) {
				t.Errorf("outcome %+v (%s), %v; want %s after %d: %s", out, out.Result, err, row.kind, row.attempts, row.want)
			}
			if row.tool == "large" && (out.Object == "" || len(out.Result) > goal.MaxInline) {
				t.Errorf("large result: object %q, %d bytes inline", out.Object, len(out.Result))
			}
		})
	}
}

func TestMCPRefusesArgumentsAndNames(t *testing.T) {
	t.Parallel()
	p, cfg := overHTTP(t)
	m := newMCP(t, cfg)
	for name, args := range map[string]string{"type": `{"n":"x"}`, "unknown": `{"m":1}`, "no object": `1`, "key is ours": `{"idempotency_key":"mine"}`} {
		tool := "echo"
		if name == "key is ours" {
			tool = "pay"
		}
		var ae *agent.ArgumentsError
		if _, err := m.Call(t.Context(), mcpCall(tool, args)); !errors.As(err, &ae) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Call(t.Context(), mcpCall("nope", `{}`)); !errors.Is(err, agent.ErrUnknownTool) {
		t.Errorf("unknown tool: %v", err)
	}
	if got := p.seen(); len(got) != 0 {
		t.Errorf("server saw %v", got)
	}
}

// A server that was restarted is met again; the list survives while it is away.
func TestMCPServerRestarts(t *testing.T) {
	t.Parallel()
	p := &played{}
	var (
		mu      sync.Mutex
		handler http.Handler
	)
	start := func(h http.Handler) { mu.Lock(); handler = h; mu.Unlock() }
	fresh := func() http.Handler {
		s := p.server()
		t.Cleanup(func() {
			for session := range s.Sessions() {
				_ = session.Close() // its client has forgotten it
			}
		})
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := handler
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	start(fresh())
	m := newMCP(t, tool.MCPServer{URL: srv.URL})
	if out, err := m.Call(t.Context(), mcpCall("pay", `{}`)); err != nil || !out.OK() {
		t.Fatalf("first: %+v, %v", out, err)
	}
	start(fresh()) // knows nothing of the session
	if out, err := m.Call(t.Context(), mcpCall("pay", `{}`)); err != nil || !out.OK() {
		t.Errorf("after a restart: %+v, %v", out, err)
	}
	start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	out, err := m.Call(t.Context(), mcpCall("pay", `{}`))
	if err != nil || out.Kind != goal.CallUnavailable || out.Attempts != 2 {
		t.Errorf("away: %+v, %v", out, err)
	}
	if specs, err := m.List(t.Context()); err != nil || len(specs) == 0 {
		t.Errorf("list while away: %v, %v", specs, err)
	}
	start(fresh())
	if out, err := m.Call(t.Context(), mcpCall("pay", `{}`)); err != nil || !out.OK() {
		t.Errorf("back: %+v, %v", out, err)
	}
}

func TestMCPUnreachable(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]tool.MCPServer{
		"HTTP": {URL: refusingURL(t)}, "command": {Command: []string{"/does/not/exist"}},
	} {
		m := newMCP(t, cfg)
		out, err := m.Call(t.Context(), mcpCall("echo", `{}`))
		if err != nil || out.Kind != goal.CallUnavailable || !strings.Contains(out.Message, "nothing was sent") {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		if _, err := m.List(t.Context()); err == nil {
			t.Errorf("%s: list without an error", name)
		}
	}
}

func TestMCPStdio(t *testing.T) {
	t.Parallel()
	cfg := stdio(t, modePlain)
	cfg.Replay = map[string]goal.Replay{"die": goal.ReplayKeyed}
	m := newMCP(t, cfg)
	if out, err := m.Call(t.Context(), mcpCall("pay", `{"amount":1}`)); err != nil || !out.OK() || !strings.Contains(string(out.Result), `"thekey"`) {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if text := m.Stderr(); !strings.Contains(text, "server is starting") {
		t.Errorf("stderr %q", text)
	}
	out, err := m.Call(t.Context(), mcpCall("die", `{}`))
	if err != nil || out.Kind != goal.CallUnavailable || out.Attempts != 2 {
		t.Errorf("server that dies: %+v, %v", out, err)
	}
	if out, err := m.Call(t.Context(), mcpCall("echo", `{}`)); err != nil || !out.OK() {
		t.Errorf("after it: %+v, %v", out, err)
	}
}

// An answer over the frame limit ends the session, which says so.
func TestMCPFrameLimit(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t) // 20 MiB through two JSON codecs
	m := newMCP(t, stdio(t, modePlain))
	out, err := m.Call(t.Context(), mcpCall("huge", `{}`))
	if err != nil || out.Kind != goal.CallUnknown || !strings.Contains(out.Message, "frame limit") {
		t.Errorf("over the frame limit: %s %s, %v", out.Kind, out.Message, err)
	}
	if out, err := m.Call(t.Context(), mcpCall("echo", `{}`)); err != nil || !out.OK() {
		t.Errorf("after it: %+v, %v", out, err)
	}
}

func TestMCPUnsafeIsCalledOnce(t *testing.T) {
	t.Parallel()
	m := newMCP(t, stdio(t, modePlain))
	out, err := m.Call(t.Context(), mcpCall("die", `{}`))
	if err != nil || out.Kind != goal.CallUnknown || out.Attempts != 1 {
		t.Errorf("outcome %+v, %v", out, err)
	}
}

func TestMCPNoise(t *testing.T) {
	t.Parallel()
	m := newMCP(t, stdio(t, modeNoisy))
	out, err := m.Call(t.Context(), mcpCall("echo", `{}`))
	if err != nil || out.Kind != goal.CallUnavailable || !strings.Contains(out.Message, "non-protocol text") {
		t.Errorf("outcome %+v, %v", out, err)
	}
}

func TestMCPConnectTimeout(t *testing.T) {
	t.Parallel()
	cfg := stdio(t, modeSilent)
	cfg.ConnectTimeout = 300 * time.Millisecond
	started := time.Now()
	out, err := newMCP(t, cfg).Call(t.Context(), mcpCall("echo", `{}`))
	if err != nil || out.Kind != goal.CallUnavailable || time.Since(started) > 10*time.Second {
		t.Errorf("outcome %+v, %v after %s", out, err, time.Since(started))
	}
}

// A server that neither ends nor lets its child end is removed with all its
// processes when the session is closed.
func TestMCPKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	m := newMCP(t, stdio(t, modeStubborn))
	if out, err := m.Call(t.Context(), mcpCall("echo", `{}`)); err != nil || !out.OK() {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	_, after, found := strings.Cut(m.Stderr(), "child ")
	child, err := strconv.Atoi(strings.TrimSpace(after))
	if !found || err != nil {
		t.Fatalf("stderr %q", m.Stderr())
	}
	m.Close()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if gone(child) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the grandchild is still there")
		}
		time.Sleep(5 * time.Millisecond) // there is no event for the end of a process that is not ours
	}
	if _, err := m.List(t.Context()); err != nil {
		t.Errorf("the list is known: %v", err)
	}
	if out, err := m.Call(t.Context(), mcpCall("echo", `{}`)); err != nil || out.Kind != goal.CallUnavailable {
		t.Errorf("call after Close: %+v, %v", out, err)
	}
}

// gone reports whether a process has ended; a zombie that init has not reaped
// counts as ended.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestMCPConcurrentCallsShareASession(t *testing.T) {
	t.Parallel()
	m := newMCP(t, stdio(t, modePlain))
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if out, err := m.Call(t.Context(), mcpCall("echo", `{}`)); err != nil || !out.OK() {
				t.Errorf("outcome %+v, %v", out, err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(m.Stderr(), "server is starting"); n != 1 {
		t.Errorf("%d servers were started", n)
	}
}

func TestMCPForStates(t *testing.T) {
	t.Parallel()
	_, cfg := overHTTP(t)
	m := newMCP(t, cfg)
	for name, want := range map[string]string{"both": `{"n": 9007199254740993}`, "fail": "", "structured": ""} {
		got, err := m.CallTool(t.Context(), name, json.RawMessage(`{}`))
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	raw, err := m.ReadResource(t.Context(), "state://orders/W1")
	if err != nil || string(raw) != `{"n":9007199254740993}` {
		t.Errorf("resource %s, %v", raw, err)
	}
	if _, err := m.ReadResource(t.Context(), "state://orders/none"); err == nil {
		t.Error("absent resource: no error")
	}
}

func TestMCPConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]tool.MCPServer{
		"name": {Name: "a.b", URL: "https://h/"}, "nothing": {Name: "a"}, "both": {Name: "a", URL: "https://h/", Command: []string{"x"}},
		"URL": {Name: "a", URL: "h"}, "replay": {Name: "a", URL: "https://h/", Replay: map[string]goal.Replay{"x": "y"}},
		"header": {Name: "a", URL: "https://h/", Headers: map[string]string{"Idempotency-Key": "x"}},
	} {
		if _, err := tool.NewMCP(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

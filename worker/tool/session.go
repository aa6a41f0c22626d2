package tool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// errClosed means that the server's tools were closed.
var errClosed = errors.New("closed")

// link is one session with a server, and what must be cleaned up after it.
type link struct {
	session *mcp.ClientSession
	process *process        // nil over HTTP
	idle    *http.Transport // nil over stdio
}

// connect returns the session, opening it if there is none. Only one caller
// opens it at a time; the others wait for that or for their own deadline, and
// share its failure, so that a server that hangs is not waited for in a queue.
func (m *MCP) connect(ctx context.Context) (*link, error) {
	asked := time.Now()
	select {
	case m.dial <- struct{}{}:
		defer func() { <-m.dial }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	l, closed, failed, failedAt := m.link, m.closed, m.failed, m.failedAt
	m.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case l != nil:
		return l, nil
	case failed != nil && failedAt.After(asked):
		return nil, failed
	}
	l, err := m.open(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // else it says more about the caller than about the server
			m.failed, m.failedAt = err, time.Now()
		}
		return nil, err
	}
	if m.closed {
		m.end(l)
		return nil, errClosed
	}
	m.link = l
	return l, nil
}

// open starts a session under its own deadline.
func (m *MCP) open(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.ConnectTimeout)
	defer cancel()
	var (
		l         = &link{}
		transport mcp.Transport
	)
	if m.cfg.URL != "" {
		l.idle = newTransport(false)
		transport = &mcp.StreamableClientTransport{
			Endpoint: m.cfg.URL, DisableStandaloneSSE: true,
			HTTPClient: &http.Client{
				Transport:     &mcpRoundTripper{base: l.idle, headers: m.cfg.Headers},
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
		}
	} else {
		l.process = newProcess(m.cfg)
		transport = &mcp.CommandTransport{Command: l.process.cmd, TerminateDuration: m.cfg.StopTimeout}
	}
	var err error
	l.session, err = m.client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: m.cfg.ProtocolVersion})
	if err != nil {
		l.close()
		m.log.WarnContext(ctx, "MCP server could not be connected", "server", m.cfg.Name, "error", err, "stderr", l.stderr())
		return nil, fmt.Errorf("connect: %w", err)
	}
	return l, nil
}

// drop ends a session that failed, if it is still the one in use.
func (m *MCP) drop(l *link, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link != l {
		return
	}
	m.link = nil
	m.log.Warn("MCP session is dropped", "server", m.cfg.Name, "error", cause, "stderr", l.stderr())
	m.end(l)
}

// end closes a session without waiting: a stubborn server takes its time.
// Close waits for it. Callers hold mu.
func (m *MCP) end(l *link) { m.closing.Go(l.close) }

// Close ends the session and waits until the server's processes are gone.
func (m *MCP) Close() {
	m.mu.Lock()
	l := m.link
	m.link, m.closed = nil, true
	if l != nil {
		m.end(l)
	}
	m.mu.Unlock()
	m.dial <- struct{}{} // whoever is opening a session has seen that we are closed
	<-m.dial
	m.closing.Wait()
}

// Stderr is the last that the server wrote to stderr: for operators, since it
// may hold anything.
func (m *MCP) Stderr() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == nil {
		return ""
	}
	return m.link.stderr()
}

func (l *link) close() {
	if l.session != nil {
		_ = l.session.Close() // the error is of a connection that is given up
	}
	if l.process != nil {
		l.process.killGroup()
	}
	if l.idle != nil {
		l.idle.CloseIdleConnections()
	}
}

func (l *link) stderr() string {
	if l.process == nil {
		return ""
	}
	return l.process.stderr.String()
}

// process is a server that we started, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	stderr ring
}

func newProcess(cfg MCPServer) *process {
	p := &process{}
	p.cmd = exec.Command(cfg.Command[0], cfg.Command[1:]...) //nolint:gosec,noctx // the operator's command; its session ends it
	p.cmd.Dir, p.cmd.Stderr = cfg.Dir, &p.stderr
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // our own environment holds secrets
	for name, value := range cfg.Env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.WaitDelay = time.Second // a grandchild that holds stderr must not stall Wait
	ownGroup(p.cmd)
	return p
}

// killGroup removes what the server left behind: closing a session only ends
// the process that we started, not one that it started.
func (p *process) killGroup() {
	if p.cmd.Process != nil {
		killGroup(p.cmd.Process.Pid)
	}
}

// ringSize is how much of a server's stderr is kept.
const ringSize = 8 << 10

// ring keeps the last bytes that were written.
type ring struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (r *ring) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, b[max(0, len(b)-ringSize):]...)
	if over := len(r.buf) - ringSize; over > 0 {
		r.buf = append(r.buf[:0], r.buf[over:]...)
	}
	return len(b), nil
}

// String is what is kept.
func (r *ring) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.buf)
}

// callContext carries a call to the round tripper below the SDK.
type callContext struct{}

func withCall(ctx context.Context, c agent.Call) context.Context {
	return context.WithValue(ctx, callContext{}, c)
}

// mcpRoundTripper adds the configured headers, and a call's key. The SDK sends
// bodies that net/http could send again by itself: GetBody and the canonical
// key name, which make it do so, are avoided.
type mcpRoundTripper struct {
	base    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements http.RoundTripper.
func (t *mcpRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.GetBody = nil
	for name, value := range t.headers {
		req.Header.Set(name, value)
	}
	if c, ok := req.Context().Value(callContext{}).(agent.Call); ok && req.Method == http.MethodPost {
		req.Header["idempotency-key"] = []string{c.Key}
		if c.Traceparent != "" {
			req.Header.Set("Traceparent", c.Traceparent)
		}
	}
	return t.base.RoundTrip(req)
}

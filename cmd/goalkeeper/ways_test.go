package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// instance is a goalkeeper process that serves HTTP.
type instance struct {
	t    testing.TB
	cmd  *exec.Cmd
	url  string
	nats string // of the embedded server, if it listens
	done chan struct{}

	mu   sync.Mutex
	log  bytes.Buffer  // guarded by mu
	more chan struct{} // closed and replaced at every line; guarded by mu
}

// wayLimit covers a loaded machine.
const wayLimit = 60 * time.Second

// launch starts goalkeeper with these arguments and variables, and waits until
// it listens. It is ended with the test.
func launch(tb testing.TB, env []string, args ...string) *instance {
	tb.Helper()
	p := &instance{t: tb, done: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(tb.Context()), "goalkeeper", args...)
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go p.read(stderr)
	tb.Cleanup(func() {
		p.end()
		if tb.Failed() {
			text := p.text()
			tb.Logf("log of goalkeeper %v (end):\n%s", args, text[max(0, len(text)-3000):])
		}
	})
	p.url = p.await(regexp.MustCompile(`listening on (https?://\S+)`))
	if strings.Contains(strings.Join(args, " "), "--nats-listen") {
		p.nats = p.await(regexp.MustCompile(`NATS on (\S+)`))
	}
	return p
}

func (p *instance) read(stderr io.Reader) {
	defer close(p.done)
	for in := bufio.NewReader(stderr); ; {
		line, err := in.ReadString('\n')
		p.mu.Lock()
		p.log.WriteString(line)
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			_ = p.cmd.Wait() // how it ended is asked of its state
			return
		}
	}
}

func (p *instance) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// await waits for a line of the log and returns the first group.
func (p *instance) await(want *regexp.Regexp) string {
	p.t.Helper()
	late := time.NewTimer(wayLimit)
	defer late.Stop()
	for {
		p.mu.Lock()
		m, more := want.FindStringSubmatch(p.log.String()), p.more
		p.mu.Unlock()
		if m != nil {
			return m[len(m)-1]
		}
		select {
		case <-more:
		case <-p.done:
			if m := want.FindStringSubmatch(p.text()); m != nil {
				return m[len(m)-1]
			}
			p.t.Fatalf("goalkeeper ended without %q:\n%s", want, p.text())
		case <-late.C:
			p.t.Fatalf("goalkeeper does not say %q:\n%s", want, p.text())
		}
	}
}

func (p *instance) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end stops the process as an operator would. It may be called again.
func (p *instance) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(wayLimit):
		_ = p.cmd.Process.Kill()
		<-p.done
		p.t.Error("goalkeeper did not end at SIGTERM")
	}
}

// httpReply is an answer whose body was read.
type httpReply struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

func (r httpReply) problem() *goal.Problem {
	p := &goal.Problem{}
	_ = json.Unmarshal(r.body, p) // what is none has no type
	return p
}

func (r httpReply) task() goal.Task {
	var t goal.Task
	_ = json.Unmarshal(r.body, &t) // what is none has no id
	return t
}

// try sends a request; headers are pairs.
func (p *instance) try(method, path string, body []byte, headers ...string) (httpReply, error) {
	return sendTo(p.t.Context(), http.DefaultClient, method, p.url+path, body, headers...)
}

func sendTo(ctx context.Context, c *http.Client, method, url string, body []byte, headers ...string) (httpReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wayLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return httpReply{}, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(headers, 2) {
		if pair[0] == "Host" {
			req.Host = pair[1]
		}
		req.Header.Set(pair[0], pair[1])
	}
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return httpReply{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return httpReply{resp.StatusCode, resp.Header, raw, time.Since(began)}, err
}

// call is try that must get an answer.
func (p *instance) call(method, path string, body []byte, headers ...string) httpReply {
	p.t.Helper()
	r, err := p.try(method, path, body, headers...)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// post submits a goal.
func (p *instance) post(key string, g any, headers ...string) httpReply {
	p.t.Helper()
	return p.call(http.MethodPost, "/v1/tasks", encodedJSON(p.t, g), append(headers, "Idempotency-Key", key)...)
}

// settled waits for the end of a task.
func (p *instance) settled(id string) goal.Task {
	p.t.Helper()
	for end := time.Now().Add(wayLimit); ; {
		r := p.call(http.MethodGet, "/v1/tasks/"+id, nil, "Prefer", "wait=5")
		if t := r.task(); r.status == http.StatusOK && t.Status.Terminal() {
			return t
		}
		if time.Now().After(end) {
			p.t.Fatalf("task %s does not end: %d %s", id, r.status, r.body)
		}
	}
}

func encodedJSON(tb testing.TB, v any) []byte {
	tb.Helper()
	raw, err := goal.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// writeGoal wants one document, which the default environment writes by itself.
func writeGoal(id string, n int) map[string]any {
	return map[string]any{
		"goal":       map[string]any{"intent": "Write one thing", "target_state": map[string]any{"things": map[string]any{id: map[string]any{"n": n}}}},
		"guardrails": map[string]any{"max_steps": 3, "timeout_seconds": 60},
	}
}

// writeConfig writes a configuration file.
func writeConfig(tb testing.TB, path, text string) string {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil { //nolint:gosec // in a folder of the test
		tb.Fatal(err)
	}
	return path
}

// ingestOn starts an ingest process on the NATS servers at url, with more
// configuration, and without workers.
func ingestOn(tb testing.TB, url, config string, env ...string) *instance {
	tb.Helper()
	path := writeConfig(tb, filepath.Join(tb.TempDir(), "ingest.yaml"), "nats: {url: \""+url+"\", replicas: 1}\n"+config)
	return launch(tb, env, "ingest", "--config", path, "--listen", "127.0.0.1:0")
}

// streamsAt are the streams of a server.
func streamsAt(tb testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	tb.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return nc, js
}

// queueEntries is how many entries a tenant's queue has, and how many it ever
// had.
func queueEntries(tb testing.TB, js jetstream.JetStream, tenant string) (now, ever uint64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), wayLimit)
	defer cancel()
	s, err := js.Stream(ctx, goal.GoalsStream(tenant))
	if err != nil {
		tb.Fatal(err)
	}
	state := s.CachedInfo().State
	return state.Msgs, state.LastSeq
}

// comesTrue asks until the answer is yes.
func comesTrue(tb testing.TB, what string, yes func() bool) {
	tb.Helper()
	for end := time.Now().Add(wayLimit); !yes(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("it did not happen: %s", what)
		}
	}
}

// endedBy is the signal that ended a process, or 0.
func endedBy(cmd *exec.Cmd) syscall.Signal {
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return w.Signal()
	}
	return 0
}

// outputOf runs a program to its end.
func outputOf(tb testing.TB, env []string, name string, args ...string) (string, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), wayLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %v: %w", name, args, errors.Join(err, ctx.Err()))
	}
	return string(out), err
}

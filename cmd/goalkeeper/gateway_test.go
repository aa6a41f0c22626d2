package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// pyBackend starts the backend of testdata/py and returns its URL and the log
// of its effects.
func pyBackend(t *testing.T) (url string, effects func() []string, release func()) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3: no backend in another language")
	}
	log := filepath.Join(t.TempDir(), "effects")
	cmd := exec.CommandContext(t.Context(), python, filepath.Join(kvtest.Root(t), "cmd/goalkeeper/testdata/py/backend.py"), log)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://127.0.0.1:" + strings.TrimSpace(port), func() []string {
			raw, err := os.ReadFile(log)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			return strings.FieldsFunc(string(raw), func(r rune) bool { return r == '\n' })
		}, func() {
			if err := os.WriteFile(log+".go", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
}

// startGateway starts a gateway process and waits until it serves.
func startGateway(t *testing.T, dir, listen, admin, upstream string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "goalkeeper", "gateway", "--hold", "--upstream", upstream,
		"--listen", listen, "--admin-listen", admin, "--data", dir)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "listening on ") {
			go func() { _, _ = io.Copy(io.Discard, errs) }() // ends with the process
			return cmd
		}
	}
	t.Fatal("the gateway did not start")
	return nil
}

// TestGatewayKilled kills the gateway between the effect at a backend in
// another language and the record of its answer: the call is held, never run
// again by itself, and runs as attempt 2 once an operator releases it.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t) // it waits for a lease of 30 s to end
	upstream, effects, release := pyBackend(t)
	dir, listen, admin := t.TempDir(), freePort(t), freePort(t)
	gw := startGateway(t, dir, listen, admin, upstream)
	call := func(ctx context.Context, path, key string) (int, http.Header, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listen+path, bytes.NewReader([]byte(`{"amount": 80}`)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header, string(body)
	}
	status, header, first := call(t.Context(), "/pay", "k1")
	if status != http.StatusCreated || header.Get("X-Cache-Lookup") != "MISS" {
		t.Fatalf("first call: %d %v %s", status, header, first)
	}
	slow := make(chan struct{})
	go func() {
		defer close(slow)
		call(t.Context(), "/pay/slow", "k2") // its gateway dies
	}()
	for len(effects()) < 2 { // the effect of the second call happens
		time.Sleep(5 * time.Millisecond)
	}
	if err := gw.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = gw.Wait()
	<-slow
	release()
	gw = startGateway(t, dir, listen, admin, upstream)
	defer func() {
		_ = gw.Process.Kill()
		_ = gw.Wait()
	}()
	if status, header, body := call(t.Context(), "/pay", "k1"); status != http.StatusCreated || header.Get("X-Cache-Lookup") != "HIT" || body != first {
		t.Errorf("replay after the crash: %d %v %s, want the first answer %s", status, header, body, first)
	}
	if status, _, body := call(t.Context(), "/pay/slow", "k2"); status != http.StatusConflict {
		t.Errorf("the call in flight at the crash: %d %s, want 409", status, body)
	}
	if got := effects(); len(got) != 2 {
		t.Fatalf("effects: %q", got)
	}
	operate := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "goalkeeper", append(args, "--server", "http://"+admin)...)
		cmd.Env = append(os.Environ(), "GOALKEEPER_CONFIG_HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	list, err := operate("calls", "list", "--state", "any")
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	var id string
	for line := range strings.Lines(list) {
		if strings.Contains(line, "IN_PROGRESS") || strings.Contains(line, "HELD") {
			id = strings.Fields(line)[0]
		}
	}
	if id == "" {
		t.Fatal("the operator sees no held call")
	}
	for { // the dead process's lease must end first
		out, err := operate("calls", "release", id, "--reason", "the payment was looked up: it is missing")
		if err == nil {
			break
		}
		if !strings.Contains(out, "live lease") {
			t.Fatalf("%v\n%s", err, out)
		}
		time.Sleep(time.Second)
	}
	status, header, body := call(t.Context(), "/pay/slow", "k2")
	if status != http.StatusCreated || header.Get("Goalkeeper-Attempt") != "2" {
		t.Errorf("after the release: %d %v %s", status, header, body)
	}
	if got := effects(); len(got) != 3 || !strings.HasSuffix(got[2], "attempt=2") {
		t.Errorf("effects: %s", fmt.Sprint(got))
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// dialRaw opens a TCP connection to the process.
func dialRaw(t *testing.T, p *instance) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: wayLimit}
	c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(wayLimit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRawRequests sends what no client library would. Each gets a problem, the
// HTTP server's own 400 or a closed connection, never a 2xx or a stack trace, and
// the process goes on.
func TestRawRequests(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	host := "Host: localhost\r\n"
	post := "POST /v1/tasks HTTP/1.1\r\n" + host + "Connection: close\r\nContent-Type: application/json\r\n"
	sound := string(encodedJSON(t, writeGoal("raw", 1)))
	length := func(n int) string { return "Content-Length: " + strconv.Itoa(n) + "\r\n" }
	for _, c := range []struct{ name, text string }{
		{"binary", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS to a plain port\r\n\r\n"},
		{"no request line", "\r\n\r\n\r\n"},
		{"no version", "GET /v1/tasks\r\n\r\n"},
		{"another protocol", "SSH-2.0-OpenSSH_9.9\r\n\r\n"},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{"HTTP/9", "GET / HTTP/9.9\r\n" + host + "\r\n"},
		{"no host", "GET /v1/tasks HTTP/1.1\r\nConnection: close\r\n\r\n"},
		{"two hosts", "GET /v1/tasks HTTP/1.1\r\n" + host + host + "Connection: close\r\n\r\n"},
		{"foreign host", "GET /v1/tasks HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n"},
		{"bad header name", "GET /v1/tasks HTTP/1.1\r\n" + host + "Bad Name: x\r\n\r\n"},
		{"zero in a header", "GET /v1/tasks HTTP/1.1\r\n" + host + "X: a\x00b\r\n\r\n"},
		{"header without end", "GET /v1/tasks HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", 64<<10) + "\r\n\r\n"},
		{"many headers", "GET /v1/tasks HTTP/1.1\r\n" + host + strings.Repeat("X: aaaaaaaaaaaaaaaaaaaa\r\n", 4000) + "\r\n"},
		{"long path", "GET /" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n" + host + "\r\n"},
		{"bad escape", "GET /v1/tasks/%zz HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"zero in the path", "GET /v1/tasks/%00 HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"dots in the path", "GET /v1/../../etc/passwd HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"unknown method", "BREW /v1/tasks HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"connect", "CONNECT example.com:443 HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"trace", "TRACE /v1/tasks HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"bad query", "GET /v1/tasks?limit=%zz&cursor=;; HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"bad cursor", "GET /v1/tasks?cursor=-1e9 HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"},
		{"no key", post + length(len(sound)) + "\r\n" + sound},
		{"two keys", post + "Idempotency-Key: a\r\nIdempotency-Key: b\r\n" + length(len(sound)) + "\r\n" + sound},
		{"empty key", post + "Idempotency-Key:\r\n" + length(len(sound)) + "\r\n" + sound},
		{"key of raw bytes", post + "Idempotency-Key: \xff\xfe\r\n" + length(len(sound)) + "\r\n" + sound},
		{"two lengths", post + "Idempotency-Key: l\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"},
		{"negative length", post + "Idempotency-Key: l\r\nContent-Length: -1\r\n\r\n"},
		{"length and chunks", post + "Idempotency-Key: l\r\n" + length(4) + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
		{"bad chunk", post + "Idempotency-Key: l\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"},
		{"huge chunk", post + "Idempotency-Key: l\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}"},
		{"length of 1 TiB", post + "Idempotency-Key: l\r\n" + length(1<<40) + "\r\n{}"},
		{"no body", post + "Idempotency-Key: l\r\n\r\n"},
		{"no JSON", post + "Idempotency-Key: l\r\n" + length(3) + "\r\n{a}"},
		{"deep JSON", post + "Idempotency-Key: l\r\n" + length(20000) + "\r\n" + strings.Repeat("[", 20000)},
		{"bytes that are no UTF-8", post + "Idempotency-Key: l\r\n" + length(4) + "\r\n\"\xff\xfe\""},
		{"no goal", post + "Idempotency-Key: l\r\n" + length(2) + "\r\n{}"},
		{"a goal that is null", post + "Idempotency-Key: l\r\n" + length(4) + "\r\nnull"},
		{"encoded body", post + "Idempotency-Key: l\r\nContent-Encoding: gzip\r\n" + length(2) + "\r\n{}"},
		{"expectation", post + "Idempotency-Key: l\r\nExpect: 200-maybe\r\n" + length(2) + "\r\n{}"},
		{"upgrade", "GET /v1/tasks/tsk_0/events HTTP/1.1\r\n" + host + "Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := dialRaw(t, p)
			_, _ = conn.Write([]byte(c.text)) // it may be closed before all is written
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			wantRefusal(t, conn)
		})
	}
	t.Cleanup(func() {
		if r, err := sendTo(context.Background(), http.DefaultClient, http.MethodGet, p.url+"/healthz", nil); err != nil || r.status != http.StatusOK {
			t.Errorf("afterwards: %d %v", r.status, err)
		}
		if text := p.text(); strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
			t.Errorf("the log shows a panic:\n%s", text)
		}
	})
}

// wantRefusal reads answers to the end: none, or errors as they should be.
func wantRefusal(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection stays open: %v, after %q", err, raw)
	}
	for _, trace := range []string{"goroutine ", "panic", ".go:", "runtime error"} {
		if bytes.Contains(raw, []byte(trace)) {
			t.Errorf("the answer shows %q:\n%s", trace, raw)
		}
	}
	if len(raw) == 0 {
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("no answer of HTTP: %v\n%q", err, raw)
	}
	defer resp.Body.Close()
	kind := resp.Header.Get("Content-Type")
	switch {
	case resp.StatusCode < http.StatusBadRequest:
		t.Errorf("%d\n%s", resp.StatusCode, raw)
	case kind == "application/problem+json":
	case resp.Header.Get("X-Request-Id") == "" && strings.HasPrefix(kind, "text/plain"): // the HTTP server itself
	case resp.StatusCode >= http.StatusInternalServerError || resp.Header.Get("X-Request-Id") != "":
		t.Errorf("%d as %s\n%s", resp.StatusCode, kind, raw)
	}
}

// TestSlowClients: who sends headers or a body too slowly is cut off, and nobody
// else waits for them.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	var all sync.WaitGroup
	drip := func(name, begin, piece string, least, most time.Duration) {
		conn := dialRaw(t, p)
		began := time.Now()
		_ = conn.SetDeadline(began.Add(most + wayLimit))
		all.Go(func() {
			ended := make(chan struct{})
			defer close(ended)
			_, _ = conn.Write([]byte(begin))
			go func() {
				tick := time.NewTicker(500 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-ended:
						return
					case <-tick.C:
						_, _ = conn.Write([]byte(piece)) // fails when it is cut off
					}
				}
			}()
			raw, _ := io.ReadAll(conn)
			if took := time.Since(began); took < least || took > most+10*time.Second {
				t.Errorf("%s: cut off after %s, want about %s", name, took, most)
			}
			if bytes.Contains(raw, []byte("HTTP/1.1 2")) {
				t.Errorf("%s: answered %q", name, raw)
			}
		})
	}
	for range 50 {
		drip("slow header", "GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\n", "X-A: b\r\n", 4*time.Second, 5*time.Second)
	}
	if os.Getenv("GOALKEEPER_HEAVY") == "1" {
		for range 50 {
			drip("slow body", "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: s\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", " ", 25*time.Second, 30*time.Second)
		}
	}
	if r := p.post("other", writeGoal("o", 1)); r.status != http.StatusAccepted || r.took > 10*time.Second {
		t.Errorf("beside slow clients: %d after %s", r.status, r.took)
	}
	all.Wait()
	if task := p.settled(goal.TaskID(defaultTenant, "other")); task.Status != goal.Succeeded {
		t.Errorf("task = %s", task.Status)
	}
}

// TestTenThousandIdleConnections: they cost memory, not answers, and do not hold
// up the end.
func TestTenThousandIdleConnections(t *testing.T) {
	kvtest.Heavy(t)
	t.Parallel()
	const most = 10_000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < most+1000 {
		t.Skipf("open files are limited to %d", limit.Max)
	}
	p := launch(t, nil, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	before := residentKiB(t, p)
	conns := make([]net.Conn, most)
	for i := range conns {
		conns[i] = dialRaw(t, p)
		if i%2 == 0 { // a half has been used once
			if _, err := conns[i].Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			_ = resp.Body.Close()
		}
	}
	r := p.post("k", writeGoal("idle", 1))
	if r.status != http.StatusAccepted || r.took > 5*time.Second {
		t.Errorf("beside %d idle connections: %d after %s", most, r.status, r.took)
	}
	if task := p.settled(r.task().ID); task.Status != goal.Succeeded {
		t.Errorf("task = %s", task.Status)
	}
	t.Logf("answered in %s; resident memory %d MiB before, %d MiB with the connections", r.took, before>>10, residentKiB(t, p)>>10)
	began := time.Now()
	p.end()
	if took := time.Since(began); took > 45*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// residentKiB is the resident memory of a process.
func residentKiB(t *testing.T, p *instance) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Skipf("no /proc here: %v", err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

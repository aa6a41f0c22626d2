package ingest_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// pipes is a listener whose connections are pipes, so that a server's time
// limits can be tested in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// served runs the world's handler on a whole HTTP server over pipes.
func served(t *testing.T, w *world) *pipes {
	t.Helper()
	p := newPipes()
	srv := ingest.NewHTTPServer("", w.h)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(p) // closed below
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return p
}

func TestSlowHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := served(t, newWorld(t))
		c := p.dial()
		defer func() { _ = c.Close() }()
		begin := time.Now()
		if _, err := io.WriteString(c, "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\n"); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c)
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("a client that sends no header is kept for %s, want 5s", took)
		}
	})
}

// TestSlowBody: a client that does not send its body is told so after 30 s when
// it is read, and is cut off then when it is not.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"Idempotency-Key: k\r\n": http.StatusRequestTimeout, "": http.StatusBadRequest} {
		slowBody(t, key, want)
	}
}

func slowBody(t *testing.T, key string, want int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := served(t, w)
		c := p.dial()
		defer func() { _ = c.Close() }()
		begin := time.Now()
		_, err := io.WriteString(c, "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+key+"Content-Length: 100\r\n\r\n{\"goal\":")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if took := time.Since(begin); resp.StatusCode != want || took != 30*time.Second {
			t.Errorf("status %d after %s, want %d after 30s", resp.StatusCode, took, want)
		}
	})
}

// TestStalledStream: a client that stops reading its event stream is cut off; one
// that reads is kept far beyond every other limit.
func TestStalledStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		p := served(t, w)
		ask := "GET /v1/tasks/" + goal.TaskID("default", "k") + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"

		good := p.dial()
		defer func() { _ = good.Close() }()
		if _, err := io.WriteString(good, ask); err != nil {
			t.Fatal(err)
		}
		read := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(good)
			read <- string(b)
		}()
		stalled := p.dial()
		defer func() { _ = stalled.Close() }()
		if _, err := io.WriteString(stalled, ask); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := w.srv.Watchers(); n != 2 {
			t.Fatalf("%d watchers, want 2", n)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := w.srv.Watchers(); n != 1 {
			t.Errorf("%d watchers after 10 minutes, want the one that reads", n)
		}
		w.srv.Drain(t.Context())
		synctest.Wait()
		_ = good.Close()
		if n := strings.Count(<-read, ": still here"); n != 40 {
			t.Errorf("%d heartbeats in 10 minutes, want 40", n)
		}
	})
}

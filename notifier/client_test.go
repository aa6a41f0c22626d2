package notifier

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// poster is a notifier of which only the client is used.
func poster(t *testing.T, g *Guard, tr http.RoundTripper) *Notifier {
	t.Helper()
	return &Notifier{guard: g, transport: tr, userAgent: "test", log: slog.New(slog.DiscardHandler)}
}

func mustTarget(t *testing.T, g *Guard, url string) Target {
	t.Helper()
	target, err := g.Target(url)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// piped posts to a receiver at the other end of an in-memory connection, in
// virtual time. serve is run for every connection.
func piped(t *testing.T, url string, serve func(net.Conn)) answer {
	t.Helper()
	g := mustGuard(t, "receiver", "bücher.example")
	tr := newTransport(g, nil)
	var wg sync.WaitGroup
	tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		wg.Go(func() {
			defer there.Close()
			serve(there)
		})
		return here, nil
	}
	n := poster(t, g, tr)
	a := n.post(t.Context(), mustTarget(t, g, url), http.Header{"Idempotency-Key": {"msg_1"}}, []byte(`{"a":1}`))
	tr.CloseIdleConnections()
	wg.Wait()
	return a
}

// swallow reads what is sent until the connection ends.
func swallow(c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
}

// says answers every connection with text, and closes it.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(io.LimitReader(c, 1<<20)))
		swallow(c)
		_, _ = io.WriteString(c, text)
	}
}

// drips writes start, then piece every interval, until the connection ends.
func drips(start, piece string, interval time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(io.LimitReader(c, 1<<20)))
		swallow(c)
		for _, err := io.WriteString(c, start); err == nil; _, err = io.WriteString(c, piece) {
			time.Sleep(interval)
		}
	}
}

func silent(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func bomb() string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(make([]byte, 10<<20))
	_ = z.Close()
	return b.String()
}

func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	zipped := bomb()
	for _, tt := range []struct {
		name   string
		serve  func(net.Conn)
		status int
		class  string
		body   string // "*": any, within the limit
		took   time.Duration
	}{
		{"good", says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), 200, "", "ok", 0},
		{"299", says("HTTP/1.1 299 Fine\r\nContent-Length: 0\r\n\r\n"), 299, "", "", 0},
		{"no reason phrase", says("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), 200, "", "", 0},
		{"HTTP/1.0", says("HTTP/1.0 200 OK\r\n\r\nbye"), 200, "", "bye", 0},
		{"204", says("HTTP/1.1 204 No Content\r\n\r\n"), 204, "", "", 0},
		{"204 with a body", says("HTTP/1.1 204 No Content\r\n\r\nstray bytes"), 204, "", "", 0},
		{"205", says("HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"), 205, "", "", 0},
		{"304", says("HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"), 304, ClassRedirect, "", 0},
		{"302 to the inside", says("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), 302, ClassRedirect, "", 0},
		{"307", says("HTTP/1.1 307 Temporary Redirect\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"), 307, ClassRedirect, "", 0},
		{"410", says("HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"), 410, ClassGone, "", 0},
		{"500", says("HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nnope"), 500, Class5xx, "nope", 0},
		{"600", says("HTTP/1.1 600 Beyond\r\nContent-Length: 0\r\n\r\n"), 600, Class5xx, "", 0},
		{"100 before", says("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), 200, "", "", 0},
		{"101", says("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), 101, Class5xx, "", 0},
		{"101 and silence", drips("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "", time.Hour), 101, Class5xx, "", 0},
		{"body cut short", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), 200, "", "abc", 0},
		{"chunked nonsense", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"), 200, "", "", 0},
		{"chunk too long", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc"), 200, "", "", 0},
		{"chunk cut short", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), 200, "", "ab", 0},
		{"binary body", says("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na\xff\xfeb"), 200, "", "a\uFFFDb", 0},
		{"gzip bomb", says("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(len(zipped)) + "\r\n\r\n" + zipped), 200, "", "*", 0},
		{"large body", says("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 1<<20)), 200, "", strings.Repeat("x", 1024), 0},
		{"endless body", drips("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 4096), 0), 200, "", strings.Repeat("x", 1024), 0},
		{"dripping body", drips("HTTP/1.1 200 OK\r\n\r\n", "x", 100*time.Millisecond), 200, "", "*", 2 * time.Second},
		{"stalling body", drips("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "", time.Hour), 200, "", "ab", 2 * time.Second},
		{"stalling body of a failure", drips("HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nab", "", time.Hour), 503, Class5xx, "ab", 2 * time.Second},
		{"silence", silent, 0, ClassTimeout, "", attemptTimeout},
		{"dripping headers", drips("HTTP/1.1 200 OK\r\n", "X: y\r\n", 500*time.Millisecond), 0, ClassTimeout, "", attemptTimeout},
		{"dripping status line", drips("H", "T", 500*time.Millisecond), 0, ClassTimeout, "", attemptTimeout},
		{"endless 100", drips("", "HTTP/1.1 100 Continue\r\n\r\n", 0), 0, ClassResponse, "", 0},
		{"endless 103", drips("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0), 0, ClassResponse, "", 0},
		{"headers of 900 KB", says("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 900<<10) + "\r\n\r\n"), 0, ClassResponse, "", 0},
		{"headers of 70 KB", says("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 70) + "\r\n"), 0, ClassResponse, "", 0},
		{"headers of 50 KB", says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 50) + "\r\n"), 200, "", "", 0},
		{"two lengths", says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 0, ClassResponse, "", 0},
		{"negative length", says("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), 0, ClassResponse, "", 0},
		{"garbage", says("\x16\x03\x01\x00\xff\r\n\r\n"), 0, ClassResponse, "", 0},
		{"HTTP/9", says("HTTP/9.9 OK\r\n\r\n"), 0, ClassResponse, "", 0},
		{"status of four digits", says("HTTP/1.1 2000 OK\r\n\r\n"), 0, ClassResponse, "", 0},
		{"closed without an answer", says(""), 0, ClassReset, "", 0},
		{"closed within the headers", says("HTTP/1.1 200 OK\r\nX: y\r\n"), 0, ClassReset, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := piped(t, "http://receiver/", tt.serve)
				if a.status != tt.status || a.class != tt.class {
					t.Errorf("status %d, class %q (%v), want %d, %q", a.status, a.class, a.err, tt.status, tt.class)
				}
				if tt.body != "*" && a.body != tt.body || len(a.body) > goal.MaxAnswer || !utf8.ValidString(a.body) {
					t.Errorf("kept %q, want %q", a.body, tt.body)
				}
				if a.took != tt.took {
					t.Errorf("took %s, want %s", a.took, tt.took)
				}
			})
		})
	}
}

func TestTLSHandshakeStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := piped(t, "https://receiver/", silent)
		if a.class != ClassTimeout || a.took != tlsTimeout {
			t.Errorf("class %q after %s, want timeout after %s", a.class, a.took, tlsTimeout)
		}
	})
}

// A receiver that closes an idle connection just as it is used again does not
// cost an attempt.
func TestStaleKeepAlive(t *testing.T) {
	t.Parallel()
	var conns, requests atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler) // the second request of the first connection
		}
		rw.WriteHeader(http.StatusOK)
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	n, target := trusting(t, s)
	for i := range 2 {
		if a := n.post(t.Context(), target, http.Header{"Idempotency-Key": {"msg_1"}}, []byte("x")); a.status != 200 {
			t.Errorf("post %d: status %d, class %q (%v), want 200", i+1, a.status, a.class, a.err)
		}
	}
	if conns.Load() != 2 || requests.Load() != 3 {
		t.Errorf("%d connections, %d requests, want 2 and 3", conns.Load(), requests.Load())
	}
}

// trusting is a client that may call the server and trusts its certificate.
func trusting(t *testing.T, s *httptest.Server) (*Notifier, Target) {
	t.Helper()
	g := mustGuard(t, "127.0.0.1")
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	tr := newTransport(g, roots)
	t.Cleanup(tr.CloseIdleConnections)
	return poster(t, g, tr), mustTarget(t, g, s.URL)
}

// HTTP/2 servers send GOAWAY when they restart or rotate connections.
func TestGoAway(t *testing.T) {
	t.Parallel()
	var requests, h2 atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.ProtoMajor == 2 {
			h2.Add(1)
		}
		if requests.Add(1)%7 == 0 {
			rw.Header().Set("Connection", "close") // makes the HTTP/2 server send GOAWAY
		}
		_, _ = rw.Write(body)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	defer s.Close()
	n, target := trusting(t, s)
	const workers, each = 8, 50
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				if a := n.post(t.Context(), target, http.Header{"Idempotency-Key": {"msg_1"}}, []byte("body")); a.status != 200 || a.body != "body" {
					t.Errorf("status %d, body %q, class %q (%v), want 200", a.status, a.body, a.class, a.err)
				}
			}
		})
	}
	wg.Wait()
	if requests.Load() != workers*each || h2.Load() != requests.Load() {
		t.Errorf("%d requests, %d of them HTTP/2, want %d", requests.Load(), h2.Load(), workers*each)
	}
}

func TestConnectionIsReused(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(make([]byte, 8<<10))
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	n, target := trusting(t, s)
	for range 20 {
		if a := n.post(t.Context(), target, http.Header{}, []byte("x")); a.status != 200 {
			t.Fatalf("status %d, class %q (%v)", a.status, a.class, a.err)
		}
	}
	if conns.Load() != 1 {
		t.Errorf("%d connections for 20 posts, want 1", conns.Load())
	}
}

func TestTLSErrors(t *testing.T) {
	t.Parallel()
	quietServer := func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		return s
	}
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	post := func(s *httptest.Server, url string, trust bool) answer {
		g := mustGuard(t, "127.0.0.1", "localhost")
		roots := x509.NewCertPool()
		if trust {
			roots.AddCert(s.Certificate())
		}
		tr := newTransport(g, roots)
		defer tr.CloseIdleConnections()
		return poster(t, g, tr).post(t.Context(), mustTarget(t, g, url), http.Header{}, []byte("x"))
	}
	unknown := quietServer(never)
	unknown.StartTLS()
	defer unknown.Close()
	if a := post(unknown, unknown.URL, false); a.class != ClassTLS {
		t.Errorf("unknown authority: %q (%v), want tls", a.class, a.err)
	}
	if a := post(unknown, strings.Replace(unknown.URL, "127.0.0.1", "localhost", 1), true); a.class != ClassTLS {
		t.Errorf("wrong name: %q (%v), want tls", a.class, a.err)
	}
	old := quietServer(never)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11} //nolint:gosec // what the test is about
	old.StartTLS()
	defer old.Close()
	if a := post(old, old.URL, true); a.class != ClassTLS {
		t.Errorf("TLS 1.1: %q (%v), want tls", a.class, a.err)
	}
	plain := quietServer(never)
	plain.Start()
	defer plain.Close()
	if a := post(plain, strings.Replace(plain.URL, "http:", "https:", 1), false); a.class != ClassTLS {
		t.Errorf("plain HTTP: %q (%v), want tls", a.class, a.err)
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/"
	_ = l.Close()
	g := mustGuard(t, "127.0.0.1")
	a := poster(t, g, newTransport(g, nil)).post(t.Context(), mustTarget(t, g, url), http.Header{}, nil)
	if a.class != ClassConnect || !a.suspicious() {
		t.Errorf("class %q (%v), want connect", a.class, a.err)
	}
}

// An IPv6 literal and an IDN arrive as the receiver knows itself.
func TestHosts(t *testing.T) {
	t.Parallel()
	t.Run("IDN", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var host string
			a := piped(t, "http://bücher.example/ä?ü", func(c net.Conn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err == nil {
					host = r.Host + " " + r.RequestURI
				}
				swallow(c)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			})
			if a.status != 200 || host != "xn--bcher-kva.example /%C3%A4?ü" {
				t.Errorf("status %d, arrived as %q", a.status, host)
			}
		})
	})
	t.Run("IPv6", func(t *testing.T) {
		t.Parallel()
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "[::1]:0")
		if err != nil {
			t.Skipf("no IPv6 loopback here: %v", err)
		}
		var host string
		s := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { host = r.Host })}}
		s.Start()
		defer s.Close()
		g := mustGuard(t, "::1")
		tr := newTransport(g, nil)
		defer tr.CloseIdleConnections()
		a := poster(t, g, tr).post(t.Context(), mustTarget(t, g, "http://"+l.Addr().String()+"/"), http.Header{}, []byte("x"))
		if a.status != 200 || host != l.Addr().String() {
			t.Errorf("status %d (%v), Host %q, want 200 and %q", a.status, a.err, host, l.Addr())
		}
	})
}

func TestTextIsCutAtACharacter(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{
		bytes.Repeat([]byte("é"), 512), append([]byte("x"), bytes.Repeat([]byte("é"), 512)...)[:1024], bytes.Repeat([]byte{0xff, 'a'}, 512), {},
	} {
		if s := text(b); len(s) > goal.MaxAnswer || !utf8.ValidString(s) {
			t.Errorf("text of %d bytes is %d bytes, valid %v", len(b), len(s), utf8.ValidString(s))
		}
	}
}

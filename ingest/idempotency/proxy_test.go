package idempotency

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rawUpstream serves connections by hand: serve gets each request and writes
// what it likes; it returns false to close the connection.
type rawUpstream struct {
	url   string
	execs atomic.Int64
	conns atomic.Int64
}

func newRawUpstream(t *testing.T, serve func(r *http.Request, w io.Writer) bool) *rawUpstream {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &rawUpstream{url: "http://" + l.Addr().String()}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.conns.Add(1)
			group.Go(func() { u.serve(c, serve) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		group.Wait()
	})
	return u
}

func (u *rawUpstream) serve(c net.Conn, serve func(r *http.Request, w io.Writer) bool) {
	defer func() { _ = c.Close() }()
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if unsafeMethod(r.Method) {
			u.execs.Add(1)
		}
		if !serve(r, c) {
			return
		}
	}
}

// gatewayWorld is a gateway with one route to the URL.
func gatewayWorld(t *testing.T, upstream string, change func(*Route)) *world {
	t.Helper()
	w := &world{t: t, store: newMemStore()}
	r := Route{Path: "/", Upstream: upstream}
	if change != nil {
		change(&r)
	}
	g, err := NewGateway(GatewayConfig{Guard: Config{Store: w.store, Log: quiet()}, Routes: []Route{r}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g)
	t.Cleanup(func() {
		front.Close()
		g.Close()
	})
	w.guard, w.url, w.client = g.routes[0].guard, front.URL, front.Client()
	return w
}

func ok(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") }

// http.Transport sends a POST with an Idempotency-Key again when a reused
// connection dies before the first byte of the answer.
func TestTransportDoesNotRepeat(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}"} {
		for _, name := range []string{"", "X-Idempotency-Key"} {
			t.Run(fmt.Sprintf("body %q %s", body, name), func(t *testing.T) {
				t.Parallel()
				u := newRawUpstream(t, func(r *http.Request, w io.Writer) bool {
					if r.URL.Path == "/die" {
						return false // after the effect
					}
					ok(w)
					return true
				})
				w := gatewayWorld(t, u.url, nil)
				w.call(http.MethodGet, "/warm", "", "").want(t, 200)
				pairs := []string{"Content-Type", "application/json"}
				if name != "" {
					pairs = append(pairs, name, "k")
				}
				w.call(http.MethodPost, "/die", "k", body, pairs...).want(t, 502, "Retry-After", "30").
					problem(t, "dependency-unavailable")
				if u.execs.Load() != 1 || u.conns.Load() != 1 {
					t.Fatalf("%d executions on %d connections; want 1 on 1", u.execs.Load(), u.conns.Load())
				}
				w.state(Held)
				w.call(http.MethodPost, "/die", "k", body, pairs...).want(t, 409)
			})
		}
	}
}

// Without our cure, the Transport does repeat: the test above can fail.
func TestTransportWouldRepeat(t *testing.T) {
	t.Parallel()
	u := newRawUpstream(t, func(r *http.Request, w io.Writer) bool {
		if r.URL.Path == "/die" {
			return false
		}
		ok(w)
		return true
	})
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	send := func(method, path string) {
		r, err := http.NewRequestWithContext(t.Context(), method, u.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(HeaderKey, "k")
		res, err := tr.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	send(http.MethodGet, "/warm")
	send(http.MethodPost, "/die")
	if u.execs.Load() != 2 {
		t.Fatalf("%d executions; want 2: has the Transport changed?", u.execs.Load())
	}
}

func TestUpstreamUnreachable(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	w := gatewayWorld(t, "http://"+addr, nil)
	for attempt := range 2 {
		w.post("k", "{}").want(t, 502, HeaderAttempt, strconv.Itoa(attempt+1), "Retry-After", "").
			problem(t, "dependency-unavailable")
		w.state(Released)
	}
	w.call(http.MethodGet, "/", "", "").want(t, 502).problem(t, "dependency-unavailable")
}

func TestAmbiguousFailures(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		serve  func(r *http.Request, w io.Writer) bool
	}{
		{"closed without an answer", 502, func(*http.Request, io.Writer) bool { return false }},
		{"not an answer", 502, func(_ *http.Request, w io.Writer) bool {
			_, _ = io.WriteString(w, "SMTP ready\r\n\r\n")
			return false
		}},
		{"shorter than announced", 502, func(_ *http.Request, w io.Writer) bool {
			_, _ = io.WriteString(w, "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf")
			return false
		}},
		{"cut in a chunk", 502, func(_ *http.Request, w io.Writer) bool {
			_, _ = io.WriteString(w, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
			return false
		}},
		{"no answer in time", 504, func(_ *http.Request, _ io.Writer) bool {
			<-time.After(400 * time.Millisecond)
			return false
		}},
		{"half an answer in time", 504, func(_ *http.Request, w io.Writer) bool {
			_, _ = io.WriteString(w, "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf")
			<-time.After(400 * time.Millisecond)
			return false
		}},
	} {
		for _, mode := range []Ambiguous{Expire, Hold} {
			t.Run(test.name+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				u := newRawUpstream(t, test.serve)
				w := gatewayWorld(t, u.url, func(r *Route) {
					r.OnAmbiguous, r.Timeout = mode, 200*time.Millisecond
				})
				r := w.post("k", "{}").want(t, test.status, "Retry-After", "30", HeaderLookup, "MISS").problem(t, "dependency-unavailable")
				if strings.Contains(r.body, "half") || strings.Contains(r.body, "127.0.0.1") {
					t.Errorf("the problem shows too much: %s", r.body)
				}
				w.state(Held)
				if rec := w.store.record(); rec.Reason == "" {
					t.Error("no reason for the operator")
				}
				w.store.mu.Lock()
				ends := w.store.recs[recordID("default", "k")].ends
				w.store.mu.Unlock()
				if (mode == Hold) != ends.IsZero() {
					t.Errorf("the record ends at %v", ends)
				}
				w.post("k", "{}").want(t, 409).problem(t, "request-in-progress")
				if u.execs.Load() != 1 {
					t.Errorf("%d executions; want 1", u.execs.Load())
				}
			})
		}
	}
}

func TestUnprotectedTimeout(t *testing.T) {
	t.Parallel()
	silent := make(chan struct{})
	u := newRawUpstream(t, func(*http.Request, io.Writer) bool {
		<-silent
		return false
	})
	w := gatewayWorld(t, u.url, func(r *Route) { r.Timeout = 100 * time.Millisecond })
	w.call(http.MethodGet, "/", "", "").want(t, 504).problem(t, "dependency-unavailable")
	close(silent)
}

// Credentials of callers are not ours to judge: they reach the backend, and
// nothing of them is kept.
func TestWhatTheUpstreamSees(t *testing.T) {
	t.Parallel()
	var seen *http.Request
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Clone(context.WithoutCancel(r.Context()))
		w.Header().Set(HeaderLookup, "HIT from squid:3128")
		w.Header().Set(HeaderReplayed, "true")
		w.Header().Set("Connection", "X-Private")
		w.Header().Set("X-Private", "1")
	}))
	defer upstream.Close()
	w := gatewayWorld(t, upstream.URL+"/base", func(r *Route) { r.Path, r.StripPath = "/api", true })
	w.call(http.MethodPost, "/api/a%2Fb?x=%zz;y", `"k"`, "", HeaderAttempt, "7", HeaderFence, "7", "X-Forwarded-For", "6.6.6.6",
		"Accept-Encoding", "gzip", "Te", "trailers", "Authorization", "Bearer secret").
		want(t, 200, HeaderLookup, "MISS", HeaderReplayed, "", "X-Private", "")
	for _, check := range [][2]string{
		{seen.RequestURI, "/base/a%2Fb?x=%zz;y"},
		{seen.Header.Get(HeaderKey), `"k"`},
		{seen.Header.Get(HeaderAttempt), "1"},
		{seen.Header.Get(HeaderFence), "1"},
		{seen.Header.Get("X-Forwarded-For"), "127.0.0.1"},
		{seen.Header.Get("Accept-Encoding"), "identity"},
		{seen.Host, strings.TrimPrefix(upstream.URL, "http://")},
		{seen.Method, http.MethodPost},
		{seen.Header.Get("Authorization"), "Bearer secret"},
	} {
		if check[0] != check[1] {
			t.Errorf("the upstream saw %q; want %q", check[0], check[1])
		}
	}
	for _, rec := range w.store.recs {
		if strings.Contains(string(rec.data), "secret") || strings.Contains(string(rec.data), "x=%zz") {
			t.Errorf("credentials or the query are kept: %s", rec.data)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	backend := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, name+" "+r.URL.Path+" "+r.Host) //nolint:gosec // a test
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	g, err := NewGateway(GatewayConfig{Guard: Config{Store: newMemStore(), Log: quiet()}, Routes: []Route{
		{Path: "/pay", Upstream: backend("pay")},
		{Path: "/pay/refunds/", Upstream: backend("refunds"), StripPath: true, PreserveHost: true},
		{Path: "/open", Upstream: backend("open"), Unprotected: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g)
	t.Cleanup(func() {
		front.Close()
		g.Close()
	})
	w := &world{t: t, url: front.URL, client: front.Client()}
	for path, want := range map[string]string{"/pay": "pay /pay ", "/pay/x": "pay /pay/x ", "/pay/refunds/1": "refunds /1 "} {
		got := w.call(http.MethodGet, path, "", "").want(t, 200).body
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s led to %q; want %q", path, got, want)
		}
		if preserved := strings.HasSuffix(got, strings.TrimPrefix(front.URL, "http://")); preserved != strings.HasPrefix(got, "refunds") {
			t.Errorf("%s: host preserved: %v (%q)", path, preserved, got)
		}
	}
	for _, path := range []string{"/payments", "/", "/pay/../admin", "/pay/%2e%2e/admin", "/pay/..%5cadmin"} {
		w.call(http.MethodGet, path, "", "").want(t, 404).problem(t, "not-found")
	}
	w.call(http.MethodPost, "/open/x", "", "{}").want(t, 200, HeaderLookup, "")
	w.call(http.MethodPost, "/pay/x", "", "{}").want(t, 400)
}

func TestGatewayConfig(t *testing.T) {
	t.Parallel()
	good := Route{Path: "/a", Upstream: "http://localhost:1"}
	for name, change := range map[string]func(*GatewayConfig){
		"no routes":         func(c *GatewayConfig) { c.Routes = nil },
		"no store":          func(c *GatewayConfig) { c.Guard.Store = nil },
		"twice":             func(c *GatewayConfig) { c.Routes = append(c.Routes, Route{Path: "/a/", Upstream: good.Upstream}) },
		"relative path":     func(c *GatewayConfig) { c.Routes[0].Path = "a" },
		"dots":              func(c *GatewayConfig) { c.Routes[0].Path = "/a/../b" },
		"no URL":            func(c *GatewayConfig) { c.Routes[0].Upstream = "%" },
		"no host":           func(c *GatewayConfig) { c.Routes[0].Upstream = "http://" },
		"ftp":               func(c *GatewayConfig) { c.Routes[0].Upstream = "ftp://x" },
		"userinfo":          func(c *GatewayConfig) { c.Routes[0].Upstream = "http://u:p@x" },
		"negative timeout":  func(c *GatewayConfig) { c.Routes[0].Timeout = -1 },
		"short lease":       func(c *GatewayConfig) { c.Routes[0].Lease = time.Second },
		"long lease":        func(c *GatewayConfig) { c.Routes[0].Lease = 2 * time.Minute },
		"short result TTL":  func(c *GatewayConfig) { c.Routes[0].ResultTTL = time.Hour },
		"long result TTL":   func(c *GatewayConfig) { c.Routes[0].ResultTTL = 8 * 24 * time.Hour },
		"split second":      func(c *GatewayConfig) { c.Routes[0].Lease = 30*time.Second + 1 },
		"unknown ambiguous": func(c *GatewayConfig) { c.Routes[0].OnAmbiguous = "retry" },
		"huge answer":       func(c *GatewayConfig) { c.Routes[0].MaxResponse = 1 << 40 },
		"huge request":      func(c *GatewayConfig) { c.Routes[0].MaxRequest = 1 << 40 },
		"negative waiters":  func(c *GatewayConfig) { c.Guard.MaxWaiters = -1 },
		"negative run":      func(c *GatewayConfig) { c.Guard.StoreTimeout = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := GatewayConfig{Guard: Config{Store: newMemStore()}, Routes: []Route{good}}
			change(&c)
			if g, err := NewGateway(c); err == nil {
				g.Close()
				t.Fatal("accepted")
			} else if strings.Contains(err.Error(), "u:p") {
				t.Errorf("the error shows credentials: %v", err)
			}
		})
	}
}

package idempotency

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// form is a way to mount a backend behind the contract.
type form string

const (
	middleware form = "middleware"
	proxied    form = "proxy"
)

// world is a protected backend on its own server.
type world struct {
	t      *testing.T
	store  *memStore
	guard  *Guard
	url    string
	client *http.Client
	runs   atomic.Int64 // of the backend, unsafe methods only
}

// bothForms runs the test in-process and through the proxy.
func bothForms(t *testing.T, test func(t *testing.T, f form)) {
	t.Helper()
	for _, f := range []form{middleware, proxied} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newWorld serves the backend. change may break the rules of Config, to shorten
// a lease.
func newWorld(t *testing.T, f form, backend http.HandlerFunc, change func(*Config)) *world {
	t.Helper()
	w := &world{t: t, store: newMemStore()}
	cfg, err := Config{Store: w.store, Log: quiet()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		t.Fatal(err)
	}
	w.guard = newGuard(cfg, m)
	t.Cleanup(w.guard.Close)
	var handler http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if unsafeMethod(r.Method) {
			w.runs.Add(1)
		}
		backend(rw, r)
	})
	if f == proxied {
		handler = w.proxy(handler)
	}
	front := httptest.NewUnstartedServer(w.guard.Wrap(handler))
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	front.Start()
	t.Cleanup(front.Close)
	w.url, w.client = front.URL, front.Client()
	return w
}

func (w *world) proxy(backend http.Handler) http.Handler {
	upstream := httptest.NewUnstartedServer(backend)
	upstream.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	upstream.Start()
	w.t.Cleanup(upstream.Close)
	target, err := url.Parse(upstream.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	handler, closeIdle := Route{ConnectTimeout: 5 * time.Second}.proxy(target, w.guard.cfg)
	w.t.Cleanup(closeIdle)
	return handler
}

// reply is an answer with its body read.
type reply struct {
	*http.Response
	body string
}

// call sends one request; pairs are header fields.
func (w *world) call(method, path, key, body string, pairs ...string) reply {
	w.t.Helper()
	r, err := w.send(w.t.Context(), method, path, key, body, pairs...)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (w *world) send(ctx context.Context, method, path, key, body string, pairs ...string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.GetBody = nil // or the Transport of the test repeats a request by itself
	if key != "" {
		req.Header.Set(HeaderKey, key)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Header.Add(pairs[i], pairs[i+1])
	}
	res, err := w.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	return reply{res, string(data)}, err
}

func (w *world) post(key, body string, pairs ...string) reply {
	w.t.Helper()
	return w.call(http.MethodPost, "/pay", key, body, append([]string{"Content-Type", "application/json"}, pairs...)...)
}

// want checks the status, and the header fields given as pairs; "" means absent.
func (r reply) want(t *testing.T, status int, pairs ...string) reply {
	t.Helper()
	if r.StatusCode != status {
		t.Fatalf("status %d %s; want %d", r.StatusCode, r.body, status)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if got := r.Header.Get(pairs[i]); got != pairs[i+1] {
			t.Fatalf("%s: %q; want %q (status %d)", pairs[i], got, pairs[i+1], status)
		}
	}
	return r
}

func (r reply) problem(t *testing.T, kind string) reply {
	t.Helper()
	if !strings.Contains(r.body, "/problems/"+kind+`"`) || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("status %d, body %s; want the problem %s", r.StatusCode, r.body, kind)
	}
	return r
}

func (w *world) ran(n int64) {
	w.t.Helper()
	if got := w.runs.Load(); got != n {
		w.t.Fatalf("the backend ran %d times; want %d", got, n)
	}
}

// state checks the record of the key "k"; "" means that there is none.
func (w *world) state(want State) {
	w.t.Helper()
	var got State
	if rec := w.store.record(); rec != nil {
		got = rec.State
	}
	if got != want {
		w.t.Fatalf("record is %q; want %q", got, want)
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		}
	}
}

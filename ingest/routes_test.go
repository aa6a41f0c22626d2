package ingest_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestEveryErrorIsAProblem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, row := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/v1", 404, ""},
		{"GET", "/v1/tasks/", 404, ""},
		{"GET", "/v1/nothing", 404, ""},
		{"GET", "/v1/tasks/x/y/z", 404, ""},
		{"GET", "/metrics", 404, ""}, // none was passed in
		{"DELETE", "/v1/tasks", 405, "GET, HEAD, POST"},
		{"PUT", "/v1/tasks/tsk_x", 405, "GET, HEAD"},
		{"GET", "/v1/tasks/tsk_x/cancel", 405, "POST"},
		{"POST", "/healthz", 405, "GET, HEAD"},
		{"BREW", "/v1/tasks", 405, "GET, HEAD, POST"},
		{"BREW", "/nothing", 404, ""},
		{"GET", "/v1/tools?%zz", 400, ""},
		{"GET", "/v1/tasks?limit=0", 400, ""},
	} {
		rec := w.call(row.method, row.path, "")
		if rec.Code != row.status {
			t.Errorf("%s %s: status %d, want %d", row.method, row.path, rec.Code, row.status)
		}
		wantHeader(t, rec, "Allow", row.allow)
		problemIn(t, rec)
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for path, media := range map[string]string{"/v1/schemas/goal.json": "application/schema+json", "/openapi.json": "application/json"} {
		rec := w.call(http.MethodGet, path, "")
		wantStatus(t, rec, http.StatusOK)
		wantHeader(t, rec, "Content-Type", media)
		again := w.call(http.MethodGet, path, "", "If-None-Match: "+rec.Header().Get("ETag"))
		wantStatus(t, again, http.StatusNotModified)
	}
	if got, want := w.call(http.MethodGet, "/v1/schemas/goal.json", "").Body.String(), string(goal.Schema()); got != want {
		t.Error("the schema that is served is not the one that is used")
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ingest.Config) {
		c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
			panic("secret at 10.0.0.7")
		}
	})
	rec := w.post("k", goodGoal)
	wantStatus(t, rec, http.StatusInternalServerError)
	if p := problemIn(t, rec); p.Kind() != goal.InternalError || strings.Contains(rec.Body.String(), "10.0.0.7") || strings.Contains(rec.Body.String(), "goroutine") {
		t.Errorf("body = %s", rec.Body)
	}
}

func TestGzip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.call(http.MethodGet, "/openapi.json", "", "Accept-Encoding: br, gzip;q=0.5")
	wantHeader(t, rec, "Content-Encoding", "gzip")
	zr, err := gzip.NewReader(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(zr); err != nil || string(body) != string(ingest.OpenAPI()) {
		t.Errorf("unpacked body differs, %v", err)
	}
	for _, accept := range []string{"", "identity", "gzip;q=0", "gzip;q=0.0", "br"} {
		rec := w.call(http.MethodGet, "/openapi.json", "", "Accept-Encoding: "+accept)
		wantHeader(t, rec, "Content-Encoding", "")
		wantHeader(t, rec, "Vary", "Accept-Encoding")
	}
	small := w.call(http.MethodGet, "/healthz", "", "Accept-Encoding: gzip")
	wantHeader(t, small, "Content-Encoding", "")
}

func TestCORS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ingest.Config) { c.CORSOrigins = []string{"https://app.example.com"} })
	ask := []string{"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: idempotency-key"}
	rec := w.call(http.MethodOptions, "/v1/tasks", "", append(ask, "Origin: https://app.example.com")...)
	wantStatus(t, rec, http.StatusNoContent)
	wantHeader(t, rec, "Access-Control-Allow-Origin", "https://app.example.com")
	if !strings.Contains(rec.Header().Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Error("a page may not send the key")
	}
	rec = w.post("k", goodGoal, "Origin: https://app.example.com", "Sec-Fetch-Site: cross-site")
	wantStatus(t, rec, http.StatusAccepted)
	for _, name := range []string{"Location", "Retry-After", "Idempotent-Replayed", "ETag", "X-Should-Retry"} {
		if !strings.Contains(rec.Header().Get("Access-Control-Expose-Headers"), name) {
			t.Errorf("a page may not read %s", name)
		}
	}
	foreign := w.call(http.MethodOptions, "/v1/tasks", "", append(ask, "Origin: https://evil.example")...)
	wantHeader(t, foreign, "Access-Control-Allow-Origin", "")
	rec = w.post("k2", goodGoal, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site")
	wantStatus(t, rec, http.StatusForbidden)
	if w.store.stored() != 1 {
		t.Error("a foreign page submitted a goal")
	}
}

func TestOpenServerRefusesEveryOrigin(t *testing.T) {
	t.Parallel()
	_, err := ingest.New(ingest.Config{Store: newFakeStore(), Auth: ingest.Anonymous("default"), CORSOrigins: []string{"*"}})
	if err == nil {
		t.Error("CORS for everybody without keys was taken")
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantHeader(t, w.call(http.MethodGet, "/healthz", "", "X-Request-Id: abc-1.2_3"), "X-Request-Id", "abc-1.2_3")
	for _, bad := range []string{"", "a b", "<script>", strings.Repeat("a", 65)} {
		id := w.call(http.MethodGet, "/healthz", "", "X-Request-Id: "+bad).Header().Get("X-Request-Id")
		if len(id) != 36 || id == bad {
			t.Errorf("request id for %q = %q", bad, id)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	down := true
	w := newWorld(t, func(c *ingest.Config) {
		c.Ready = func(context.Context) error {
			if down {
				return errors.New("no connection")
			}
			return nil
		}
	})
	wantStatus(t, w.call(http.MethodGet, "/readyz", ""), http.StatusServiceUnavailable)
	down = false
	wantStatus(t, w.call(http.MethodGet, "/readyz", ""), http.StatusOK)
	w.srv.Drain(t.Context())
	w.srv.Drain(t.Context())
	rec := w.call(http.MethodGet, "/readyz", "")
	wantStatus(t, rec, http.StatusServiceUnavailable)
	if !strings.Contains(rec.Body.String(), "draining") {
		t.Errorf("body = %s", rec.Body)
	}
	wantStatus(t, w.call(http.MethodGet, "/healthz", ""), http.StatusOK)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted) // until the HTTP server is shut down
}

func TestPages(t *testing.T) {
	t.Parallel()
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page of "+r.URL.Path) }) //nolint:gosec // no browser reads it
	w := newWorld(t, func(c *ingest.Config) { c.Pages = pages })
	for _, row := range []struct {
		path, accept string
		page         bool
	}{
		{"/", "text/html,application/xhtml+xml", true},
		{"/tasks/x", "text/html", true},
		{"/", "application/json", false},
		{"/v1/nothing", "text/html", false},
	} {
		rec := w.call(http.MethodGet, row.path, "", "Accept: "+row.accept)
		if got := strings.HasPrefix(rec.Body.String(), "page of "); got != row.page {
			t.Errorf("%s for %s: page %v, want %v", row.path, row.accept, got, row.page)
		}
	}
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	keys, err := ingest.NewKeys([]ingest.Key{
		{SHA256: ingest.HashKey("user"), Tenant: "a"}, {SHA256: ingest.HashKey("root"), Tenant: "a", Roles: []string{"admin"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *ingest.Config) {
		c.Auth = keys
		c.Admin = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	})
	wantStatus(t, w.call(http.MethodGet, "/v1/admin/calls", ""), http.StatusUnauthorized)
	wantStatus(t, w.call(http.MethodGet, "/v1/admin/calls", "", "Authorization: Bearer user"), http.StatusForbidden)
	wantStatus(t, w.call(http.MethodGet, "/v1/admin/calls", "", "Authorization: Bearer root"), http.StatusTeapot)
}

type catalog []ingest.Environment

func (c catalog) Environments(context.Context) ([]ingest.Environment, error) { return c, nil }

func TestCatalogByRole(t *testing.T) {
	t.Parallel()
	keys, err := ingest.NewKeys([]ingest.Key{
		{SHA256: ingest.HashKey("clerk"), Tenant: "a"}, {SHA256: ingest.HashKey("boss"), Tenant: "a", Roles: []string{"refunds", "ops"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *ingest.Config) {
		c.Auth = keys
		c.Catalog = catalog{
			{Name: "shop", Tools: []ingest.Tool{{Name: "orders.get", Replay: goal.ReplayRead}, {Name: "orders.refund", Replay: goal.ReplayKeyed, Roles: []string{"refunds"}}}},
			{Name: "ops", Roles: []string{"ops"}, Tools: []ingest.Tool{{Name: "restart", Replay: goal.ReplayUnsafe}}},
		}
	})
	for _, row := range []struct {
		path, key string
		names     []string
		hidden    []string
	}{
		{"/v1/environments", "clerk", []string{"shop"}, []string{"ops"}},
		{"/v1/environments", "boss", []string{"shop", "ops"}, nil},
		{"/v1/tools", "clerk", []string{"orders.get"}, []string{"orders.refund", "restart"}},
		{"/v1/tools", "boss", []string{"orders.get", "orders.refund", "restart"}, nil},
		{"/v1/tools?environment=ops", "boss", []string{"restart"}, []string{"orders.get"}},
		{"/v1/tools?environment=ops", "clerk", nil, []string{"restart"}},
	} {
		rec := w.call(http.MethodGet, row.path, "", "Authorization: Bearer "+row.key)
		wantStatus(t, rec, http.StatusOK)
		for _, n := range row.names {
			if !strings.Contains(rec.Body.String(), `"`+n+`"`) {
				t.Errorf("%s for %s lacks %s", row.path, row.key, n)
			}
		}
		for _, n := range row.hidden {
			if strings.Contains(rec.Body.String(), `"name":"`+n+`"`) {
				t.Errorf("%s for %s shows %s", row.path, row.key, n)
			}
		}
	}
}

package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestTraceHTTP: spans are named by route, never by path, and carry on only
// what is a traceparent.
func TestTraceHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, false, func(*config) {})
	tests := map[string]struct {
		method, path, parent string
		want                 string // empty: no span
		status               int
		trace                string // of the parent; empty: a new one
	}{
		"route with a parameter":  {method: "GET", path: "/v1/tasks/tsk_x", want: "GET /v1/tasks/{id}", status: 404},
		"below the parameter":     {method: "POST", path: "/v1/tasks/tsk_x/cancel", want: "POST /v1/tasks/{id}/cancel", status: 404},
		"the caller's trace":      {method: "GET", path: "/v1/tasks?limit=1", parent: callerHeader, want: "GET /v1/tasks", status: 200, trace: callerTrace},
		"a malformed traceparent": {method: "GET", path: "/v1/tasks", parent: "00-" + callerTrace, want: "GET /v1/tasks", status: 200},
		"no route":                {method: "GET", path: "/v1/secretword", want: "GET", status: 404},
		"made-up method":          {method: "BREW", path: "/v1/tasks", want: "_OTHER", status: 405},
		"probe":                   {method: "GET", path: "/healthz", status: 200},
		"metrics":                 {method: "GET", path: "/metrics", status: 200},
		"page":                    {method: "GET", path: "/", status: 404},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := tracetest.NewSpanRecorder()
			tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			h := traceHTTP(tp.Tracer("test"), s.service.ingest.Handler())
			r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, http.NoBody)
			r.Host = s.service.listener.Addr().String()
			r.Header.Set("Traceparent", test.parent)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != test.status {
				t.Errorf("status %d, want %d", w.Code, test.status)
			}
			var got []string
			for _, span := range spans.Ended() {
				got = append(got, span.Name())
				if trace := span.SpanContext().TraceID().String(); (trace == test.trace) != (test.trace != "") {
					t.Errorf("trace %s, want %s", trace, test.trace)
				}
			}
			var want []string
			if test.want != "" {
				want = []string{test.want}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %s: spans %q, want %q", test.method, test.path, got, want)
			}
			if r.Header.Get("Traceparent") != test.parent {
				t.Error("the caller's request was changed")
			}
		})
	}
}

// TestAdminListener: profiles and metrics are on the admin listener, and
// profiles are nowhere else.
func TestAdminListener(t *testing.T) {
	t.Parallel()
	s := newSite(t, true, func(c *config) { c.AdminListen = anyPort })
	admin := "http://" + s.service.admin.Addr().String()
	tests := map[string]struct {
		url  string
		want int
	}{
		"index":             {admin + "/debug/pprof/", 200},
		"heap":              {admin + "/debug/pprof/heap?debug=1", 200},
		"goroutines":        {admin + "/debug/pprof/goroutine", 200},
		"symbols":           {admin + "/debug/pprof/symbol", 200},
		"metrics":           {admin + "/metrics", 200},
		"health":            {admin + "/healthz", 200},
		"readiness":         {admin + "/readyz", 200},
		"not with the API":  {s.url + "/debug/pprof/", 404},
		"no API with admin": {admin + "/v1/tasks", 404},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, test.url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if status, _, _ := s.do(req); status != test.want {
				t.Errorf("GET %s: %d, want %d", test.url, status, test.want)
			}
		})
	}
}

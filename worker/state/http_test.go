package state_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
)

func entities(keys ...string) []agent.Entity {
	var out []agent.Entity
	for _, k := range keys {
		out = append(out, agent.EntityOf(k))
	}
	return out
}

func sameState(t *testing.T, got map[string]any, want string) {
	t.Helper()
	v, err := goal.Decode([]byte(want))
	if err != nil {
		t.Fatal(err)
	}
	if !goal.Equal(got, v) {
		t.Errorf("state %v, want %s", got, want)
	}
}

func TestHTTPObserve(t *testing.T) {
	t.Parallel()
	world := map[string]string{
		"/state":       `{"orders":{"W1":{"n":9007199254740993}},"v":1}`,
		"/orders":      `{"W1":{"n":1},"W2":{"n":2}}`,
		"/orders/W1":   `{"n":9007199254740993}`,
		"/orders/a%2F": `1`,
		"/wrapped/x":   `{"data":{"a/b":{"n":1}}}`,
		"/users/u1":    `"u"`,
	}
	var (
		mu    sync.Mutex
		asked []string
	)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.EscapedPath())
		mu.Unlock()
		if r.Header.Get("X-Key") != "s3cret" || r.Method != http.MethodGet {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, ok := world[r.URL.EscapedPath()]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", `"e`+r.URL.Path+`"`)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	rows := map[string]struct {
		cfg      state.HTTPConfig
		entities []agent.Entity
		want     string
		etag     string
		err      string
	}{
		"whole":                {state.HTTPConfig{URL: "/state"}, entities("orders/W1", "v"), world["/state"], `"e/state"`, ""},
		"member":               {state.HTTPConfig{URL: "/{collection}"}, entities("orders/W1", "orders/W2"), `{"orders":{"W1":{"n":1},"W2":{"n":2}}}`, `"e/orders"`, ""},
		"entity":               {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("orders/W1"), `{"orders":{"W1":{"n":9007199254740993}}}`, `"e/orders/W1"`, ""},
		"two entities, no tag": {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("orders/W1", "users/u1"), `{"orders":{"W1":{"n":9007199254740993}},"users":{"u1":"u"}}`, ``, ""},
		"id is escaped":        {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("orders/a/"), `{"orders":{"a/":1}}`, `"e/orders/a/"`, ""},
		"pointer":              {state.HTTPConfig{URL: "/{collection}/{id}", Pointer: "/data/a~1b"}, entities("wrapped/x"), `{"wrapped":{"x":{"n":1}}}`, `"e/wrapped/x"`, ""},
		"pointer to nothing":   {state.HTTPConfig{URL: "/{collection}/{id}", Pointer: "/data/no"}, entities("wrapped/x"), `{"wrapped":{}}`, `"e/wrapped/x"`, ""},
		"404 is unknown":       {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("orders/no"), ``, ``, "404"},
		"404 is absent":        {state.HTTPConfig{URL: "/{collection}/{id}", MissingAsEmpty: true}, entities("orders/no"), `{"orders":{}}`, ``, ""},
		"member whole":         {state.HTTPConfig{URL: "/{collection}/{id}", CollectionURL: "/{collection}"}, entities("orders"), `{"orders":` + world["/orders"] + `}`, `"e/orders"`, ""},
		"no way to a member":   {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("v"), ``, ``, "whole"},
		"whole is no object":   {state.HTTPConfig{URL: "/users/u1"}, entities("v"), ``, ``, "object"},
		"dot segment":          {state.HTTPConfig{URL: "/{collection}/{id}"}, entities("orders/.."), ``, ``, "dot segment"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.cfg.URL, row.cfg.Headers = srv.URL+row.cfg.URL, map[string]string{"X-Key": "s3cret"}
			if row.cfg.CollectionURL != "" {
				row.cfg.CollectionURL = srv.URL + row.cfg.CollectionURL
			}
			h, err := state.NewHTTP(row.cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(h.Close)
			obs, err := h.Observe(t.Context(), row.entities)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Errorf("got %v, %v; want error %q", obs, err, row.err)
				}
				return
			}
			if err != nil || obs.ETag != row.etag {
				t.Fatalf("ETag %s, %v; want %s", obs.ETag, err, row.etag)
			}
			sameState(t, obs.State, row.want)
		})
	}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if slices.Contains(asked, "/orders/W2") {
			t.Error("read what nobody named")
		}
	})
}

func TestHTTPUnknown(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("followed to another origin") }))
	t.Cleanup(other.Close)
	for name, h := range map[string]http.HandlerFunc{
		"500":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"204":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"HTML":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"twice": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1,"a":2}`) },
		"empty": func(http.ResponseWriter, *http.Request) {},
		"too large": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `"`+strings.Repeat("x", 2000)+`"`)
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{}`)
		},
		"away": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) },
		"hang": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(h)
			t.Cleanup(srv.Close)
			s, err := state.NewHTTP(state.HTTPConfig{URL: srv.URL + "/?k=s3cret", Timeout: 300 * time.Millisecond, MaxBytes: 1000, MissingAsEmpty: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			obs, err := s.Observe(t.Context(), entities("a"))
			if err == nil || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %v, %v; want an error without the query", obs, err)
			}
		})
	}
}

func TestHTTPWeakTag(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `W/"1"`)
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(srv.Close)
	h, err := state.NewHTTP(state.HTTPConfig{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if obs, err := h.Observe(t.Context(), entities("a")); err != nil || obs.ETag != "" {
		t.Errorf("ETag %q, %v", obs.ETag, err)
	}
}

func TestHTTPConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]state.HTTPConfig{
		"no URL": {}, "other place": {URL: "https://h/{x}"}, "id alone": {URL: "https://h/{id}"}, "pointer": {URL: "https://h/", Pointer: "a"},
		"collection URL":      {URL: "https://h/{collection}/{id}", CollectionURL: "https://h/x"},
		"collection URL idle": {URL: "https://h/", CollectionURL: "https://h/{collection}"},
	} {
		if _, err := state.NewHTTP(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

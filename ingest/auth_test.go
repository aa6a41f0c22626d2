package ingest_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	keys, err := ingest.NewKeys([]ingest.Key{{SHA256: ingest.HashKey("gk_good"), Tenant: "a", Name: "ci"}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *ingest.Config) { c.Auth = keys })
	for _, row := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"none", nil, 401},
		{"wrong", []string{"Authorization: Bearer gk_bad"}, 401},
		{"empty", []string{"Authorization: Bearer "}, 401},
		{"basic", []string{"Authorization: Basic gk_good"}, 401},
		{"its hash", []string{"Authorization: Bearer " + ingest.HashKey("gk_good")}, 401},
		{"two lines", []string{"Authorization: Bearer gk_good", "Authorization: Bearer gk_good"}, 401},
		{"good", []string{"Authorization: Bearer gk_good"}, 404},
		{"scheme in another case", []string{"Authorization: bearer  gk_good"}, 404},
	} {
		rec := w.call(http.MethodGet, "/v1/tasks/"+goal.TaskID("a", "x"), "", row.headers...)
		if rec.Code != row.status {
			t.Errorf("%s: status %d, want %d", row.name, rec.Code, row.status)
		}
		if row.status == http.StatusUnauthorized {
			wantHeader(t, rec, "WWW-Authenticate", `Bearer realm="goalkeeper"`)
			problemIn(t, rec)
		}
	}
	for _, open := range []string{"/healthz", "/readyz", "/openapi.json", "/v1/schemas/goal.json"} {
		wantStatus(t, w.call(http.MethodGet, open, ""), http.StatusOK)
	}
}

func TestKeysAreReplacedWhileServing(t *testing.T) {
	t.Parallel()
	keys, err := ingest.NewKeys([]ingest.Key{{SHA256: ingest.HashKey("old"), Tenant: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *ingest.Config) { c.Auth = keys })
	get := func(key string) int {
		return w.call(http.MethodGet, "/v1/environments", "", "Authorization: Bearer "+key).Code
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				get("old")
			}
		})
	}
	if err := keys.Replace([]ingest.Key{{SHA256: ingest.HashKey("new"), Tenant: "a"}}); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if get("old") != http.StatusUnauthorized || get("new") != http.StatusOK {
		t.Error("the old key is in force, or the new one is not")
	}
	for name, bad := range map[string]ingest.Key{
		"no hash": {SHA256: "plain", Tenant: "a"}, "short hash": {SHA256: "abcd", Tenant: "a"}, "no tenant": {SHA256: ingest.HashKey("x")},
		"tenant with a dot": {SHA256: ingest.HashKey("x"), Tenant: "a.b"},
	} {
		if keys.Replace([]ingest.Key{bad}) == nil {
			t.Errorf("%s was taken", name)
		}
	}
	twice := ingest.Key{SHA256: ingest.HashKey("x"), Tenant: "a"}
	if keys.Replace([]ingest.Key{twice, twice}) == nil {
		t.Error("a key of two entries was taken")
	}
	if get("new") != http.StatusOK {
		t.Error("a refused set of keys changed the one in force")
	}
}

func TestMustBeLoopback(t *testing.T) {
	t.Parallel()
	for addr, ok := range map[string]bool{
		"127.0.0.1:8080": true, "[::1]:8080": true, "localhost:0": true, "127.8.9.10:1": true, "[::ffff:127.0.0.1]:1": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:80": false, "example.com:80": false, "localhost.example.com:80": false,
	} {
		err := ingest.MustBeLoopback(addr)
		if (err == nil) != ok || !ok && !errors.Is(err, ingest.ErrNotLoopback) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if ingest.MustBeLoopback("no port") == nil {
		t.Error("an address without a port was taken")
	}
}

// TestRebinding: a page that reaches the open server under a name of its own is
// refused.
func TestRebinding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for host, want := range map[string]int{
		"localhost:8080": 200, "127.0.0.1:8080": 200, "[::1]:8080": 200, "LOCALHOST": 200,
		"evil.example": 403, "localhost.evil.example:8080": 403, "10.0.0.1": 403, "": 403,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/tools", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		rec := recorded(w.h, r)
		if rec.Code != want {
			t.Errorf("Host %q: status %d, want %d", host, rec.Code, want)
		}
	}
}

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// operatorsWorld is the API and a gateway before a backend that breaks every
// connection after its effect, on one store.
type operatorsWorld struct{ api, gateway string }

func newOperatorsWorld(t *testing.T) operatorsWorld {
	t.Helper()
	store := kvtest.Store(t, kvtest.Options{})
	calls, err := store.Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ingest.NewKeys([]ingest.Key{
		{SHA256: ingest.HashKey("operator"), Tenant: "default", Name: "operator", Roles: []string{"admin"}},
		{SHA256: ingest.HashKey("client"), Tenant: "default", Name: "client"},
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(string) error { return nil }
	srv, err := ingest.New(ingest.Config{
		Store: store, Auth: keys, Tenants: []string{"default"}, Admin: adminRoutes(callsHandler(calls), webhookAdmin(store, check)),
	})
	if err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	gateway, err := idempotency.NewGateway(idempotency.GatewayConfig{
		Guard:  idempotency.Config{Store: calls},
		Routes: []idempotency.Route{{Path: "/", Upstream: backend.URL, OnAmbiguous: idempotency.Hold}},
	})
	if err != nil {
		t.Fatal(err)
	}
	api, front := httptest.NewServer(srv.Handler()), httptest.NewServer(gateway)
	t.Cleanup(func() { front.Close(); api.Close(); gateway.Close(); backend.Close() })
	return operatorsWorld{api: api.URL, gateway: front.URL}
}

// call makes a protected call and returns its status and X-Cache-Lookup.
func (w operatorsWorld) call(t *testing.T, key string) (status int, lookup string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.gateway+"/refunds", strings.NewReader(`{"order":"W1"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode, res.Header.Get("X-Cache-Lookup")
}

// TestOperatorsDecideHeldCalls: a call with an unknown outcome is found, and
// decided, from the command line.
func TestOperatorsDecideHeldCalls(t *testing.T) {
	t.Parallel()
	w := newOperatorsWorld(t)
	as := func(key string, args ...string) (int, string, string) {
		return session(t, t.Context(), `{"refunded":true}`, append(args, "-s", w.api, "--token", key)...)
	}
	for _, key := range []string{"refund-1", "refund-2"} {
		if status, _ := w.call(t, key); status != http.StatusBadGateway {
			t.Fatalf("a broken answer: got %d, want 502", status)
		}
	}

	if code, _, errs := as("client", "calls", "list"); code != exitAuth {
		t.Errorf("calls list without the role: exit code %d, %s", code, errs)
	}
	_, out, errs := as("operator", "calls", "list", "-o", "jsonl")
	if strings.Count(out, `"state":"HELD"`) != 2 {
		t.Fatalf("calls list: %s%s", out, errs)
	}
	ids := map[string]string{}
	for _, key := range []string{"refund-1", "refund-2"} {
		_, out, errs := as("operator", "calls", "get", "--key", key, "-o", "json")
		var r callRecord
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.State != "HELD" {
			t.Fatalf("calls get --key %s: %v, %s%s", key, err, out, errs)
		}
		ids[key] = r.ID
	}

	if code, _, errs := as("operator", "calls", "complete", ids["refund-1"], "--reason", "seen in the ledger", "--status", "201",
		"-H", "Location: /refunds/1", "-H", "Content-Type: application/json", "--body", "-"); code != exitReached {
		t.Fatalf("calls complete: exit code %d, %s", code, errs)
	}
	if status, lookup := w.call(t, "refund-1"); status != http.StatusCreated || lookup != "HIT" {
		t.Errorf("after complete: got %d %s, want the operator's answer", status, lookup)
	}
	if code, _, errs := as("operator", "calls", "release", ids["refund-1"], "--reason", "again"); code != exitGeneral || !strings.Contains(errs, "(409)") {
		t.Errorf("deciding twice: exit code %d, %s", code, errs)
	}
	if code, _, errs := as("operator", "calls", "release", ids["refund-2"], "--reason", "not in the ledger"); code != exitReached {
		t.Fatalf("calls release: exit code %d, %s", code, errs)
	}
	if status, lookup := w.call(t, "refund-2"); status != http.StatusBadGateway || lookup != "MISS" {
		t.Errorf("after release: got %d %s, want another run", status, lookup)
	}

	if code, out, errs := as("operator", "webhook", "redeliver", "--since", "24h", "-o", "jsonl"); code != exitReached || out != "{\"redelivered\":0}\n" {
		t.Errorf("webhook redeliver --since: exit code %d, %s%s", code, out, errs)
	}
	if code, out, errs := as("operator", "webhook", "test", "https://example.com/hook", "-o", "jsonl"); code != exitReached || !strings.HasPrefix(out, `{"webhook_id":"msg_`) {
		t.Errorf("webhook test: exit code %d, %s%s", code, out, errs)
	}
}

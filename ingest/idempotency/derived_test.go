package idempotency

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func derivedKey(t *testing.T, step int, tool, payload string) string {
	t.Helper()
	key, err := goal.ToolCallKey("s", step, tool, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func slotHeaders(session, step, tool string) []string {
	return []string{HeaderSession, session, HeaderStep, step, HeaderTool, tool}
}

func TestDerivedKey(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		key := derivedKey(t, 3, "pay", `{"a":1}`)
		w.post(key, `{ "a": 1.0 }`, slotHeaders("s", "3", "pay")...).want(t, 201, HeaderLookup, "MISS")
		w.post(key, `{"a":1}`).want(t, 201, HeaderLookup, "HIT") // the fields are optional
		empty := derivedKey(t, 4, "ping", `{}`)
		w.call(http.MethodDelete, "/x", empty, "", slotHeaders("s", "4", "ping")...).want(t, 201)
		for name, r := range map[string]reply{
			"another payload":    w.post(key, `{"a":2}`, slotHeaders("s", "3", "pay")...),
			"another step":       w.post(key, `{"a":1}`, slotHeaders("s", "4", "pay")...),
			"another session":    w.post(key, `{"a":1}`, slotHeaders("t", "3", "pay")...),
			"another tool":       w.post(key, `{"a":1}`, slotHeaders("s", "3", "refund")...),
			"leading zero":       w.post(key, `{"a":1}`, slotHeaders("s", "03", "pay")...),
			"sign":               w.post(key, `{"a":1}`, slotHeaders("s", "+3", "pay")...),
			"delimiter":          w.post(key, `{"a":1}`, slotHeaders("s:3", "3", "pay")...),
			"one field missing":  w.post(key, `{"a":1}`, HeaderSession, "s", HeaderTool, "pay"),
			"a body that is raw": w.call(http.MethodPost, "/pay", key, "a=1", append(slotHeaders("s", "3", "pay"), "Content-Type", "text/plain")...),
		} {
			if r.StatusCode != http.StatusBadRequest || r.Header.Get(HeaderKey) == "" {
				t.Errorf("%s: status %d %s; want 400", name, r.StatusCode, r.body)
			}
			r.problem(t, "idempotency-key-mismatch")
		}
		w.ran(2)
	})
}

func TestRequireDerivedKey(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, func(c *Config) { c.RequireDerivedKey = true })
		key := derivedKey(t, 0, "pay", `{}`)
		w.post("k", "{}").want(t, 400).problem(t, "idempotency-key-mismatch")
		w.post(key, "{}").want(t, 400).problem(t, "idempotency-key-mismatch")
		w.post(key, "{}", slotHeaders("s", "0", "pay")...).want(t, 201)
		w.ran(1)
	})
}

// A step that was planned anew has another key and would run again.
func TestSlotGuard(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		for _, guarded := range []bool{true, false} {
			w := newWorld(t, f, echo, func(c *Config) { c.SlotGuard = guarded })
			call := func(step int, tool, payload string) reply {
				return w.post(derivedKey(t, step, tool, payload), payload, slotHeaders("s", strconv.Itoa(step), tool)...)
			}
			call(1, "pay", `{"to":"a"}`).want(t, 201)
			call(1, "pay", `{"to":"a"}`).want(t, 201, HeaderLookup, "HIT")
			call(2, "pay", `{"to":"b"}`).want(t, 201)
			call(1, "refund", `{"to":"b"}`).want(t, 201)
			if !guarded {
				call(1, "pay", `{"to":"b"}`).want(t, 201)
				w.ran(4)
				continue
			}
			call(1, "pay", `{"to":"b"}`).want(t, 422, "X-Should-Retry", "false").problem(t, "idempotency-key-reused")
			w.ran(3)
		}
	})
}

func TestSlotGuardWithoutStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, middleware, echo, func(c *Config) { c.SlotGuard = true })
	w.store.before = func(string, string) error { return goal.ErrUnavailable }
	w.post(derivedKey(t, 1, "pay", "{}"), "{}", slotHeaders("s", "1", "pay")...).want(t, 503)
	w.ran(0)
}

// The pinned vectors through the whole middleware.
func TestKeyVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(kvtest.Shared(t, "vectors/key-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Session, Tool, PayloadIn, Key string
		Step                                int
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, middleware, echo, func(c *Config) { c.RequireDerivedKey = true })
	for _, v := range vectors {
		r := w.post(v.Key, v.PayloadIn, slotHeaders(v.Session, strconv.Itoa(v.Step), v.Tool)...)
		want := http.StatusCreated
		switch v.Name {
		case "delimiter-collision-1", "delimiter-collision-2":
			want = http.StatusBadRequest
		case "bigint-rounds-2": // one key, two payloads: never the other's answer
			want = http.StatusUnprocessableEntity
		}
		if r.StatusCode != want {
			t.Errorf("%s: status %d %s; want %d", v.Name, r.StatusCode, r.body, want)
		}
	}
}

func TestTenants(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Caller", r.Header.Get("Authorization"))
		},
			func(c *Config) {
				c.Tenant = func(r *http.Request) (string, error) {
					switch r.Header.Get("Authorization") {
					case "a", "a, renewed":
						return "A", nil
					case "b":
						return "B", nil
					case "banned":
						return "", goal.NewProblem(goal.Forbidden, "")
					}
					return "", errors.New("who?")
				}
			})
		w.post("k", "{}", "Authorization", "a").want(t, 200, HeaderLookup, "MISS")
		w.post("k", "{}", "Authorization", "b").want(t, 200, HeaderLookup, "MISS")
		if r := w.post("k", "{}", "Authorization", "a, renewed").want(t, 200, HeaderLookup, "HIT"); r.Header.Get("X-Caller") != "a" {
			t.Fatalf("tenant A got %v", r.Header)
		}
		w.post("k", "{}").want(t, 401).problem(t, "unauthenticated")
		w.post("k", "{}", "Authorization", "banned").want(t, 403).problem(t, "permission-denied")
		w.ran(2)
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	store := newMemStore()
	w := newWorld(t, middleware, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			MarkUnknown(r.Context(), "unknown")
		}
		if r.URL.Path != "/ok" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}, func(c *Config) { c.Registerer, c.Store = reg, store })
	for range 2 {
		for _, path := range []string{"/ok", "/failed", "/held"} {
			w.call(http.MethodPost, path, path, "{}")
		}
	}
	w.call(http.MethodPost, "/ok", "/failed", "{}")
	w.call(http.MethodPost, "/ok", "", "{}")
	for result, want := range map[string]float64{
		resultMiss: 1, resultHit: 1, resultReleased: 2, resultHeld: 1, resultConflict: 1, resultMismatch: 1, resultRefused: 1,
	} {
		if got := testutil.ToFloat64(w.guard.metrics.calls.WithLabelValues("calls", result)); got != want {
			t.Errorf("%s: %v; want %v", result, got, want)
		}
	}
	if got := testutil.ToFloat64(w.guard.metrics.running); got != 0 {
		t.Errorf("%v handlers run; want none", got)
	}
	if _, err := New(Config{Store: store, Registerer: reg}); err != nil {
		t.Errorf("a second guard on one registerer: %v", err)
	}
}

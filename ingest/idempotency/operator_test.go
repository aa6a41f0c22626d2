package idempotency

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// held is a world with one held call of the key "k".
func held(t *testing.T) (*world, *Operator) {
	t.Helper()
	w := newWorld(t, middleware, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(HeaderAttempt) == "1" {
			MarkUnknown(r.Context(), "the bank timed out")
		}
		w.WriteHeader(http.StatusBadGateway)
	}, func(c *Config) { c.OnAmbiguous = Hold })
	w.post("k", "{}").want(t, 502)
	w.state(Held)
	return w, &Operator{Store: w.store}
}

func TestOperatorReleases(t *testing.T) {
	t.Parallel()
	w, op := held(t)
	ctx, id := t.Context(), ID("default", "k")
	if err := op.Release(ctx, id, "olga", "not in the bank's list"); err != nil {
		t.Fatal(err)
	}
	entry, err := op.Inspect(ctx, id)
	if err != nil || entry.State != Released || entry.Reason != "not in the bank's list" || entry.KeyHint != "k" || entry.Path != "/pay" {
		t.Fatalf("record %+v, %v", entry, err)
	}
	if err := op.Release(ctx, id, "olga", ""); !errors.Is(err, ErrFinal) {
		t.Fatalf("second release = %v; want ErrFinal", err)
	}
	w.post("k", "{}").want(t, 502, HeaderAttempt, "2")
}

func TestOperatorCompletes(t *testing.T) {
	t.Parallel()
	w, op := held(t)
	ctx, id := t.Context(), ID("default", "k")
	if err := op.Complete(ctx, id, "olga", "", Answer{Status: 99}); !errors.Is(err, ErrAnswer) {
		t.Fatalf("status 99 = %v; want ErrAnswer", err)
	}
	answer := Answer{Status: 201, Header: http.Header{"Location": {"/p/1"}, "Set-Cookie": {"x"}}, Body: []byte("paid")}
	if err := op.Complete(ctx, id, "olga", "in the bank's list", answer); err != nil {
		t.Fatal(err)
	}
	r := w.post("k", "{}").want(t, 201, HeaderLookup, "HIT", "Location", "/p/1", "Set-Cookie", "")
	if r.body != "paid" {
		t.Fatalf("body %q", r.body)
	}
	if err := op.Complete(ctx, id, "olga", "", answer); !errors.Is(err, ErrFinal) {
		t.Fatalf("second completion = %v; want ErrFinal", err)
	}
	w.ran(1)
}

func TestOperatorLeavesLiveCallsAlone(t *testing.T) {
	t.Parallel()
	s := newMemStore()
	op, ctx := &Operator{Store: s}, t.Context()
	id := ID("default", "k")
	if err := op.Release(ctx, id, "olga", ""); !errors.Is(err, goal.ErrNotFound) {
		t.Fatalf("release of nothing = %v; want ErrNotFound", err)
	}
	rec := Record{Owner: "o", Fingerprint: "f", LeaseUntil: time.Now().Add(time.Minute)}
	c, _, err := (ledger{s}).claim(ctx, id, rec, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := op.Release(ctx, id, "olga", ""); !errors.Is(err, ErrRunning) {
		t.Fatalf("release of a live call = %v; want ErrRunning", err)
	}
	// The holder died: its last lease has passed, and nothing expires by itself.
	if err := (ledger{s}).renew(ctx, c, time.Now().Add(-time.Second), 0); err != nil {
		t.Fatal(err)
	}
	if err := op.Release(ctx, id, "olga", ""); err != nil {
		t.Fatal(err)
	}
	if err := (ledger{s}).complete(ctx, c, Answer{Status: 200}, time.Hour); !errors.Is(err, errLost) {
		t.Fatalf("completion after the operator's word = %v; want errLost", err)
	}
}

func TestOperatorLists(t *testing.T) {
	t.Parallel()
	w, op := held(t)
	for _, key := range []string{"a", "b"} {
		w.call(http.MethodPost, "/other", key, "{}")
	}
	for state, want := range map[State]int{Held: 3, Released: 0, Completed: 0, "": 3} {
		if got, err := op.List(t.Context(), state, 0); err != nil || len(got) != want {
			t.Errorf("List(%q) = %d, %v; want %d", state, len(got), err, want)
		}
	}
	if got, err := op.List(t.Context(), "", 2); err != nil || len(got) != 2 {
		t.Errorf("List of 2 = %d, %v", len(got), err)
	}
}

func TestAdminHandler(t *testing.T) {
	t.Parallel()
	w, op := held(t)
	h := AdminHandler(op, func(*http.Request) string { return "olga" })
	ask := func(method, target, body string) reply {
		t.Helper()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))
		res := rec.Result()
		_ = res.Body.Close()
		return reply{res, rec.Body.String()}
	}
	id := ID("default", "k")
	for _, target := range []string{"/calls", "/calls?state=HELD&limit=5", "/calls?key=k", "/calls/" + id} {
		if r := ask(http.MethodGet, target, "").want(t, 200); !strings.Contains(r.body, id) || !strings.Contains(r.body, "the bank timed out") {
			t.Errorf("%s: %s", target, r.body)
		}
	}
	if r := ask(http.MethodGet, "/calls?state=RELEASED", "").want(t, 200); r.body != "{\"calls\":[]}\n" {
		t.Errorf("an empty list is %q", r.body)
	}
	for _, id := range []string{"x", strings.Repeat("a", 64), "*", "%3E"} {
		ask(http.MethodGet, "/calls/"+id, "").want(t, 404).problem(t, "not-found")
	}
	ask(http.MethodPost, "/calls/"+id+"/complete", `{"status":1}`).want(t, 422)
	ask(http.MethodPost, "/calls/"+id+"/complete", `{"state":1}`).want(t, 400)
	ask(http.MethodPost, "/calls/x/complete", `{}`).want(t, 404)
	r := ask(http.MethodPost, "/calls/"+id+"/complete", `{"reason":"seen","status":201,"header":{"location":["/p"]},"body":"paid"}`).want(t, 200)
	if !strings.Contains(r.body, "operator:olga:") || !strings.Contains(r.body, `"reason":"seen"`) {
		t.Errorf("completed: %s", r.body)
	}
	ask(http.MethodPost, "/calls/"+id+"/release", `{}`).want(t, 409)
	w.post("k", "{}").want(t, 201, "Location", "/p")

	w.store.before = func(string, string) error { return io.ErrUnexpectedEOF }
	ask(http.MethodGet, "/calls/"+id, "").want(t, 503).problem(t, "store-unavailable")
}

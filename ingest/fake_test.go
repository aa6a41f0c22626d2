package ingest_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// fakeStore is a store in memory. Its faults are functions that a test sets.
type fakeStore struct {
	mu        sync.Mutex
	tasks     map[string]*goal.Snapshot
	submitted int // stored submissions
	seq       uint64

	fault func(ctx context.Context, op string) error // before anything is done
	now   func() time.Time
	after func(op string) // once it is done
}

func newFakeStore() *fakeStore {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return &fakeStore{tasks: map[string]*goal.Snapshot{}, now: func() time.Time { return at }}
}

func (f *fakeStore) begin(ctx context.Context, op string) error {
	if f.fault != nil {
		if err := f.fault(ctx, op); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *fakeStore) done(op string) {
	if f.after != nil {
		f.after(op)
	}
}

func (f *fakeStore) Submit(ctx context.Context, sub goal.Submission) (goal.Accepted, bool, error) {
	if err := f.begin(ctx, "submit"); err != nil {
		return goal.Accepted{}, false, err
	}
	defer f.done("submit")
	f.mu.Lock()
	defer f.mu.Unlock()
	id := sub.Tenant + "/" + sub.TaskID
	if s := f.tasks[id]; s != nil {
		return s.Accepted, false, nil
	}
	f.seq++
	f.submitted++
	acc := goal.Accepted{Submission: sub, Seq: f.seq, At: f.now(), Expires: f.now().Add(7 * 24 * time.Hour)}
	f.tasks[id] = &goal.Snapshot{Accepted: acc}
	return acc, true, nil
}

func (f *fakeStore) Load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	if err := f.begin(ctx, "load"); err != nil {
		return goal.Snapshot{}, err
	}
	defer f.done("load")
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.tasks[tenant+"/"+task]
	if s == nil {
		return goal.Snapshot{}, goal.ErrNotFound
	}
	out := *s
	out.Events = append([]goal.Event(nil), s.Events...)
	return out, nil
}

func (f *fakeStore) Trace(ctx context.Context, tenant, task string, _ uint64) ([]goal.Event, error) {
	snap, err := f.Load(ctx, tenant, task)
	return snap.Events, err
}

func (f *fakeStore) RequestCancel(ctx context.Context, acc goal.Accepted) error {
	if err := f.begin(ctx, "cancel"); err != nil {
		return err
	}
	defer f.done("cancel")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks[acc.Submission.Tenant+"/"+acc.Submission.TaskID].CancelAsked = true
	return nil
}

func (f *fakeStore) Settle(ctx context.Context, acc goal.Accepted, r goal.Result, n int) (goal.Result, error) {
	if err := f.begin(ctx, "settle"); err != nil {
		return goal.Result{}, err
	}
	defer f.done("settle")
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.tasks[acc.Submission.Tenant+"/"+acc.Submission.TaskID]
	if s.Result == nil {
		r.EndedAt = f.now()
		s.Result = &r
		s.Events = append(s.Events, goal.Event{N: n + 1, Type: goal.TaskEnded, Time: f.now(), Ended: &goal.Ended{
			Status: r.Status, Reason: r.Reason, Detail: r.Detail, Usage: r.Usage,
		}})
	}
	return *s.Result, nil
}

func (f *fakeStore) Note(ctx context.Context, acc goal.Accepted, e goal.Event) error {
	if err := f.begin(ctx, "note"); err != nil {
		return err
	}
	f.append(acc.Submission.Tenant, acc.Submission.TaskID, e)
	return nil
}

// append is the worker's part.
func (f *fakeStore) append(tenant, task string, events ...goal.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.tasks[tenant+"/"+task]
	s.Events = append(s.Events, events...)
}

func (f *fakeStore) stored() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.submitted
}

const goodGoal = `{"goal":{"intent":"Refund order W2378156","target_state":{"orders":{"W2378156":{"status":"refunded"}}}},"guardrails":{"max_steps":12,"timeout_seconds":120}}`

// otherGoal differs from goodGoal in one value.
var otherGoal = strings.Replace(goodGoal, "refunded", "shipped", 1)

// sameGoal is goodGoal in another order, with other white space and numbers.
const sameGoal = `{ "guardrails": {"timeout_seconds":1.2e2, "max_steps":12.0},
  "goal": {"target_state":{"orders":{"W2378156":{"status":"refunded"}}}, "intent":"Refund order W2378156"} }`

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

type world struct {
	t     testing.TB
	store *fakeStore
	srv   *ingest.Server
	h     http.Handler
}

func newWorld(tb testing.TB, change ...func(*ingest.Config)) *world {
	tb.Helper()
	w := &world{t: tb, store: newFakeStore()}
	cfg := ingest.Config{Store: w.store, Auth: ingest.Anonymous("default", "admin"), Log: quiet()}
	for _, c := range change {
		c(&cfg)
	}
	srv, err := ingest.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w.srv, w.h = srv, srv.Handler()
	return w
}

// call makes one request. Headers are "Name: value".
func (w *world) call(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return call(w.t, w.h, method, path, body, headers...)
}

func call(tb testing.TB, h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), method, path, strings.NewReader(body))
	r.Host = "localhost"
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

func (w *world) post(key, body string, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.call(http.MethodPost, "/v1/tasks", body, append([]string{"Content-Type: application/json", "Idempotency-Key: " + key}, headers...)...)
}

func taskIn(tb testing.TB, rec *httptest.ResponseRecorder) goal.Task {
	tb.Helper()
	return decode[goal.Task](tb, rec, "application/json")
}

func problemIn(tb testing.TB, rec *httptest.ResponseRecorder) goal.Problem {
	tb.Helper()
	p := decode[goal.Problem](tb, rec, "application/problem+json")
	if p.Status != rec.Code || p.Title == "" || p.Instance != "/requests/"+rec.Header().Get("X-Request-Id") {
		tb.Errorf("problem = %+v with status %d", p, rec.Code)
	}
	return p
}

func decode[T any](tb testing.TB, rec *httptest.ResponseRecorder, mediaType string) T {
	tb.Helper()
	var v T
	if got := rec.Header().Get("Content-Type"); got != mediaType {
		tb.Fatalf("status %d, Content-Type %q, want %q: %s", rec.Code, got, mediaType, rec.Body)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		tb.Fatalf("body %q: %v", rec.Body, err)
	}
	return v
}

func wantStatus(tb testing.TB, rec *httptest.ResponseRecorder, want int) {
	tb.Helper()
	if rec.Code != want {
		tb.Fatalf("status = %d, want %d: %s", rec.Code, want, rec.Body)
	}
}

func wantHeader(tb testing.TB, rec *httptest.ResponseRecorder, name, want string) {
	tb.Helper()
	if got := rec.Header().Get(name); got != want {
		tb.Errorf("%s = %q, want %q", name, got, want)
	}
}

func recorded(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

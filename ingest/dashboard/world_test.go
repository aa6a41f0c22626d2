package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	taskA = "tsk_0123456789abcdef0123456789abcdef"
	taskB = "tsk_fedcba9876543210fedcba9876543210"
)

// world is a dashboard on an API and a store made by hand.
type world struct {
	t  *testing.T
	d  *Dashboard
	mu sync.Mutex

	keys   map[string]Caller // by API key; nil: none is needed
	snaps  map[string]goal.Snapshot
	rows   []Row
	whole  bool
	api    func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	asked  []*http.Request
	bodies [][]byte
	log    bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, whole: true, snaps: map[string]goal.Snapshot{}}
	api := chi.NewRouter() // as the real one: it keeps its state in the request's context
	api.HandleFunc("/v1/{id}", w.serveAPI)
	api.HandleFunc("/v1/{kind}/{id}", w.serveAPI)
	api.HandleFunc("/v1/{kind}/{id}/{part}", w.serveAPI)
	d, err := New(Config{
		API: api, Authenticate: w.authenticate, Load: w.load, Each: w.each,
		Queue: func(_ context.Context, _ string) (Queue, error) {
			return Queue{Pending: 3, InFlight: 1, Oldest: time.Now()}, nil
		},
		Health: func() []ToolHealth { return []ToolHealth{{"shop", "orders.get", 4, 1, time.Second}} },
		Servers: func(context.Context) []ServerHealth {
			return []ServerHealth{
				{Environment: "shop", Name: "files", Tools: 3},
				{Environment: "hidden", Name: "secret-server"},
				{Environment: "shop", Name: "mail", Err: errors.New("exit status 1"), Stderr: "panic: <b>"},
			}
		},
		Tenants: []string{"acme", "globex"}, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.d = d
	return w
}

func (w *world) authenticate(r *http.Request) (Caller, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		return Caller{Tenant: "acme", Name: "anonymous", Admin: true}, nil
	}
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if c, ok := w.keys[key]; ok {
		return c, nil
	}
	return Caller{}, goal.NewProblem(goal.Unauthenticated, "the API key is not known")
}

func (w *world) load(_ context.Context, tenant, task string) (goal.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.snaps[tenant+"/"+task]
	if !ok {
		return s, goal.ErrNotFound
	}
	return s, nil
}

func (w *world) put(s goal.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snaps[s.Submission.Tenant+"/"+s.Submission.TaskID] = s
}

func (w *world) each(tenant string, fn func(Row) bool) bool {
	if tenant == "acme" {
		for _, r := range w.rows {
			if !fn(r) {
				break
			}
		}
	}
	return w.whole
}

func (w *world) serveAPI(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	w.asked, w.bodies = append(w.asked, r), append(w.bodies, body)
	api := w.api
	w.mu.Unlock()
	if api != nil && api(rw, r) {
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/deliveries"):
		_, _ = io.WriteString(rw, `{"deliveries": []}`)
	case r.URL.Path == "/v1/environments":
		_, _ = io.WriteString(rw, `{"environments": [{"name": "shop"}]}`)
	case r.URL.Path == "/v1/tools":
		_, _ = io.WriteString(rw, `{"tools": [{"name": "orders.get", "environment": "shop", "replay": "read", "description": "<b>", "input_schema": {"a": 1}}]}`)
	default:
		_, _ = io.WriteString(rw, `{"id": "`+taskB+`"}`)
	}
}

// get asks for a page. Headers are "Name: value".
func (w *world) get(path string, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.send(http.MethodGet, path, nil, headers...)
}

func (w *world) post(path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.send(http.MethodPost, path, form, headers...)
}

func (w *world) send(method, path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	req := httptest.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(form.Encode()))
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	w.d.ServeHTTP(rec, req)
	return rec
}

func wantStatus(t *testing.T, rec *httptest.ResponseRecorder, want int) {
	t.Helper()
	if rec.Code != want {
		t.Fatalf("status %d, want %d: %s", rec.Code, want, clip(rec.Body.String(), 400))
	}
}

const secretHook = "https://user:pw@example.com/hook?token=secret" //nolint:gosec // of a test

// from is when every made-up task was accepted.
var from = time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return from.Add(time.Duration(ms) * time.Millisecond) }

// snapshot is a task of which everything that can be shown is word.
func snapshot(word string) goal.Snapshot {
	text := func(v any) json.RawMessage {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return raw
	}
	args := text(map[string]any{word: word})
	left := []goal.Difference{{Pointer: "/a/" + escapePointer.Replace(word), Want: text(word), Have: text(word + "!")}}
	seen := func(total int) *goal.Observed {
		return &goal.Observed{Left: left[:min(total, 1)], LeftTotal: total, Leaves: 2}
	}
	action := goal.Action{Tool: word, Arguments: args}
	s := goal.Snapshot{
		Accepted: goal.Accepted{Seq: 7, At: from, Expires: from.Add(48 * time.Hour), Submission: goal.Submission{
			TaskID: taskA, Tenant: "acme", Key: "again." + taskB + ".x", Via: "http", Goal: goal.Goal{
				Objective:     goal.Objective{Intent: "Do " + word, TargetState: text(map[string]any{"a": map[string]any{word: word, "ok": 1}})},
				Guardrails:    goal.Guardrails{MaxSteps: 9, TimeoutSeconds: 60, MaxTokens: 100, AllowedTools: []string{word}},
				PreConditions: text(map[string]any{"match": map[string]any{word: word}, "etag": word}),
				Environment:   word, WebhookURL: secretHook,
			},
		}},
		Events: []goal.Event{
			{N: 1, Type: goal.TaskStarted, Time: at(100), Worker: word, Started: &goal.Started{Attempt: 1, Deadline: at(60_100)}},
			{N: 2, Type: goal.StateObserved, Time: at(110), Worker: word, Observed: seen(1)},
			{N: 3, Type: goal.StepRefused, Time: at(300), Step: 1, Worker: word, Refusal: &goal.Refusal{
				Action: action, Kind: "not_allowed", Message: word, Why: word, Tokens: 5, Took: goal.Millis(180 * time.Millisecond),
			}},
			{N: 4, Type: goal.StepDecided, Time: at(500), Step: 2, Worker: word, Decision: &goal.Decision{
				Action: action, Key: strings.Repeat("ab", 32), Replay: goal.ReplayKeyed, Why: word, Tokens: 7, Estimated: true, Took: goal.Millis(90 * time.Millisecond),
			}},
			{N: 5, Type: goal.TaskResumed, Time: at(900), Worker: word + "2", Started: &goal.Started{Attempt: 2, Deadline: at(60_100)}},
			{N: 6, Type: goal.StepCompleted, Time: at(1000), Step: 2, Worker: word, Observed: seen(0), Outcome: &goal.Outcome{
				Kind: goal.CallOK, Status: 200, Result: args, Attempts: 3, Repeated: true, Took: goal.Millis(80 * time.Millisecond),
			}},
			{N: 7, Type: goal.StepDecided, Time: at(1100), Step: 3, Worker: word, Decision: &goal.Decision{Action: action, Key: "k", Replay: goal.ReplayUnsafe}},
			{N: 8, Type: goal.StepCompleted, Time: at(1200), Step: 3, Worker: word, Observed: seen(1), Outcome: &goal.Outcome{
				Kind: goal.CallToolError, Message: word, Result: args, Attempts: 1, Size: 70_000, Took: goal.Millis(100 * time.Millisecond),
			}},
			{N: 0, Type: goal.KeyConflict, Time: at(1250)},
			{N: 9, Type: goal.StepDecided, Time: at(1300), Step: 4, Worker: word, Decision: &goal.Decision{Action: action, Key: "k", Replay: goal.ReplayRead}},
		},
	}
	return s
}

// ended gives the snapshot its end.
func ended(s goal.Snapshot, word string) goal.Snapshot {
	started := at(100)
	s.Events = append(s.Events, goal.Event{N: 10, Type: goal.TaskEnded, Time: at(1400), Ended: &goal.Ended{Status: goal.Failed, Reason: goal.GuardrailNoProgress}})
	s.Result = &goal.Result{
		Status: goal.Failed, Reason: goal.GuardrailNoProgress, Detail: word, StartedAt: &started, EndedAt: at(1400), LeftTotal: 1,
		Left:    []goal.Difference{{Pointer: "/a/" + escapePointer.Replace(word), Want: json.RawMessage(`1`)}},
		Trip:    &goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 3, Observed: word, Step: 4},
		Checks:  []goal.Difference{{Pointer: "/" + escapePointer.Replace(word), Want: json.RawMessage(`1`)}, {Pointer: "/" + word + "/other", Want: json.RawMessage(`1`)}},
		Effects: []goal.Effect{{Step: 2, Tool: word, Outcome: "done"}, {Step: 4, Tool: word, Outcome: "unknown"}},
		Problem: &goal.Problem{Title: word, Detail: word}, Usage: goal.Usage{Steps: 4, Tokens: 12},
	}
	return s
}

// hooks answers a question for deliveries with one whose text is word.
func hooks(word string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/deliveries") || r.Method != http.MethodGet {
			return false
		}
		raw, err := json.Marshal(map[string]any{"deliveries": []goal.DeliveryView{{
			ID: "msg_1", State: goal.DeliveryPending, Next: at(9000), Created: from, Total: 2, Attempts: []goal.Attempt{
				{N: 1, At: at(1500), Trigger: goal.TriggerEvent, Status: 503, Error: "http_5xx", Answer: word},
				{N: 2, At: at(1600), Trigger: goal.TriggerRetry, Error: word},
			},
		}}})
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(raw)
		return true
	}
}

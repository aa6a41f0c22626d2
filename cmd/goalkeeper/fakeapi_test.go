package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// fakeAPI answers like the HTTP API, from memory. What becomes of a goal is in
// its context: {"play": "reach" (default), "guardrail", "precondition", "fail",
// "slow" (ends when somebody waits for it), "hang" (runs until it is cancelled)}.
// An event stream breaks after two events, so that every watch has to resume.
type fakeAPI struct {
	mux     *http.ServeMux
	stopped chan struct{}
	watched chan struct{} // gets a value for each wait and stream

	mu    sync.Mutex
	auth  bool // guarded by mu
	busy  int  // guarded by mu
	tasks map[string]*fakeTask
	order []string // of ids; guarded by mu
}

type fakeTask struct {
	goal.Snapshot
	play    string
	changed chan struct{} // closed and replaced at each change
}

func newFakeAPI() *fakeAPI {
	a := &fakeAPI{mux: http.NewServeMux(), stopped: make(chan struct{}), watched: make(chan struct{}, 100), tasks: map[string]*fakeTask{}}
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/tasks": a.submit, "GET /v1/tasks": a.list, "GET /v1/tasks/{id}": a.get, "GET /v1/tasks/{id}/trace": a.trace,
		"GET /v1/tasks/{id}/events": a.events, "POST /v1/tasks/{id}/cancel": a.cancel,
		"GET /v1/tasks/{id}/deliveries": a.deliveries, "POST /v1/tasks/{id}/deliveries": a.accept,
		"POST /v1/admin/webhooks/redeliver": a.accept, "POST /v1/admin/webhooks/test": a.accept,
		"GET /v1/admin/calls": a.calls, "GET /v1/admin/calls/{id}": a.call,
		"POST /v1/admin/calls/{id}/release": a.accept, "POST /v1/admin/calls/{id}/complete": a.accept,
		"POST /bench": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	} {
		a.mux.HandleFunc(pattern, h)
	}
	return a
}

func (a *fakeAPI) stop() { close(a.stopped) }

func (a *fakeAPI) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	busy, locked := a.busy > 0, a.auth && r.Header.Get("Authorization") != "Bearer good"
	a.busy = max(a.busy-1, 0)
	a.mu.Unlock()
	switch {
	case busy:
		w.Header().Set("Retry-After", "0")
		refuse(w, goal.NewProblem(goal.StoreUnavailable, ""))
	case locked:
		refuse(w, goal.NewProblem(goal.Unauthenticated, "Send an API key as a bearer token."))
	default:
		a.mux.ServeHTTP(w, r)
	}
}

func refuse(w http.ResponseWriter, p *goal.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (a *fakeAPI) submit(w http.ResponseWriter, r *http.Request) {
	key, problem := goal.ParseKey(r.Header.Values("Idempotency-Key"))
	if problem != nil {
		refuse(w, problem)
		return
	}
	body, _ := io.ReadAll(r.Body)
	g, fingerprint, problem := goal.ParseGoal(body)
	if problem != nil {
		refuse(w, problem)
		return
	}
	if strings.Contains(string(g.PreConditions), "stale") {
		problem = goal.NewProblem(goal.PreconditionMismatch, "1 pre-condition does not hold.")
		problem.Checks = []goal.Difference{{Pointer: "/account_version", Want: json.RawMessage(`"stale"`), Have: json.RawMessage("13")}}
	}
	if r.URL.Query().Get("dry_run") == "true" {
		a.dryRun(w, problem)
		return
	}
	if problem != nil {
		refuse(w, problem)
		return
	}
	a.store(w, goal.Submission{TaskID: goal.TaskID("default", key), Tenant: "default", Key: key, Fingerprint: fingerprint, Goal: g})
}

func (a *fakeAPI) dryRun(w http.ResponseWriter, problem *goal.Problem) {
	rep := report{Verdict: "ready", Checks: []reportCheck{{Name: "environment", OK: true}, {Name: "pre_conditions", OK: problem == nil}}, Problem: problem}
	if problem != nil {
		rep.Verdict, rep.Checks[1].Differences = "blocked", problem.Checks
	}
	answerJSON(w, http.StatusOK, rep)
}

func (a *fakeAPI) store(w http.ResponseWriter, s goal.Submission) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, ok := a.tasks[s.TaskID]; ok {
		if old.Submission.Fingerprint != s.Fingerprint {
			refuse(w, goal.NewProblem(goal.KeyReused, "This key was used with another payload."))
			return
		}
		w.Header().Set("Idempotent-Replayed", "true")
		answerJSON(w, http.StatusOK, old.Task())
		return
	}
	var how struct{ Play string }
	_ = json.Unmarshal(s.Goal.Context, &how)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(len(a.order)) * time.Minute)
	t := &fakeTask{Snapshot: goal.Snapshot{Accepted: goal.Accepted{Submission: s, At: at, Expires: at.Add(7 * 24 * time.Hour)}}, play: how.Play, changed: make(chan struct{})}
	a.tasks[s.TaskID], a.order = t, append([]string{s.TaskID}, a.order...)
	first := t.Task()
	t.perform()
	w.Header().Set("Location", first.Links.Self)
	answerJSON(w, http.StatusAccepted, first)
}

// perform writes what the play says into the task.
func (t *fakeTask) perform() {
	t.add(goal.Event{Type: goal.TaskStarted, Worker: "w1", Started: &goal.Started{Attempt: 1, Deadline: t.At.Add(2 * time.Minute)}, Observed: t.seen(1)})
	switch t.play {
	case "slow", "hang":
		return
	case "precondition":
		t.end(goal.Failed, goal.PreconditionFailed)
	case "fail":
		t.end(goal.Failed, goal.PlannerFailed)
	case "guardrail":
		t.add(goal.Event{Type: goal.StepRefused, Step: 1, Refusal: &goal.Refusal{
			Action: goal.Action{Tool: "orders.delete", Arguments: json.RawMessage(`{}`)}, Kind: "not_allowed", Message: "The tool is not allowed.",
		}})
		t.end(goal.Failed, goal.GuardrailToolNotAllowed)
	default:
		t.reach()
	}
}

func (t *fakeTask) reach() {
	t.add(goal.Event{Type: goal.StepDecided, Step: 1, Decision: &goal.Decision{
		Action: goal.Action{Tool: "orders.refund", Arguments: json.RawMessage(`{"id":"W2378156"}`)},
		Key:    strings.Repeat("ab", 32), Replay: goal.ReplayKeyed, Why: "The order is open.", Tokens: 120,
	}})
	t.add(goal.Event{Type: goal.StepCompleted, Step: 1, Outcome: &goal.Outcome{
		Kind: goal.CallOK, Status: 200, Result: json.RawMessage(`{"ok":true,"note":"\u001b[31mred"}`), Attempts: 2, Took: goal.Millis(120 * time.Millisecond),
	}, Observed: t.seen(0)})
	t.end(goal.Succeeded, goal.TargetStateReached)
}

func (t *fakeTask) seen(left int) *goal.Observed {
	o := &goal.Observed{Left: []goal.Difference{}, LeftTotal: left, Leaves: 1}
	if left > 0 {
		o.Left = append(o.Left, goal.Difference{Pointer: "/orders/W2378156/status", Want: json.RawMessage(`"refunded"`), Have: json.RawMessage(`"open"`)})
	}
	return o
}

func (t *fakeTask) add(e goal.Event) {
	e.N = len(t.Events) + 1
	e.Time = t.At.Add(time.Duration(e.N) * 250 * time.Millisecond)
	t.Events = append(t.Events, e)
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *fakeTask) end(s goal.State, why goal.Reason) {
	task := t.Task()
	t.Result = &goal.Result{Status: s, Reason: why, Usage: task.Usage, Left: task.Left, LeftTotal: task.LeftTotal, EndedAt: t.At.Add(3 * time.Second)}
	if why.Guardrail() {
		t.Result.Trip = &goal.Trip{Guardrail: why, Limit: []string{"orders.refund"}, Observed: "orders.delete", Step: 2}
	}
	if s == goal.Cancelled {
		t.Result.Effects = []goal.Effect{{Step: 1, Tool: "orders.refund", Outcome: "unknown"}}
	}
	t.add(goal.Event{Type: goal.TaskEnded, Ended: &goal.Ended{Status: s, Reason: why, Trip: t.Result.Trip, Usage: t.Result.Usage}})
}

// find calls do with the task, or refuses.
func (a *fakeAPI) find(w http.ResponseWriter, r *http.Request, do func(t *fakeTask)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.tasks[r.PathValue("id")]
	if !ok {
		refuse(w, goal.NewProblem(goal.NotFound, "There is no such task."))
		return false
	}
	do(t)
	return true
}

func (a *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	from, _ := strconv.Atoi(q.Get("cursor"))
	p := struct {
		Tasks []goal.Task `json:"tasks"`
		Next  string      `json:"next_cursor,omitempty"`
	}{Tasks: []goal.Task{}}
	limit = min(limit, 2) // small pages, so that the client has to follow
	for i, id := range a.order {
		task := a.tasks[id].Task()
		if i < from || (q.Get("status") != "" && string(task.Status) != q.Get("status")) {
			continue
		}
		if len(p.Tasks) == limit {
			p.Next = strconv.Itoa(i)
			break
		}
		p.Tasks = append(p.Tasks, task)
	}
	answerJSON(w, http.StatusOK, p)
}

func (a *fakeAPI) get(w http.ResponseWriter, r *http.Request) {
	var task goal.Task
	var changed chan struct{}
	etag := ""
	read := func() bool {
		return a.find(w, r, func(t *fakeTask) {
			if strings.HasPrefix(r.Header.Get("Prefer"), "wait=") && t.play == "slow" && t.Result == nil {
				t.reach()
			}
			task, changed, etag = t.Task(), t.changed, fmt.Sprintf(`"%d"`, len(t.Events))
		})
	}
	if !read() {
		return
	}
	if r.Header.Get("Prefer") != "" && r.Header.Get("If-None-Match") == etag && !task.Status.Terminal() {
		a.watched <- struct{}{}
		select {
		case <-changed:
			read()
		case <-r.Context().Done():
			return
		case <-a.stopped:
			return
		}
	}
	w.Header().Set("ETag", etag)
	answerJSON(w, http.StatusOK, task)
}

func (a *fakeAPI) trace(w http.ResponseWriter, r *http.Request) {
	a.find(w, r, func(t *fakeTask) {
		after, _ := strconv.Atoi(r.URL.Query().Get("after"))
		answerJSON(w, http.StatusOK, map[string]any{"task_id": t.Submission.TaskID, "status": t.Task().Status, "events": t.Trace(after)})
	})
}

func (a *fakeAPI) events(w http.ResponseWriter, r *http.Request) {
	last, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	var events []goal.Event
	var changed chan struct{}
	read := func() bool {
		return a.find(w, r, func(t *fakeTask) { events, changed = slices.Clone(t.Trace(last)), t.changed })
	}
	if !read() {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	if len(events) == 0 {
		a.watched <- struct{}{}
		select {
		case <-changed:
			read()
		case <-r.Context().Done():
			return
		case <-a.stopped:
			return
		}
	}
	fmt.Fprint(w, ": a comment\n\n")
	for _, e := range events[:min(2, len(events))] {
		b, _ := goal.Marshal(e)
		fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.N, e.Type, b)
	}
}

func (a *fakeAPI) cancel(w http.ResponseWriter, r *http.Request) {
	a.find(w, r, func(t *fakeTask) {
		if t.Result == nil {
			t.end(goal.Cancelled, goal.CancelRequested)
		}
		answerJSON(w, http.StatusAccepted, t.Task())
	})
}

func (a *fakeAPI) deliveries(w http.ResponseWriter, r *http.Request) {
	a.find(w, r, func(t *fakeTask) {
		d := goal.DeliveryView{
			ID: "msg_1", TaskID: t.Submission.TaskID, URL: "https://example.com/hook", State: goal.DeliveryPending, Created: t.At, Next: t.At.Add(time.Hour), Total: 1,
			Attempts: []goal.Attempt{{N: 1, At: t.At, Trigger: goal.TriggerEvent, Error: "timeout", Took: goal.Millis(20 * time.Second)}},
		}
		answerJSON(w, http.StatusOK, deliveryList{Deliveries: []goal.DeliveryView{d}})
	})
}

// accept answers a post to the operators' API with what was posted.
func (a *fakeAPI) accept(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	answerJSON(w, http.StatusAccepted, map[string]string{"path": r.URL.Path, "query": r.URL.RawQuery, "body": string(body)})
}

const fakeCall = `{"id":"c0ffee","v":1,"state":"HELD","fp":"f","owner":"o","attempt":1,"tenant":"default","key_hint":"8699bf91",
"method":"POST","path":"/orders/refund","reason":"upstream reset","started":"2026-01-02T03:04:05Z"}`

func (a *fakeAPI) calls(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("key") != "" {
		a.call(w, r)
		return
	}
	list := []json.RawMessage{}
	if s := r.URL.Query().Get("state"); s == "" || s == "HELD" {
		list = append(list, json.RawMessage(fakeCall))
	}
	answerJSON(w, http.StatusOK, map[string]any{"calls": list})
}

func (a *fakeAPI) call(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != "" && id != "c0ffee" {
		refuse(w, goal.NewProblem(goal.NotFound, ""))
		return
	}
	answerJSON(w, http.StatusOK, json.RawMessage(fakeCall))
}

package ingest_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func (w *world) started(task string) {
	w.store.append("default", task, goal.Event{
		N: 1, Type: goal.TaskStarted, Time: w.store.now(),
		Started: &goal.Started{Attempt: 1, GoalSeq: 1, Deadline: w.store.now().Add(time.Minute)},
	})
}

func decided(n, step int) goal.Event {
	return goal.Event{N: n, Type: goal.StepDecided, Step: step, Decision: &goal.Decision{
		Action: goal.Action{Tool: "orders.get", Arguments: []byte(`{}`)}, Key: "k", Replay: goal.ReplayRead,
		PlannerState: []byte(`"secret thoughts"`),
	}}
}

func TestGetTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	id := goal.TaskID("default", "k")
	w.started(id)
	for i := range 25 {
		w.store.append("default", id, decided(i+2, i+1))
	}
	rec := w.call(http.MethodGet, "/v1/tasks/"+id, "")
	wantStatus(t, rec, http.StatusOK)
	task := taskIn(t, rec)
	if task.Status != goal.Running || task.Usage.Steps != 25 {
		t.Errorf("task = %s with %d steps", task.Status, task.Usage.Steps)
	}
	if n := len(task.Trace); n != 1+goal.TraceSnapshot {
		t.Errorf("%d events of the trace are shown, want the start and %d steps", n, goal.TraceSnapshot)
	}
	for _, e := range task.Trace {
		if e.Decision != nil && e.Decision.PlannerState != nil {
			t.Fatal("the planner's memory is shown")
		}
	}
	etag := rec.Header().Get("ETag")
	wantHeader(t, rec, "Retry-After", "1")

	again := w.call(http.MethodGet, "/v1/tasks/"+id, "", "If-None-Match: "+etag)
	wantStatus(t, again, http.StatusNotModified)
	if again.Body.Len() != 0 {
		t.Error("304 with a body")
	}
	wantHeader(t, again, "ETag", etag)

	none := w.call(http.MethodGet, "/v1/tasks/"+id+"?trace=none", "", "If-None-Match: "+etag)
	wantStatus(t, none, http.StatusOK)
	if taskIn(t, none).Trace != nil {
		t.Error("trace=none shows a trace")
	}
	wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+id+"?trace=all", ""), http.StatusBadRequest)

	head := w.call(http.MethodHead, "/v1/tasks/"+id, "")
	wantStatus(t, head, http.StatusOK)
	wantHeader(t, head, "ETag", etag)
	if head.Body.Len() != 0 {
		t.Error("HEAD with a body")
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	id := goal.TaskID("default", "k")
	w.started(id)
	w.store.append("default", id, decided(2, 1), decided(3, 2))
	type traceBody struct {
		TaskID string       `json:"task_id"`
		Events []goal.Event `json:"events"`
	}
	for path, want := range map[string]int{"": 3, "?after=0": 3, "?after=2": 1, "?after=9": 0} {
		got := decode[traceBody](t, w.call(http.MethodGet, "/v1/tasks/"+id+"/trace"+path, ""), "application/json")
		if len(got.Events) != want || got.Events == nil {
			t.Errorf("trace%s has %d events, want %d", path, len(got.Events), want)
		}
	}
	for _, bad := range []string{"-1", "x", "1.5", "99999999999999999999"} {
		wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+id+"/trace?after="+bad, ""), http.StatusBadRequest)
	}
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	keys, err := ingest.NewKeys([]ingest.Key{
		{SHA256: ingest.HashKey("ka"), Tenant: "a"}, {SHA256: ingest.HashKey("kb"), Tenant: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *ingest.Config) { c.Auth = keys })
	wantStatus(t, w.post("k", goodGoal, "Authorization: Bearer ka"), http.StatusAccepted)
	mine := goal.TaskID("a", "k")
	wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+mine, "", "Authorization: Bearer ka"), http.StatusOK)

	// A foreign task, an unknown one and one that cannot exist look the same.
	var bodies []goal.Problem
	for _, id := range []string{mine, goal.TaskID("b", "nothing"), "tsk_x", "*", "tsk_" + "0123456789abcdef0123456789ABCDEF"} {
		for _, path := range []string{"", "/trace", "/events"} {
			rec := w.call(http.MethodGet, "/v1/tasks/"+id+path, "", "Authorization: Bearer kb")
			wantStatus(t, rec, http.StatusNotFound)
			p := problemIn(t, rec)
			p.Instance = ""
			bodies = append(bodies, p)
		}
		rec := w.call(http.MethodPost, "/v1/tasks/"+id+"/cancel", "", "Authorization: Bearer kb")
		wantStatus(t, rec, http.StatusNotFound)
	}
	for _, p := range bodies {
		if p.Type != bodies[0].Type || p.Detail != bodies[0].Detail || p.Title != bodies[0].Title {
			t.Errorf("answers differ: %+v and %+v", p, bodies[0])
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cancel := func(id string) goal.Task {
		rec := w.call(http.MethodPost, "/v1/tasks/"+id+"/cancel", "")
		wantStatus(t, rec, http.StatusAccepted)
		wantHeader(t, rec, "Location", "/v1/tasks/"+id)
		return taskIn(t, rec)
	}

	wantStatus(t, w.post("queued", goodGoal), http.StatusAccepted)
	queued := goal.TaskID("default", "queued")
	for range 3 {
		if got := cancel(queued); got.Status != goal.Cancelled || got.Reason != goal.CancelRequested {
			t.Errorf("queued task after cancel = %s %s, want cancelled at once", got.Status, got.Reason)
		}
	}
	if n := len(w.store.tasks["default/"+queued].Events); n != 1 {
		t.Errorf("%d events, want the one terminal event", n)
	}

	wantStatus(t, w.post("running", goodGoal), http.StatusAccepted)
	running := goal.TaskID("default", "running")
	w.started(running)
	for range 3 {
		if got := cancel(running); got.Status != goal.Running || !got.CancelAsked {
			t.Errorf("running task after cancel = %s, asked %v", got.Status, got.CancelAsked)
		}
	}

	wantStatus(t, w.post("done", goodGoal), http.StatusAccepted)
	done := goal.TaskID("default", "done")
	w.started(done)
	acc := w.store.tasks["default/"+done].Accepted
	if _, err := w.store.Settle(t.Context(), acc, goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached}, 1); err != nil {
		t.Fatal(err)
	}
	if got := cancel(done); got.Status != goal.Succeeded || got.CancelAsked {
		t.Errorf("finished task after cancel = %s, asked %v; want it as it is", got.Status, got.CancelAsked)
	}
}

// TestCancelMeetsStart: a worker that starts between the marker and the second
// look keeps the task; its own look at the marker ends it.
func TestCancelMeetsStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	id := goal.TaskID("default", "k")
	w.store.after = func(op string) {
		if op == "cancel" {
			w.store.after = nil
			defer w.started(id)
		}
	}
	rec := w.call(http.MethodPost, "/v1/tasks/"+id+"/cancel", "")
	wantStatus(t, rec, http.StatusAccepted)
	if got := taskIn(t, rec); got.Status != goal.Running || !got.CancelAsked {
		t.Errorf("task = %s, asked %v", got.Status, got.CancelAsked)
	}
	if w.store.tasks["default/"+id].Result != nil {
		t.Error("a started task was settled by ingest")
	}
}

func TestReadsWhenTheStoreIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.fault = func(context.Context, string) error { return goal.ErrUnavailable }
	id := goal.TaskID("default", "k")
	for _, path := range []string{"", "/trace", "/events"} {
		rec := w.call(http.MethodGet, "/v1/tasks/"+id+path, "")
		wantStatus(t, rec, http.StatusServiceUnavailable)
		wantHeader(t, rec, "Retry-After", "1")
	}
	wantStatus(t, w.call(http.MethodGet, "/healthz", ""), http.StatusOK)
	wantStatus(t, w.call(http.MethodGet, "/v1/schemas/goal.json", ""), http.StatusOK)
}

package ingest_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

var update = flag.Bool("update", false, "write the golden files")

// TestWireShapes pins whole answers: status, headers and body.
func TestWireShapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := goal.TaskID("default", "order-1")
	record := func(name string, rec *httptest.ResponseRecorder) {
		t.Helper()
		golden(t, name, rec)
	}
	requestID := "X-Request-Id: req-1"
	record("submit_first", w.post("order-1", goodGoal, requestID))
	record("submit_replay", w.post("order-1", sameGoal, requestID))
	record("submit_reused", w.post("order-1", otherGoal, requestID))
	record("submit_no_key", w.call(http.MethodPost, "/v1/tasks", goodGoal, "Content-Type: application/json", requestID))
	record("submit_invalid", w.post("x", `{"goal":{"intent":"abc","target_state":{}},"guardrails":{"max_step":1}}`, requestID))
	record("submit_malformed", w.post("x", `{"goal":{"intent":"a","intent":"b"}}`, requestID))
	record("dry_run", w.call(http.MethodPost, "/v1/tasks?dry_run=true", goodGoal, "Content-Type: application/json", requestID))
	w.started(id)
	w.store.append("default", id, decided(2, 1))
	record("task_running", w.call(http.MethodGet, "/v1/tasks/"+id, "", requestID))
	record("trace", w.call(http.MethodGet, "/v1/tasks/"+id+"/trace?after=1", "", requestID))
	acc := w.store.tasks["default/"+id].Accepted
	if _, err := w.store.Settle(t.Context(), acc, goal.Result{
		Status: goal.Failed, Reason: goal.GuardrailMaxSteps, Trip: &goal.Trip{Guardrail: goal.GuardrailMaxSteps, Limit: 12, Observed: 13, Step: 13},
		Left: []goal.Difference{{Pointer: "/orders/W2378156/status", Want: []byte(`"refunded"`), Have: []byte(`"paid"`)}}, LeftTotal: 1,
	}, 2); err != nil {
		t.Fatal(err)
	}
	record("submit_replay_ended", w.post("order-1", goodGoal, requestID))
	record("events", w.call(http.MethodGet, "/v1/tasks/"+id+"/events", "", requestID, "Last-Event-ID: 1"))
	record("events_behind_the_end", w.call(http.MethodGet, "/v1/tasks/"+id+"/events", "", requestID, "Last-Event-ID: 3"))
	record("cancel_ended", w.call(http.MethodPost, "/v1/tasks/"+id+"/cancel", "", requestID))
	record("not_found", w.call(http.MethodGet, "/v1/tasks/tsk_x", "", requestID))
	record("method_not_allowed", w.call(http.MethodDelete, "/v1/tasks", "", requestID))
	limited := newWorld(t, func(c *ingest.Config) { c.MaxInFlight = 1; c.Limit = ingest.Limit{PerSecond: 1e-9, Burst: 1} })
	limited.post("a", goodGoal)
	record("rate_limited", cutRetry(limited.post("b", goodGoal, requestID)))
}

// cutRetry takes out what depends on the time.
func cutRetry(rec *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	after := rec.Header().Get("Retry-After")
	rec.Header().Set("Retry-After", "N")
	rec.Header().Del("Content-Length")
	rec.Body = bytes.NewBuffer(bytes.ReplaceAll(rec.Body.Bytes(), []byte(after), []byte("0")))
	return rec
}

func golden(t *testing.T, name string, rec *httptest.ResponseRecorder) {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(http.StatusText(rec.Code) + "\n")
	lines := []string{}
	for name, values := range rec.Header() {
		for _, v := range values {
			lines = append(lines, name+": "+v)
		}
	}
	sort.Strings(lines)
	out.WriteString(strings.Join(lines, "\n") + "\n\n")
	if json.Valid(rec.Body.Bytes()) {
		if err := json.Indent(&out, rec.Body.Bytes(), "", "  "); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n")
	} else {
		out.Write(rec.Body.Bytes())
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%s differs (-update writes it):\n%s\nwant:\n%s", path, out.Bytes(), want)
	}
}

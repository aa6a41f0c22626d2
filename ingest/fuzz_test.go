package ingest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// FuzzSubmit: whatever comes, the answer is a task that is stored under the id
// of its key, or a problem with nothing stored.
func FuzzSubmit(f *testing.F) {
	f.Add("k", "application/json", goodGoal)
	f.Add(`"k"`, "application/json; charset=utf-8", sameGoal)
	f.Add("", "text/plain", "{}")
	f.Add(`"a\"b";v=1`, "application/x+json", "\xff")
	f.Add("k", "application/json", `{"goal":{"intent":"é\u0000😀","target_state":{"a":9007199254740993}},"guardrails":{"max_steps":1e0,"timeout_seconds":10}}`)
	f.Fuzz(func(t *testing.T, key, media, body string) {
		w := newWorld(t)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/tasks", strings.NewReader(body))
		r.Host = "localhost"
		r.Header["Idempotency-Key"], r.Header["Content-Type"] = []string{key}, []string{media}
		rec := recorded(w.h, r)
		if rec.Code == http.StatusAccepted {
			parsed, problem := goal.ParseKey([]string{key})
			if id := goal.TaskID("default", parsed); problem != nil || taskIn(t, rec).ID != id || w.store.tasks["default/"+id] == nil {
				t.Errorf("key %q: %s", key, rec.Body)
			}
			again := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/tasks", strings.NewReader(body))
			again.Host, again.Header = "localhost", r.Header.Clone()
			if rec := recorded(w.h, again); rec.Code != http.StatusAccepted || rec.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("the same request again: %d", rec.Code)
			}
			return
		}
		if p := problemIn(t, rec); rec.Code >= http.StatusInternalServerError || w.store.stored() != 0 {
			t.Errorf("%d %s, %d stored", rec.Code, p.Kind(), w.store.stored())
		}
	})
}

// FuzzRoutes: no path, method, query or header makes the handler panic, answer
// 500, or answer an error that is no problem.
func FuzzRoutes(f *testing.F) {
	id := goal.TaskID("default", "k")
	f.Add("GET", "/v1/tasks/"+id, "trace=none", "wait=0")
	f.Add("GET", "/v1/tasks", "status=queued&cursor=AQAAAAAAAAAB&limit=5", "")
	f.Add("POST", "/v1/tasks/"+id+"/cancel", "", "wait=x, wait=1")
	f.Add("GET", "/v1/tasks/*/trace", "after=-1", "")
	f.Add("OPTIONS", "/%2e%2e/v1//tasks", "%zz", ";")
	f.Fuzz(func(t *testing.T, method, path, query, prefer string) {
		if strings.Contains(strings.ToLower(prefer), "wait") && prefer != "wait=0" || strings.HasSuffix(path, "/events") {
			t.Skip("would wait")
		}
		w := newWorld(t)
		w.post("k", goodGoal)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Host, r.Method = "localhost", method
		r.URL.Path, r.URL.RawQuery = path, query
		r.Header["Prefer"], r.Header["If-None-Match"] = []string{prefer}, []string{prefer}
		rec := recorded(w.h, r)
		if rec.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if rec.Code >= http.StatusBadRequest && method != http.MethodHead && !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%d is no problem: %q", rec.Code, rec.Body)
		}
	})
}

package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// TestIdempotencyTable is the public contract's table of POST /v1/tasks.
func TestIdempotencyTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := goal.TaskID("default", "k1")

	first := w.post("k1", goodGoal)
	wantStatus(t, first, http.StatusAccepted)
	wantHeader(t, first, "Location", "/v1/tasks/"+id)
	wantHeader(t, first, "Retry-After", "1")
	wantHeader(t, first, "Idempotent-Replayed", "")
	if task := taskIn(t, first); task.ID != id || task.Status != goal.Queued {
		t.Errorf("task = %s %s, want %s queued", task.ID, task.Status, id)
	}

	for name, again := range map[string][2]string{
		"same bytes":              {"k1", goodGoal},
		"other order and numbers": {"k1", sameGoal},
		"quoted spelling":         {`"k1"`, goodGoal},
	} {
		rec := w.post(again[0], again[1])
		wantStatus(t, rec, http.StatusAccepted)
		wantHeader(t, rec, "Location", "/v1/tasks/"+id)
		wantHeader(t, rec, "Idempotent-Replayed", "true")
		wantHeader(t, rec, "Retry-After", "1")
		if got := taskIn(t, rec); got.ID != id {
			t.Errorf("%s: task %s, want %s", name, got.ID, id)
		}
	}

	other := w.post("k1", otherGoal)
	wantStatus(t, other, http.StatusConflict)
	wantHeader(t, other, "x-should-retry", "false")
	wantHeader(t, other, "Retry-After", "")
	if p := problemIn(t, other); p.Kind() != goal.KeyReused {
		t.Errorf("problem = %s, want %s", p.Kind(), goal.KeyReused)
	}

	w.store.append("default", id, goal.Event{
		N: 1, Type: goal.TaskStarted, Time: w.store.now(),
		Started: &goal.Started{Attempt: 1, GoalSeq: 1, Deadline: w.store.now().Add(time.Minute)},
	})
	running := w.post("k1", goodGoal)
	wantStatus(t, running, http.StatusAccepted)
	if got := taskIn(t, running).Status; got != goal.Running {
		t.Errorf("replayed status = %s, want running", got)
	}

	acc := w.store.tasks["default/"+id].Accepted
	if _, err := w.store.Settle(t.Context(), acc, goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached}, 1); err != nil {
		t.Fatal(err)
	}
	done := w.post("k1", goodGoal)
	wantStatus(t, done, http.StatusOK)
	wantHeader(t, done, "Idempotent-Replayed", "true")
	wantHeader(t, done, "Location", "/v1/tasks/"+id)
	wantHeader(t, done, "Retry-After", "")
	if got := taskIn(t, done); got.Status != goal.Succeeded || got.Reason != goal.TargetStateReached {
		t.Errorf("replayed task = %s %s", got.Status, got.Reason)
	}
	wantStatus(t, w.post("k1", otherGoal), http.StatusConflict)

	if n := w.store.stored(); n != 1 {
		t.Errorf("%d submissions were stored, want 1", n)
	}
}

func TestSubmitRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 256)
	jsonType := "Content-Type: application/json"
	for _, row := range []struct {
		name    string
		headers []string
		body    string
		status  int
		kind    goal.ProblemType
	}{
		{"no key", []string{jsonType}, goodGoal, 400, goal.KeyMissing},
		{"empty key", []string{jsonType, "Idempotency-Key: "}, goodGoal, 400, goal.KeyMissing},
		{"two keys", []string{jsonType, "Idempotency-Key: a", "Idempotency-Key: a"}, goodGoal, 400, goal.KeyMalformed},
		{"key with a comma", []string{jsonType, "Idempotency-Key: a,b"}, goodGoal, 400, goal.KeyMalformed},
		{"key too long", []string{jsonType, "Idempotency-Key: " + long}, goodGoal, 400, goal.KeyMalformed},
		{"no media type", []string{"Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"form", []string{"Content-Type: application/x-www-form-urlencoded", "Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"text json", []string{"Content-Type: text/json", "Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"two media types", []string{jsonType, jsonType, "Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"latin-1", []string{jsonType + "; charset=iso-8859-1", "Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"encoded", []string{jsonType, "Content-Encoding: gzip", "Idempotency-Key: a"}, goodGoal, 415, goal.UnsupportedMediaType},
		{"too large", []string{jsonType, "Idempotency-Key: a"}, goodGoal + strings.Repeat(" ", goal.MaxBody), 413, goal.PayloadTooLarge},
		{"no body", []string{jsonType, "Idempotency-Key: a"}, "", 400, goal.MalformedJSON},
		{"no json", []string{jsonType, "Idempotency-Key: a"}, "{", 400, goal.MalformedJSON},
		{"duplicate member", []string{jsonType, "Idempotency-Key: a"}, `{"goal":1,"goal":2}`, 400, goal.MalformedJSON},
		{"trailing data", []string{jsonType, "Idempotency-Key: a"}, goodGoal + "x", 400, goal.MalformedJSON},
		{"no goal", []string{jsonType, "Idempotency-Key: a"}, `{}`, 422, goal.GoalInvalid},
		{"misspelt guardrail", []string{jsonType, "Idempotency-Key: a"}, strings.Replace(goodGoal, "max_steps", "max_step", 1), 422, goal.GoalInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rec := w.call(http.MethodPost, "/v1/tasks", row.body, row.headers...)
			wantStatus(t, rec, row.status)
			p := problemIn(t, rec)
			if p.Kind() != row.kind {
				t.Errorf("problem = %s, want %s", p.Kind(), row.kind)
			}
			if row.kind == goal.GoalInvalid && len(p.Errors) == 0 {
				t.Error("no place is named")
			}
			wantHeader(t, rec, "Cache-Control", "no-store")
			if n := w.store.stored(); n != 0 {
				t.Errorf("%d submissions were stored", n)
			}
			// The key stays free.
			wantStatus(t, w.post("a", goodGoal), http.StatusAccepted)
		})
	}
}

func TestSubmitTakesEveryJSONType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, media := range []string{
		"application/json", "Application/JSON", "application/json; charset=utf-8", `application/json;charset="UTF-8"`,
		"application/vnd.example+json", "application/merge-patch+json; v=1",
	} {
		rec := w.call(http.MethodPost, "/v1/tasks", goodGoal, "Content-Type: "+media, fmt.Sprintf("Idempotency-Key: k%d", i))
		wantStatus(t, rec, http.StatusAccepted)
	}
}

func TestSubmitFailures(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		fault  error
		status int
		kind   goal.ProblemType
		after  string
	}{
		{"queue full", fmt.Errorf("submit: %w", goal.ErrFull), 429, goal.QueueFull, "5"},
		{"store down", fmt.Errorf("submit: %w", goal.ErrUnavailable), 503, goal.StoreUnavailable, "1"},
		{"deadline", context.DeadlineExceeded, 503, goal.StoreUnavailable, "1"},
		{"anything else", errors.New("disk on fire at 10.0.0.7"), 503, goal.StoreUnavailable, "1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.store.fault = func(_ context.Context, op string) error {
				if op == "submit" {
					return row.fault
				}
				return nil
			}
			rec := w.post("k", goodGoal)
			wantStatus(t, rec, row.status)
			wantHeader(t, rec, "Retry-After", row.after)
			if p := problemIn(t, rec); p.Kind() != row.kind || strings.Contains(p.Detail, "10.0.0.7") {
				t.Errorf("problem = %+v", p)
			}
		})
	}
}

// TestStoreThatHangs: the 503 comes within 2 s although the store never answers.
func TestStoreThatHangs(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"load", "submit"} {
		w := newWorld(t, func(c *ingest.Config) { c.StoreTimeout = 50 * time.Millisecond })
		if op == "load" { // of a key that is known
			wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		}
		w.store.fault = func(ctx context.Context, o string) error {
			if o == op {
				<-ctx.Done()
				return fmt.Errorf("%s: %w", o, ctx.Err())
			}
			return nil
		}
		rec := w.post("k", goodGoal)
		wantStatus(t, rec, http.StatusServiceUnavailable)
		wantHeader(t, rec, "Retry-After", "1")
	}
}

func TestManySubmissionsOfOneKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 200
	var wg sync.WaitGroup
	var mu sync.Mutex
	firsts, ids := 0, map[string]bool{}
	for range n {
		wg.Go(func() {
			rec := w.post("k", goodGoal)
			mu.Lock()
			defer mu.Unlock()
			if rec.Code != http.StatusAccepted {
				t.Errorf("status = %d", rec.Code)
			}
			if rec.Header().Get("Idempotent-Replayed") == "" {
				firsts++
			}
			ids[taskIn(t, rec).ID] = true
		})
	}
	wg.Wait()
	if firsts != 1 || len(ids) != 1 || w.store.stored() != 1 {
		t.Errorf("%d firsts, %d ids, %d stored; want 1 each", firsts, len(ids), w.store.stored())
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	blocked := goal.NewProblem(goal.PreconditionMismatch, "account_version has changed")
	blocked.Checks = []goal.Difference{{Pointer: "/account_version", Want: []byte("12"), Have: []byte("13")}}
	report := ingest.Report{Verdict: ingest.Blocked, Refusal: blocked, Checks: []ingest.Check{{Name: "pre_conditions", Differences: blocked.Checks}}}
	for _, row := range []struct {
		name   string
		report ingest.Report
		err    error
		status int
		kind   goal.ProblemType
		dry    int
	}{
		{"ready", ingest.Report{Verdict: ingest.Ready}, nil, 202, "", 200},
		{"satisfied", ingest.Report{Verdict: ingest.AlreadySatisfied}, nil, 202, "", 200},
		{"precondition", report, nil, 412, goal.PreconditionMismatch, 200},
		{"unknown environment", ingest.Report{}, goal.NewProblem(goal.GoalInvalid, "environment"), 422, goal.GoalInvalid, 422},
		{"role", ingest.Report{}, fmt.Errorf("preflight: %w", goal.NewProblem(goal.Forbidden, "role")), 403, goal.Forbidden, 403},
		{"probe broken", ingest.Report{}, errors.New("dial tcp 10.0.0.7:443: refused"), 503, goal.DependencyNotAvailable, 503},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *ingest.Config) {
				c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
					return row.report, row.err
				}
			})
			dry := w.call(http.MethodPost, "/v1/tasks?dry_run=true", goodGoal, "Content-Type: application/json")
			wantStatus(t, dry, row.dry)
			if row.dry == http.StatusOK {
				if got := decode[ingest.Report](t, dry, "application/json"); got.Verdict != row.report.Verdict || got.Checks == nil {
					t.Errorf("report = %+v", got)
				}
			}
			if w.store.stored() != 0 {
				t.Error("a dry run stored something")
			}
			rec := w.post("k", goodGoal)
			wantStatus(t, rec, row.status)
			if row.kind == "" {
				return
			}
			p := problemIn(t, rec)
			if p.Kind() != row.kind || strings.Contains(p.Detail, "10.0.0.7") {
				t.Errorf("problem = %+v", p)
			}
			if row.kind == goal.PreconditionMismatch && len(p.Checks) != 1 {
				t.Errorf("failed checks = %v", p.Checks)
			}
			if w.store.stored() != 0 {
				t.Error("a refused goal was stored")
			}
		})
	}
}

// TestReplayBeforePreflight: a goal that was done has changed the state that its
// own pre-conditions named; the replay must not be refused for it.
func TestReplayBeforePreflight(t *testing.T) {
	t.Parallel()
	var refuse bool
	w := newWorld(t, func(c *ingest.Config) {
		c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
			if refuse {
				return ingest.Report{Refusal: goal.NewProblem(goal.PreconditionMismatch, "")}, nil
			}
			return ingest.Report{}, nil
		}
	})
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	refuse = true
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	wantStatus(t, w.post("k2", goodGoal), http.StatusPreconditionFailed)
}

// TestKeyThatIsNotListed: another process accepted the goal. Its key is met in
// the create-only queue, or by the look before a refusal.
func TestKeyThatIsNotListed(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	wantStatus(t, newWorld(t, func(c *ingest.Config) { c.Store = store }).post("k", goodGoal), http.StatusAccepted)
	for name, refusal := range map[string]*goal.Problem{"admitted": nil, "refused": goal.NewProblem(goal.PreconditionMismatch, "")} {
		w := newWorld(t, func(c *ingest.Config) {
			c.Store = store
			c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
				return ingest.Report{Refusal: refusal}, nil
			}
		})
		t.Log(name)
		again := w.post("k", goodGoal)
		wantStatus(t, again, http.StatusAccepted)
		wantHeader(t, again, "Idempotent-Replayed", "true")
		wantStatus(t, w.post("k", otherGoal), http.StatusConflict)
	}
}

// TestRefusalNeedsALook: a key may belong to a goal that was accepted, so it is
// not refused while the store cannot say so.
func TestRefusalNeedsALook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ingest.Config) {
		c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
			return ingest.Report{Refusal: goal.NewProblem(goal.PreconditionMismatch, "")}, nil
		}
	})
	w.store.fault = func(_ context.Context, op string) error {
		if op == "load" {
			return fmt.Errorf("load: %w", goal.ErrUnavailable)
		}
		return nil
	}
	wantStatus(t, w.post("k", goodGoal), http.StatusServiceUnavailable)
	w.store.fault = nil
	wantStatus(t, w.post("k", goodGoal), http.StatusPreconditionFailed)
}

func TestDryRunKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	dry := func(key, body string) int {
		return w.call(http.MethodPost, "/v1/tasks?dry_run=true", body, "Content-Type: application/json", "Idempotency-Key: "+key).Code
	}
	for _, row := range []struct {
		name, key, body string
		want            int
	}{
		{"same payload", "k", goodGoal, 200},
		{"other payload", "k", otherGoal, 409},
		{"new key", "k2", goodGoal, 200},
		{"malformed key", "a b", goodGoal, 400},
	} {
		if got := dry(row.key, row.body); got != row.want {
			t.Errorf("%s: status %d, want %d", row.name, got, row.want)
		}
	}
	wantStatus(t, w.call(http.MethodPost, "/v1/tasks?dry_run=maybe", goodGoal, "Content-Type: application/json"), http.StatusBadRequest)
	wantStatus(t, w.call(http.MethodPost, "/v1/tasks?dry_run=false", goodGoal, "Content-Type: application/json"), http.StatusBadRequest)
	if w.store.stored() != 1 {
		t.Error("a dry run stored something")
	}
}

func TestWebhookURLIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ingest.Config) {
		c.CheckWebhook = func(url string) error {
			if strings.HasPrefix(url, "http:") {
				return errors.New("must be https")
			}
			return nil
		}
	})
	rec := w.post("k", strings.Replace(goodGoal, `{"goal"`, `{"webhook_url":"http://127.0.0.1/x","goal"`, 1))
	wantStatus(t, rec, http.StatusUnprocessableEntity)
	if p := problemIn(t, rec); len(p.Errors) != 1 || p.Errors[0].Pointer != "/webhook_url" {
		t.Errorf("errors = %+v", p.Errors)
	}
	wantStatus(t, w.post("k", strings.Replace(goodGoal, `{"goal"`, `{"webhook_url":"https://example.com/x","goal"`, 1)), http.StatusAccepted)
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ingest.Config) {
		c.Limit = ingest.Limit{PerSecond: 0.01, Burst: 2}
	})
	wantStatus(t, w.post("a", goodGoal), http.StatusAccepted)
	wantStatus(t, w.post("b", goodGoal), http.StatusAccepted)
	rec := w.post("c", goodGoal)
	wantStatus(t, rec, http.StatusTooManyRequests)
	if p := problemIn(t, rec); p.Kind() != goal.RateLimited || rec.Header().Get("Retry-After") == "" {
		t.Errorf("problem = %s, Retry-After %q", p.Kind(), rec.Header().Get("Retry-After"))
	}
	// Reads are not limited.
	wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+goal.TaskID("default", "a"), ""), http.StatusOK)
}

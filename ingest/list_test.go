package ingest_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type list struct {
	Tasks      []ingest.Summary `json:"tasks"`
	NextCursor string           `json:"next_cursor"`
}

func (w *world) list(query string) list {
	w.t.Helper()
	rec := w.call(http.MethodGet, "/v1/tasks"+query, "")
	wantStatus(w.t, rec, http.StatusOK)
	return decode[list](w.t, rec, "application/json")
}

func accepted(n int, environment string) goal.Accepted {
	key := fmt.Sprintf("old-%d", n)
	at := time.Now().Add(time.Duration(n)*time.Second - 1000*time.Second)
	return goal.Accepted{Seq: uint64(n), At: at, Expires: at.Add(7 * 24 * time.Hour), Submission: goal.Submission{ //nolint:gosec // small
		Version: 1, TaskID: goal.TaskID("default", key), Tenant: "default", Key: key,
		Goal: goal.Goal{Environment: environment, Objective: goal.Objective{Intent: key, TargetState: []byte(`{}`)}},
	}}
}

func endedEvent(n int, status goal.State, reason goal.Reason) goal.Event {
	return goal.Event{N: n, Type: goal.TaskEnded, Time: time.Now(), Ended: &goal.Ended{Status: status, Reason: reason, Usage: goal.Usage{Steps: 3}}}
}

func TestList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, tail := running(t, func(c *ingest.Config) {
			f, _ := c.Tail.(*fakeTail)
			for n := 1; n <= 120; n++ {
				f.old = append(f.old, accepted(n, []string{"shop", "ops"}[n%2]))
			}
			done := f.old[9].Submission.TaskID
			f.recall = append(f.recall, func(fn ingest.BatchFunc) {
				fn(1, "default", done, []goal.Event{{N: 1, Type: goal.TaskStarted, Time: time.Now()}, endedEvent(2, goal.Succeeded, goal.TargetStateReached)})
				fn(2, "default", f.old[10].Submission.TaskID, []goal.Event{{N: 1, Type: goal.TaskStarted, Time: time.Now()}})
			})
			c.ListSize = 100
		})
		synctest.Wait()

		// Newest first, over pages, each task once, bounded.
		seen, pages := []string{}, 0
		for cursor := ""; pages == 0 || cursor != ""; pages++ {
			got := w.list("?limit=30&cursor=" + cursor)
			for _, s := range got.Tasks {
				seen = append(seen, s.Intent)
			}
			cursor = got.NextCursor
		}
		if pages != 4 || len(seen) != 100 || seen[0] != "old-120" || seen[99] != "old-21" {
			t.Errorf("%d pages with %d tasks from %s to %s", pages, len(seen), seen[0], seen[len(seen)-1])
		}
		if n := len(w.list("").Tasks); n != 50 {
			t.Errorf("%d tasks on a page, want 50", n)
		}
		if n := len(w.list("?environment=ops&limit=200").Tasks); n != 50 {
			t.Errorf("%d tasks in ops, want 50", n)
		}

		// A submission is there at once; the queue's own word changes nothing.
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		live := accepted(121, "shop")
		tail.queue <- live
		tail.queue <- live
		synctest.Wait()
		if got := w.list("?limit=1").Tasks[0]; got.ID != live.Submission.TaskID || got.Status != goal.Queued {
			t.Errorf("newest = %s %s", got.Intent, got.Status)
		}

		// Events move it on.
		tail.bring("default", live.Submission.TaskID, goal.Event{N: 1, Type: goal.TaskStarted, Time: time.Now(), Started: &goal.Started{}},
			goal.Event{N: 2, Type: goal.StateObserved, Observed: &goal.Observed{LeftTotal: 4}})
		tail.bring("default", live.Submission.TaskID, decided(3, 1))
		got := w.list("?status=running").Tasks
		if len(got) != 1 || got[0].Usage.Steps != 1 || got[0].LeftTotal != 4 || got[0].StartedAt == nil {
			t.Errorf("running = %+v", got)
		}
		tail.bring("default", live.Submission.TaskID, endedEvent(4, goal.Failed, goal.GuardrailMaxSteps))
		tail.bring("default", live.Submission.TaskID, decided(3, 1)) // again
		if got := w.list("?status=failed,cancelled").Tasks; len(got) != 1 || got[0].Reason != goal.GuardrailMaxSteps || got[0].Usage.Steps != 3 {
			t.Errorf("failed = %+v", got)
		}

		// An event that comes before its submission is not lost.
		early := accepted(122, "shop")
		tail.bring("default", early.Submission.TaskID, goal.Event{N: 1, Type: goal.TaskStarted, Time: time.Now(), Started: &goal.Started{}})
		tail.queue <- early
		synctest.Wait()
		if got := w.list("?limit=1").Tasks[0]; got.ID != early.Submission.TaskID || got.Status != goal.Running {
			t.Errorf("newest = %s %s, want it running", got.Intent, got.Status)
		}

		// The same id with a higher sequence is a new goal.
		reused := live
		reused.Seq = 123
		tail.queue <- reused
		synctest.Wait()
		if got := w.list("?limit=1").Tasks[0]; got.ID != live.Submission.TaskID || got.Status != goal.Queued {
			t.Errorf("newest = %s %s, want it queued", got.Intent, got.Status)
		}

		// The same for those who read the list as it is.
		n := 0
		if whole := w.srv.EachTask("default", func(ingest.Summary) bool { n++; return n < 7 }); !whole || n != 7 {
			t.Errorf("EachTask called for %d tasks, whole %v", n, whole)
		}
		if !w.srv.EachTask("unknown", func(ingest.Summary) bool { return true }) {
			t.Error("a tenant without a list has half of one")
		}

		// What the retention has ended for is not listed.
		time.Sleep(7*24*time.Hour - 100*time.Second)
		for _, s := range w.list("?limit=200").Tasks {
			if s.ExpiresAt.Before(time.Now()) {
				t.Errorf("%s is listed after its end", s.Intent)
			}
		}
	})
}

func TestRecalledStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		w, _ := running(t, func(c *ingest.Config) {
			f, _ := c.Tail.(*fakeTail)
			f.old, f.hold = []goal.Accepted{accepted(1, ""), accepted(2, "")}, hold
			f.recall = append(f.recall, func(fn ingest.BatchFunc) {
				fn(1, "default", f.old[0].Submission.TaskID, []goal.Event{{N: 1, Type: goal.TaskStarted, Time: time.Now()}, endedEvent(2, goal.Succeeded, goal.TargetStateReached)})
			})
		})
		synctest.Wait()
		// Half a list would show finished tasks as queued.
		rec := w.call(http.MethodGet, "/v1/tasks", "")
		wantStatus(t, rec, http.StatusServiceUnavailable)
		wantHeader(t, rec, "Retry-After", "1")
		close(hold)
		synctest.Wait()
		got := w.list("").Tasks
		if len(got) != 2 || got[0].Status != goal.Queued || got[1].Status != goal.Succeeded || got[1].EndedAt == nil {
			t.Errorf("list = %+v", got)
		}
	})
}

func TestListParameters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t)
		synctest.Wait()
		for _, bad := range []string{"?status=done", "?status=queued,x", "?limit=0", "?limit=201", "?limit=x", "?cursor=x", "?cursor=AAAA"} {
			rec := w.call(http.MethodGet, "/v1/tasks"+bad, "")
			wantStatus(t, rec, http.StatusBadRequest)
			problemIn(t, rec)
		}
		if got := w.list("?status=&environment=nothing&limit=200"); got.Tasks == nil || len(got.Tasks) != 0 {
			t.Errorf("list = %+v, want an empty one", got)
		}
	})
}

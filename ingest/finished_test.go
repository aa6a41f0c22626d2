package ingest_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// TestReplayOfFinishedTask: it costs the store nothing for a minute, and is the
// same answer.
func TestReplayOfFinishedTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		wantStatus(t, w.call(http.MethodPost, "/v1/tasks/"+id+"/cancel", ""), http.StatusAccepted)
		first := w.post("k", goodGoal)
		wantStatus(t, first, http.StatusOK)

		w.store.fault = func(_ context.Context, op string) error { return fmt.Errorf("%s: %w", op, goal.ErrUnavailable) }
		again := w.post("k", goodGoal)
		wantStatus(t, again, http.StatusOK)
		wantHeader(t, again, "Idempotent-Replayed", "true")
		if got, want := again.Body.String(), first.Body.String(); got != want {
			t.Errorf("the answer is %s, was %s", got, want)
		}
		wantStatus(t, w.post("k", otherGoal), http.StatusConflict)

		time.Sleep(time.Minute + time.Second)
		wantStatus(t, w.post("k", goodGoal), http.StatusServiceUnavailable)
		w.store.fault = nil
		wantStatus(t, w.post("k", goodGoal), http.StatusOK)
	})
}

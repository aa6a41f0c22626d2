package ingest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// running is a world whose views live on a fake tail, until the test ends.
func running(t *testing.T, change ...func(*ingest.Config)) (*world, *fakeTail) {
	t.Helper()
	tail := newFakeTail()
	w := newWorld(t, append([]func(*ingest.Config){func(c *ingest.Config) {
		c.Tail, c.Tenants = tail, []string{"default"}
	}}, change...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	<-tail.tailed
	return w, tail
}

// ask makes a request in the background.
func (w *world) ask(path string, headers ...string) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- w.call(http.MethodGet, path, "", headers...) }()
	return answer
}

func TestPreferWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, tail := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		path := "/v1/tasks/" + id
		begin := time.Now()

		// Nothing happens: the answer comes when the time has passed.
		rec := <-w.ask(path, "Prefer: wait=30")
		wantStatus(t, rec, http.StatusOK)
		wantHeader(t, rec, "Preference-Applied", "wait=30")
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("waited %s, want 30s", took)
		}
		etag := rec.Header().Get("ETag")

		// More than a minute is a minute; with If-None-Match, 304 at its end.
		begin = time.Now()
		rec = <-w.ask(path, "Prefer: respond-async, wait=3600", "If-None-Match: "+etag)
		wantStatus(t, rec, http.StatusNotModified)
		wantHeader(t, rec, "Preference-Applied", "wait=60")
		if took := time.Since(begin); took != ingest.MaxWait {
			t.Errorf("waited %s, want a minute", took)
		}

		// A change wakes it.
		begin = time.Now()
		answer := w.ask(path, "Prefer: wait=30", "If-None-Match: "+etag)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		w.started(id)
		tail.bring("default", id, goal.Event{N: 1, Type: goal.TaskStarted})
		rec = <-answer
		wantStatus(t, rec, http.StatusOK)
		if took := time.Since(begin); took != 7*time.Second {
			t.Errorf("woken after %s, want 7s", took)
		}
		if got := taskIn(t, rec).Status; got != goal.Running {
			t.Errorf("status = %s, want running", got)
		}

		// What differs from what the caller knows is answered at once.
		begin = time.Now()
		wantStatus(t, <-w.ask(path, "Prefer: wait=30", "If-None-Match: "+etag), http.StatusOK)
		if took := time.Since(begin); took != 0 {
			t.Errorf("a known difference took %s", took)
		}

		// An event of another task, and a wake without a change, do not end it.
		begin = time.Now()
		answer = w.ask(path, "Prefer: wait=20")
		synctest.Wait()
		tail.bring("default", goal.TaskID("default", "other"), goal.Event{N: 1, Type: goal.TaskStarted})
		tail.bring("other", id, goal.Event{N: 1, Type: goal.TaskStarted})
		tail.bring("default", id, goal.Event{N: 1, Type: goal.TaskStarted})
		<-answer
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("ended after %s, want 20s", took)
		}

		// A task that has ended does not change: no wait.
		acc := w.store.tasks["default/"+id].Accepted
		if _, err := w.store.Settle(t.Context(), acc, goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached}, 1); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		<-w.ask(path, "Prefer: wait=30")
		if took := time.Since(begin); took != 0 {
			t.Errorf("a finished task took %s", took)
		}
	})
}

// TestWaitSurvivesALostWake: a tail that is cut off, or a replica that is behind,
// delays a wait but does not make it miss the change.
func TestWaitSurvivesALostWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		begin := time.Now()
		answer := w.ask("/v1/tasks/"+id, "Prefer: wait=60")
		synctest.Wait()
		w.started(id)
		<-answer
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("noticed after %s, want at most 10s", took)
		}
	})
}

func TestWaitEndsWithDrainAndCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		path := "/v1/tasks/" + goal.TaskID("default", "k")
		begin := time.Now()
		answer := w.ask(path, "Prefer: wait=60")
		synctest.Wait()
		if n := w.srv.Watchers(); n != 1 {
			t.Errorf("%d watchers, want 1", n)
		}
		go w.call(http.MethodPost, path+"/cancel", "")
		if got := taskIn(t, <-answer).Status; got != goal.Cancelled {
			t.Errorf("status = %s, want cancelled", got)
		}
		wantStatus(t, w.post("k2", goodGoal), http.StatusAccepted)
		answer = w.ask("/v1/tasks/"+goal.TaskID("default", "k2"), "Prefer: wait=60")
		synctest.Wait()
		w.srv.Drain(t.Context())
		wantStatus(t, <-answer, http.StatusOK)
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %s", took)
		}
		if n := w.srv.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}

func TestDrainGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t, func(c *ingest.Config) { c.DrainGrace = 5 * time.Second })
		begin := time.Now()
		go func() {
			time.Sleep(time.Second)
			wantStatus(t, w.call(http.MethodGet, "/readyz", ""), http.StatusServiceUnavailable)
		}()
		w.srv.Drain(t.Context())
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("Drain took %s, want 5s", took)
		}
	})
}

func TestTooManyWatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t, func(c *ingest.Config) { c.MaxWatchers = 2 })
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		path := "/v1/tasks/" + goal.TaskID("default", "k")
		a, b := w.ask(path, "Prefer: wait=5"), w.ask(path, "Prefer: wait=5")
		synctest.Wait()
		rec := w.call(http.MethodGet, path, "", "Prefer: wait=5")
		wantStatus(t, rec, http.StatusTooManyRequests)
		problemIn(t, rec)
		wantStatus(t, w.call(http.MethodGet, path, ""), http.StatusOK)
		<-a
		<-b
		wantStatus(t, w.call(http.MethodGet, path, "", "Prefer: wait=1"), http.StatusOK)
	})
}

func TestPreferParsing(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]time.Duration{
		"wait=5": 5 * time.Second, "WAIT=5": 5 * time.Second, `wait="5"`: 5 * time.Second, "respond-async, wait = 5 ; x=1": 5 * time.Second,
		"wait=0": 0, "wait=61": time.Minute, "wait=2147483647": time.Minute,
		"": -1, "wait": -1, "wait=": -1, "wait=-1": -1, "wait=1.5": -1, "wait=x": -1, "wait=99999999999999": -1, "waiting=5": -1,
	} {
		got, ok := ingest.PreferredWait([]string{line})
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("Prefer: %s = %s, want %s", line, got, want)
		}
	}
}

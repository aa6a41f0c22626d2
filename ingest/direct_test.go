package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type takeFunc = func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration

// fakeIntake hands the server's function for published goals to the test.
type fakeIntake struct {
	taken chan takeFunc
	dead  []string // reasons
	fault error    // of DeadLetter
}

func (f *fakeIntake) ConsumeIntake(ctx context.Context, _ string, take takeFunc) error {
	f.taken <- take
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeIntake) ServeRequests(ctx context.Context, _ string, _ func(context.Context, []string, []byte, string) (int, map[string]string, []byte)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeIntake) DeadLetter(_ context.Context, _, reason string, _ []string, _ []byte) error {
	if f.fault == nil {
		f.dead = append(f.dead, reason)
	}
	return f.fault
}

// publisher publishes goals into a world, and returns after how long each is to
// come again.
func publisher(t *testing.T, change ...func(*ingest.Config)) (w *world, in *fakeIntake, publish func(key, body string, age time.Duration) time.Duration) {
	t.Helper()
	in = &fakeIntake{taken: make(chan takeFunc, 1)}
	w, _ = running(t, append([]func(*ingest.Config){func(c *ingest.Config) { c.Intake = in }}, change...)...)
	take := <-in.taken
	return w, in, func(key, body string, age time.Duration) time.Duration {
		return take(t.Context(), []string{key}, []byte(body), time.Now().Add(-age), "")
	}
}

func (w *world) result(key string) *goal.Result {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	s := w.store.tasks["default/"+goal.TaskID("default", key)]
	if s == nil {
		return nil
	}
	return s.Result
}

// TestDirectFaults: what passes comes again and loses nothing; what was done
// before a crash is not done twice.
func TestDirectFaults(t *testing.T) {
	t.Parallel()
	w, in, publish := publisher(t)
	down := func(op string) {
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		w.store.fault = func(_ context.Context, o string) error {
			if o == op {
				return fmt.Errorf("%s: %w", o, goal.ErrUnavailable)
			}
			return nil
		}
	}
	down("submit")
	if again := publish("k", goodGoal, 0); again <= 0 {
		t.Error("a goal is lost when the store fails")
	}
	w.store.fault = func(context.Context, string) error { return goal.ErrFull }
	if again := publish("k", goodGoal, 0); again <= 0 {
		t.Error("a goal is lost when the queue is full")
	}
	w.store.fault = nil
	if again := publish("k", goodGoal, 0); again != 0 || w.store.stored() != 1 {
		t.Errorf("again %s, %d stored", again, w.store.stored())
	}
	down("load")
	if again := publish("k", goodGoal, 0); again <= 0 {
		t.Error("a replay is taken for done when the store fails")
	}

	// Refused: the submission is stored, the end is not; it comes again.
	down("settle")
	if again := publish("bad", "{}", 0); again <= 0 {
		t.Error("a refused goal is left without its end")
	}
	w.store.fault = nil
	for range 2 {
		if again := publish("bad", "{}", 0); again != 0 {
			t.Errorf("again %s", again)
		}
	}
	if r := w.result("bad"); r == nil || r.Reason != goal.InvalidGoal || w.store.stored() != 2 {
		t.Errorf("result = %+v, %d stored", r, w.store.stored())
	}

	// Another payload, refused or not, is noted beside the first.
	for _, body := range []string{`{"a":1}`, goodGoal} {
		if again := publish("bad", body, 0); again != 0 {
			t.Errorf("again %s", again)
		}
	}
	notes := 0
	for _, e := range w.store.tasks["default/"+goal.TaskID("default", "bad")].Events {
		if e.Type == goal.KeyConflict {
			notes++
		}
	}
	if notes != 2 {
		t.Errorf("%d notes, want 2", notes)
	}
	down("note")
	if again := publish("bad", goodGoal, 0); again <= 0 {
		t.Error("a conflict is not noted")
	}
	w.store.fault = nil

	// No usable key.
	in.fault = goal.ErrUnavailable
	if again := publish("a b", goodGoal, 0); again <= 0 {
		t.Error("a goal without a usable key is lost when the store is down")
	}
	in.fault = nil
	if again := publish("a b", goodGoal, 0); again != 0 || len(in.dead) != 1 {
		t.Errorf("again %s, dead letters %v", again, in.dead)
	}
	w.store.fault = func(_ context.Context, op string) error {
		if op == "submit" {
			return goal.ErrTooLarge
		}
		return nil
	}
	if again := publish("large", goodGoal, 0); again != 0 || len(in.dead) != 2 {
		t.Errorf("again %s, dead letters %v", again, in.dead)
	}
}

func TestDirectReasons(t *testing.T) {
	t.Parallel()
	var refuse error
	w, _, publish := publisher(t, func(c *ingest.Config) {
		c.Preflight = func(context.Context, ingest.Principal, goal.Goal, bool) (ingest.Report, error) {
			return ingest.Report{}, refuse
		}
	})
	for i, row := range []struct {
		refuse error
		reason goal.Reason
		status int
	}{
		{goal.NewProblem(goal.GoalInvalid, "x"), goal.InvalidGoal, 422},
		{goal.NewProblem(goal.Forbidden, "x"), goal.PermissionDenied, 403},
		{goal.NewProblem(goal.PreconditionMismatch, "x"), goal.PreconditionFailed, 412},
		{goal.NewProblem(goal.TokenBalanceExhausted, "x"), goal.GuardrailMaxTokens, 402},
		{goal.NewProblem(goal.DependencyNotAvailable, "x"), goal.DependencyUnavailable, 503},
		{errors.New("probe at 10.0.0.7 is down"), goal.DependencyUnavailable, 503},
		{goal.NewProblem(goal.InternalError, "x"), goal.Internal, 500},
	} {
		key := fmt.Sprint("k", i)
		refuse = row.refuse
		if row.status == http.StatusServiceUnavailable { // patience first
			if again := publish(key, goodGoal, ingest.DirectPatience-time.Second); again <= 0 || w.result(key) != nil {
				t.Errorf("%v: no patience", row.refuse)
			}
		}
		if again := publish(key, goodGoal, ingest.DirectPatience); again != 0 {
			t.Errorf("%v: again %s", row.refuse, again)
		}
		r := w.result(key)
		if r == nil || r.Status != goal.Failed || r.Reason != row.reason || r.HTTPStatus != row.status || r.Problem == nil {
			t.Errorf("%v: result %+v", row.refuse, r)
		}
	}
}

func TestDirectRate(t *testing.T) {
	t.Parallel()
	w, _, publish := publisher(t, func(c *ingest.Config) { c.Limits = map[string]ingest.Limit{"default": {PerSecond: 0.001, Burst: 1}} })
	if again := publish("a", goodGoal, 0); again != 0 {
		t.Errorf("again %s", again)
	}
	if again := publish("b", goodGoal, time.Hour); again <= 0 || w.result("b") != nil {
		t.Errorf("again %s: a rate that is used up refuses nothing for good", again)
	}
}

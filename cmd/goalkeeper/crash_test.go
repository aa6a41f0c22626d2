package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// counters is a tool backend and a planner for crash tests. Each world has a
// counter; adding to it is not idempotent by nature, and the planner rewords
// its answer whenever it is asked again.
type counters struct {
	docs *kv.Documents
	url  string

	mu    sync.Mutex
	seen  map[string]*addition // by key; guarded by mu
	asked map[string]int       // planner questions by world and step; guarded by mu
	hold  chan struct{}        // not nil: calls wait for it before they answer
	enter chan struct{}        // receives one value per call that waits
}

// addition is one Idempotency-Key's life at the backend.
type addition struct {
	world  string
	calls  int
	effect int
	body   string
}

func newCounters(tb testing.TB) *counters {
	tb.Helper()
	c := &counters{seen: map[string]*addition{}, asked: map[string]int{}, enter: make(chan struct{}, 64)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{world}/add", c.add)
	mux.HandleFunc("POST /{world}/plan", c.plan)
	srv := httptest.NewServer(mux)
	tb.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

func (c *counters) environment(world string, replay goal.Replay) environmentConfig {
	return environmentConfig{
		Name: world, NoState: true, Planner: plannerConfig{Type: "http", URL: c.url + "/" + world + "/plan"},
		Tools: []toolConfig{{Name: "counter.add", URL: c.url + "/" + world + "/add", Replay: replay}},
	}
}

// goal wants the counter at exactly n.
func (c *counters) goal(world string, n int, hook string) map[string]any {
	return map[string]any{
		"goal":       map[string]any{"intent": "Count to " + strconv.Itoa(n), "target_state": map[string]any{"counters": map[string]any{"c": map[string]any{"value": n}}}},
		"guardrails": map[string]any{"max_steps": 8, "timeout_seconds": 120}, "environment": world, "webhook_url": hook,
	}
}

// add is the tool. It does its effect once per key.
func (c *counters) add(w http.ResponseWriter, r *http.Request) {
	world, key := r.PathValue("world"), r.Header.Get("Idempotency-Key")
	c.mu.Lock()
	a := c.seen[key]
	if a == nil {
		a = &addition{world: world}
		c.seen[key] = a
	}
	a.calls++
	if a.effect == 0 {
		a.effect++
		n, err := c.increment(context.WithoutCancel(r.Context()), world)
		if err != nil {
			c.mu.Unlock()
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		a.body = fmt.Sprintf(`{"value": %d}`, n)
	}
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		c.enter <- struct{}{}
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, a.body)
}

func (c *counters) increment(ctx context.Context, world string) (int, error) {
	raw, rev, err := c.docs.Get(ctx, world, "counters", "c")
	if err != nil && !errors.Is(err, goal.ErrNotFound) {
		return 0, err
	}
	var doc struct {
		Value int `json:"value"`
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &doc); err != nil {
			return 0, err
		}
	}
	doc.Value++
	raw, err = goal.Marshal(doc)
	if err != nil {
		return 0, err
	}
	_, err = c.docs.Put(ctx, world, "counters", "c", raw, rev)
	return doc.Value, err
}

// plan is the planner: always one more addition, in other words each time.
func (c *counters) plan(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Steps []json.RawMessage `json:"steps"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	slot := fmt.Sprintf("%s/%d", r.PathValue("world"), len(q.Steps)+1)
	c.asked[slot]++
	wording := c.asked[slot]
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"action": {"tool": "counter.add", "arguments": {"wording": %d}}, "why": "one more", "tokens": 10}`, wording)
}

// of lists what the backend saw of a world.
func (c *counters) of(world string) []addition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []addition
	for _, a := range c.seen {
		if a.world == world {
			out = append(out, *a)
		}
	}
	return out
}

func (c *counters) questions(world string, step int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[fmt.Sprintf("%s/%d", world, step)]
}

const crashAckWait = 2 * time.Second

// newCounterSite is a site with one environment for each world.
func newCounterSite(tb testing.TB, replay goal.Replay, worlds ...string) (*site, *counters) {
	tb.Helper()
	c := newCounters(tb)
	s := newSite(tb, false, func(cfg *config) {
		cfg.Worker.AckWait = duration(crashAckWait)
		for _, w := range worlds {
			cfg.Environments = append(cfg.Environments, c.environment(w, replay))
		}
	})
	c.docs = s.service.store.Documents()
	return s, c
}

// TestCrashMatrix kills a worker at every point of the loop and of the
// settling, lets another one go on, and wants one effect per decision, no
// second question for a journaled decision, and one webhook.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	points := worker.Points()
	s, c := newCounterSite(t, goal.ReplayKeyed, points...)
	config := s.workerConfig()
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "CRASH\tEND\tEFFECTS\tCALLS\tQUESTIONS\tTOOK OVER AFTER")
	for _, point := range points {
		id := s.submit(point, c.goal(point, 2, s.hooks.url))
		first := s.startWorker(config, point)
		select {
		case <-first.done: // it killed itself
		case <-time.After(30 * time.Second):
			first.kill()
			t.Fatalf("%s: the worker did not get there:\n%s", point, first.err)
		}
		died := time.Now()
		second := s.startWorker(config, "")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := s.hooks.await(ctx, id)
		cancel()
		took := time.Since(died)
		second.kill()
		if err != nil {
			t.Fatalf("%s: %v\n%s", point, err, second.err)
		}
		task := s.task(id)
		adds := c.of(point)
		calls, questions := 0, c.questions(point, 1)+c.questions(point, 2)
		for _, a := range adds {
			calls += a.calls
		}
		fmt.Fprintf(tw, "%s\t%s %s\t%d\t%d\t%d\t%s\n", point, task.Status, task.Reason, len(adds), calls, questions, took.Round(100*time.Millisecond))
		if task.Status != goal.Succeeded || task.Usage.Steps != 2 || task.Usage.ToolCalls != 2 {
			t.Errorf("%s: %s %s after %d steps, want success after 2", point, task.Status, task.Reason, task.Usage.Steps)
		}
		if len(adds) != 2 || calls > 3 {
			t.Errorf("%s: %d effects in %d calls, want 2 effects and at most one repeated call", point, len(adds), calls)
		}
		// A decision that was not journaled may be asked for again, nothing else.
		if most := 3; questions > most || questions < 2 {
			t.Errorf("%s: the planner was asked %d times, want 2 or, before the decision was journaled, 3", point, questions)
		}
		journaled := slices.Index(points, point) >= slices.Index(points, "after-journal-decision")
		if journaled && questions != 2 {
			t.Errorf("%s: the planner was asked %d times for 2 decisions, the first of which was journaled", point, questions)
		}
		if n := len(s.hooks.got[id]); n != 1 {
			t.Errorf("%s: %d webhooks", point, n)
		}
	}
	_ = tw.Flush()
	t.Logf("\n%s", table.String())
}

// TestUnsafeCallInFlight kills the worker after an unsafe call: it is never
// repeated. Where the target holds the task succeeds, else its outcome is
// unknown.
func TestUnsafeCallInFlight(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	for _, tc := range []struct {
		name   string
		target int
		status goal.State
		reason goal.Reason
	}{
		{"reached", 1, goal.Succeeded, goal.TargetStateReached},
		{"not reached", 2, goal.Failed, goal.OutcomeUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, c := newCounterSite(t, goal.ReplayUnsafe, "w")
			config := s.workerConfig()
			id := s.submit("k", c.goal("w", tc.target, s.hooks.url))
			<-s.startWorker(config, "after-call").done
			second := s.startWorker(config, "")
			defer second.kill()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := s.hooks.await(ctx, id); err != nil {
				t.Fatal(err)
			}
			if task := s.task(id); task.Status != tc.status || task.Reason != tc.reason {
				t.Errorf("%s %s, want %s %s", task.Status, task.Reason, tc.status, tc.reason)
			}
			if adds := c.of("w"); len(adds) != 1 || adds[0].calls != 1 {
				t.Errorf("the unsafe tool was called: %+v, want once", adds)
			}
		})
	}
}

// TestFrozenWorker stops a worker beyond its lease while a call is in flight.
// A successor finishes the task; when the first one wakes up it can neither
// append nor settle.
func TestFrozenWorker(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	s, c := newCounterSite(t, goal.ReplayKeyed, "w")
	config := s.workerConfig()
	c.hold = make(chan struct{})
	id := s.submit("k", c.goal("w", 2, s.hooks.url))
	first := s.startWorker(config, "")
	defer first.kill()
	<-c.enter // its first call is in flight
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	c.mu.Lock()
	close(c.hold)
	c.hold = nil
	c.mu.Unlock()
	second := s.startWorker(config, "")
	defer second.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.hooks.await(ctx, id); err != nil {
		t.Fatal(err)
	}
	t.Logf("taken over and finished %s after the freeze (AckWait %s)", time.Since(frozen).Round(time.Millisecond), crashAckWait)
	before := s.trace(id)
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// Awake again it works on another goal: so it has dealt with the first one.
	second.kill()
	next := s.submit("k2", c.goal("w", 3, s.hooks.url))
	if err := s.hooks.await(ctx, next); err != nil {
		t.Fatal(err)
	}
	if after := s.trace(id); after != before {
		t.Errorf("the trace changed after the end:\n%s\nbefore:\n%s", after, before)
	}
	if n := len(s.hooks.got[id]); n != 1 {
		t.Errorf("%d webhooks", n)
	}
	if task := s.task(id); task.Status != goal.Succeeded || task.Usage.ToolCalls != 2 {
		t.Errorf("%s %s, %d calls", task.Status, task.Reason, task.Usage.ToolCalls)
	}
}

// TestCleanStop drains a worker in the middle of a task: the next one goes on
// at once, not after AckWait.
func TestCleanStop(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	s, c := newCounterSite(t, goal.ReplayKeyed, "w")
	s.cfg.Worker.AckWait = duration(30 * time.Second)
	config := s.workerConfig()
	c.hold = make(chan struct{})
	id := s.submit("k", c.goal("w", 3, s.hooks.url))
	first := s.startWorker(config, "")
	<-c.enter
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	second := s.startWorker(config, "")
	defer second.kill()
	c.mu.Lock()
	close(c.hold)
	c.hold = nil
	c.mu.Unlock()
	<-first.done
	if first.end != nil {
		t.Errorf("the drained worker ended with %v:\n%s", first.end, first.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // half of AckWait
	defer cancel()
	if err := s.hooks.await(ctx, id); err != nil {
		t.Fatalf("%v\n%s", err, second.err)
	}
	if adds := c.of("w"); len(adds) != 3 {
		t.Errorf("%d effects, want 3", len(adds))
	}
}

// trace is a task's whole trace as text.
func (s *site) trace(id string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/v1/tasks/"+id+"/trace", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	status, _, raw := s.do(req)
	if status != http.StatusOK {
		s.t.Fatalf("trace of %s: %d %s", id, status, raw)
	}
	return string(raw)
}

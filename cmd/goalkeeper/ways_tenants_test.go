package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// keyOf is the API key of a test's tenant, bearerOf its header.
func keyOf(tenant string) string { return "gk_key_of_" + tenant }

func bearerOf(tenant string) []string { return []string{"Authorization", "Bearer " + keyOf(tenant)} }

// tenantYAML is a tenant of the configuration, with more settings.
func tenantYAML(name, more string) string {
	return fmt.Sprintf("  - {name: %s, keys: [{name: k, sha256: %q}]%s}\n", name, ingest.HashKey(keyOf(name)), more)
}

// TestTenants: what one tenant sees, may and uses up is no other's.
func TestTenants(t *testing.T) {
	t.Parallel()
	nodes := kvtest.Server(t, kvtest.Options{Listen: true})
	p := ingestOn(t, nodes.URL(), "cors_origins: [https://app.example.com]\ntenants:\n"+
		tenantYAML("a", "")+tenantYAML("b", "")+tenantYAML("small", ", max_queued: 2")+tenantYAML("smaller", ", max_queued: 1")+tenantYAML("slow", ", rate: 0.1, burst: 2"))
	id := p.post("k", writeGoal("x", 1), bearerOf("a")...).task().ID

	t.Run("a foreign task and an unknown one have one answer", func(t *testing.T) {
		unknown := goal.TaskID("b", "never")
		for _, c := range []struct{ method, suffix string }{
			{http.MethodGet, ""},
			{http.MethodGet, "/trace"},
			{http.MethodGet, "/events"},
			{http.MethodPost, "/cancel"},
			{http.MethodGet, "/deliveries"},
			{http.MethodPost, "/deliveries"},
		} {
			var answers []httpReply
			for _, task := range []string{id, unknown} {
				r := p.call(c.method, "/v1/tasks/"+task+c.suffix, nil, append(bearerOf("b"), "X-Request-Id", "same")...)
				r.header.Del("Date")
				answers = append(answers, r)
			}
			foreign, none := answers[0], answers[1]
			if foreign.status != http.StatusNotFound || foreign.problem().Kind() != goal.NotFound {
				t.Errorf("%s %s of a foreign task: %d %s", c.method, c.suffix, foreign.status, foreign.body)
			}
			if !bytes.Equal(foreign.body, none.body) || fmt.Sprint(foreign.header) != fmt.Sprint(none.header) {
				t.Errorf("%s %s: foreign %v %s, unknown %v %s", c.method, c.suffix, foreign.header, foreign.body, none.header, none.body)
			}
		}
		if r := p.call(http.MethodGet, "/v1/tasks/"+id, nil, bearerOf("a")...); r.status != http.StatusOK {
			t.Errorf("own task: %d", r.status)
		}
		if mine := p.post("k", writeGoal("y", 2), bearerOf("b")...); mine.status != http.StatusAccepted || mine.task().ID == id {
			t.Errorf("the key of another tenant: %d %s", mine.status, mine.body)
		}
	})
	t.Run("a queue is full for its tenant alone", func(t *testing.T) {
		for _, c := range []struct {
			tenant string
			room   int
		}{{"small", 2}, {"smaller", 1}, {"b", 4}} {
			for i := range c.room {
				if r := p.post("q"+strconv.Itoa(i), writeGoal("q", i), bearerOf(c.tenant)...); r.status != http.StatusAccepted {
					t.Errorf("%s: goal %d: %d %s", c.tenant, i, r.status, r.body)
				}
			}
			if c.tenant == "b" {
				continue
			}
			over := p.post("over", writeGoal("q", 9), bearerOf(c.tenant)...)
			if over.status != http.StatusTooManyRequests || over.problem().Kind() != goal.QueueFull || over.header.Get("Retry-After") == "" {
				t.Errorf("%s: beyond its bound: %d %v %s", c.tenant, over.status, over.header, over.body)
			}
			if r := p.post("q0", writeGoal("q", 0), bearerOf(c.tenant)...); r.status != http.StatusAccepted || r.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("%s: replay to a full queue: %d %s", c.tenant, r.status, r.body)
			}
			// What is cancelled makes room.
			if r := p.call(http.MethodPost, "/v1/tasks/"+goal.TaskID(c.tenant, "q0")+"/cancel", nil, bearerOf(c.tenant)...); r.status != http.StatusAccepted {
				t.Errorf("%s: cancel: %d %s", c.tenant, r.status, r.body)
			}
		}
	})
	t.Run("a rate is used up for its tenant alone", func(t *testing.T) {
		for i, want := range []int{http.StatusAccepted, http.StatusAccepted, http.StatusTooManyRequests} {
			r := p.post("r"+strconv.Itoa(i), writeGoal("r", i), bearerOf("slow")...)
			if r.status != want {
				t.Errorf("submission %d: %d %s", i, r.status, r.body)
			}
			if want != http.StatusTooManyRequests {
				continue
			}
			after, err := strconv.Atoi(r.header.Get("Retry-After"))
			if err != nil || after < 1 || after > 10 || r.problem().Kind() != goal.RateLimited {
				t.Errorf("Retry-After = %q, %s", r.header.Get("Retry-After"), r.body)
			}
		}
		if r := p.post("r", writeGoal("r", 1), bearerOf("a")...); r.status != http.StatusAccepted {
			t.Errorf("another tenant: %d %s", r.status, r.body)
		}
	})
	t.Run("pages of named origins", func(t *testing.T) {
		for origin, allowed := range map[string]string{"https://app.example.com": "https://app.example.com", "https://evil.example.com": ""} {
			r := p.call(http.MethodOptions, "/v1/tasks", nil, "Origin", origin,
				"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,idempotency-key")
			if got := r.header.Get("Access-Control-Allow-Origin"); got != allowed || (r.status == http.StatusNoContent) != (allowed != "") {
				t.Errorf("preflight of %s: %d, allowed %q", origin, r.status, got)
			}
		}
		r := p.post("cors", writeGoal("c", 1), append(bearerOf("a"), "Origin", "https://app.example.com")...)
		if r.status != http.StatusAccepted || r.header.Get("Access-Control-Expose-Headers") == "" {
			t.Errorf("submission of a page: %d %v", r.status, r.header)
		}
	})
	t.Run("gzip", func(t *testing.T) {
		r := p.call(http.MethodGet, "/openapi.json", nil, "Accept-Encoding", "gzip")
		if r.header.Get("Content-Encoding") != "gzip" {
			t.Fatalf("headers = %v", r.header)
		}
		in, err := gzip.NewReader(bytes.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(in); err != nil || !bytes.Contains(text, []byte(`"3.1`)) {
			t.Errorf("document of %d bytes: %v", len(text), err)
		}
	})
}

// turns notes in which order the goals of two tenants got their turns.
type turns struct {
	mu    sync.Mutex
	order []string
	pause time.Duration
}

func (s *turns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.order = append(s.order, r.URL.Path)
	s.mu.Unlock()
	time.Sleep(s.pause) // a goal's time
	answerJSON(w, http.StatusOK, map[string]bool{"done": true})
}

// began is how many goals of both tenants have begun.
func (s *turns) began() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.order)
}

// position is the index of a tenant's nth goal, -1: not yet.
func (s *turns) position(path string, nth int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.order {
		if p == path {
			if nth--; nth < 0 {
				return i
			}
		}
	}
	return -1
}

// TestFairSharing: a tenant that has a long queue does not delay another's goal
// by more than one goal's time. With one slot, that is: between the acceptance of
// the goal and its turn one more goal of the other tenant begins at most.
func TestFairSharing(t *testing.T) {
	t.Parallel()
	queued := 200
	if os.Getenv("GOALKEEPER_HEAVY") == "1" {
		queued = 5000
	}
	// A turn is long beside what a busy machine takes to hand out a goal.
	backend := &turns{pause: 150 * time.Millisecond}
	srv := httptest.NewServer(backend)
	t.Cleanup(srv.Close)
	environment := func(name string) string {
		return "  - {name: " + name + ", no_state_tools: true, planner: {type: script, script: [{tool: turn.take, arguments: {n: 1}}]}, " +
			"tools: [{name: turn.take, replay: keyed, url: \"" + srv.URL + "/" + name + "\"}]}\n"
	}
	path := writeConfig(t, t.TempDir()+"/fair.yaml", "worker: {concurrency: 1}\ntenants:\n"+tenantYAML("many", "")+tenantYAML("few", "")+
		"environments:\n"+environment("many")+environment("few"))
	p := launch(t, nil, "serve", "--config", path, "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	turnGoal := func(tenant string) map[string]any {
		g := writeGoal("x", 1)
		g["environment"], g["guardrails"] = tenant, map[string]any{"max_steps": 1, "timeout_seconds": 60}
		return g
	}
	submitMany(t, p, queued, encodedJSON(t, turnGoal("many")))
	comesTrue(t, "the long queue is worked on", func() bool { return backend.began() > 0 })
	worst, late := 0, 0
	const goals = 8
	for i := range goals {
		before := backend.began()
		if r := p.post("few-"+strconv.Itoa(i), turnGoal("few"), bearerOf("few")...); r.status != http.StatusAccepted {
			t.Fatalf("%d %s", r.status, r.body)
		}
		accepted := backend.began()
		comesTrue(t, "the goal has its turn", func() bool { return backend.position("/few", i) >= 0 })
		between := backend.position("/few", i) - accepted
		worst = max(worst, between)
		if between > 1 {
			late++
		}
		t.Logf("goal %d: %d of the other tenant's began between its acceptance and its turn (%d while it was submitted)", i, max(between, 0), accepted-before)
	}
	// A machine that is too busy to take a goal in time may cost a turn, once.
	if late > 1 || worst > 3 {
		t.Errorf("%d of %d goals saw more than one goal of the other tenant go before, up to %d", late, goals, worst)
	}
	if done := backend.began(); done >= queued {
		t.Errorf("the long queue was short: %d goals have begun", done)
	}
}

// submitMany fills a tenant's queue.
func submitMany(t *testing.T, p *instance, n int, body []byte) {
	t.Helper()
	var all sync.WaitGroup
	keys := make(chan int)
	for range 32 {
		all.Go(func() {
			for i := range keys {
				r, err := p.try(http.MethodPost, "/v1/tasks", body, append(bearerOf("many"), "Idempotency-Key", "many-"+strconv.Itoa(i))...)
				if err != nil || r.status != http.StatusAccepted && r.status != http.StatusOK {
					t.Errorf("goal %d: %d %s %v", i, r.status, r.body, err)
				}
			}
		})
	}
	for i := range n {
		keys <- i
	}
	close(keys)
	all.Wait()
}

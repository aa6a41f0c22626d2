package ingest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// process is a server on the real store, over the real protocols.
type process struct {
	t       *testing.T
	cluster *kvtest.Cluster
	nc      *nats.Conn
	store   *kv.Store
	srv     *ingest.Server
	http    *httptest.Server
}

func newReal(t *testing.T, change ...func(*ingest.Config)) *process {
	t.Helper()
	c := kvtest.Server(t, kvtest.Options{})
	return newRealOn(t, c, change...)
}

// newRealOn starts one more process on the store.
func newRealOn(t *testing.T, c *kvtest.Cluster, change ...func(*ingest.Config)) *process {
	t.Helper()
	w := &process{t: t, cluster: c, nc: c.Conn(t)}
	w.store = c.Store(t, func(conf *kv.Config) { conf.Conn = w.nc })
	cfg := ingest.Config{
		Store: w.store, Tail: w.store, Intake: w.store, Auth: ingest.Anonymous("default"), Tenants: []string{"default"}, Log: quiet(),
		StoreTimeout: 30 * time.Second, // a loaded machine must not fail a test of something else
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if w.srv, err = ingest.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.http = httptest.NewUnstartedServer(nil)
	w.http.Config = ingest.NewHTTPServer("", w.srv.Handler())
	w.http.Start()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.srv.Run(ctx) }()
	t.Cleanup(func() {
		w.srv.Drain(context.Background())
		w.http.Client().CloseIdleConnections()
		w.http.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return w
}

// answer is a response whose body was read.
type answer struct {
	StatusCode int
	Header     http.Header
}

func (w *process) do(method, path, body string, headers ...string) (answer, []byte) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	resp, err := w.http.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var b strings.Builder
	if _, err := bufio.NewReader(resp.Body).WriteTo(&b); err != nil {
		w.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header}, []byte(b.String())
}

// post submits as a client does: a 503 is repeated with the same key.
func (w *process) post(key, body string) (answer, goal.Task) {
	w.t.Helper()
	for {
		resp, b := w.do(http.MethodPost, "/v1/tasks", body, "Content-Type: application/json", "Idempotency-Key: "+key)
		if resp.StatusCode != http.StatusServiceUnavailable {
			return resp, w.task(b)
		}
	}
}

func (w *process) task(body []byte) (task goal.Task) {
	w.t.Helper()
	if err := json.Unmarshal(body, &task); err != nil {
		w.t.Fatalf("%s: %v", body, err)
	}
	return task
}

// get reads a task, or waits until it is as wanted.
func (w *process) get(id string, as func(goal.Task) bool) goal.Task {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		resp, b := w.do(http.MethodGet, "/v1/tasks/"+id, "", "Prefer: wait=1")
		if resp.StatusCode == http.StatusOK && as(w.task(b)) {
			return w.task(b)
		}
		if resp.StatusCode != http.StatusOK {
			time.Sleep(20 * time.Millisecond) // not admitted yet
		}
	}
	w.t.Fatalf("%s is not as it should be", id)
	panic("unreachable")
}

func (w *process) publish(body, key string) *jetstream.PubAck {
	w.t.Helper()
	js, err := jetstream.New(w.nc)
	if err != nil {
		w.t.Fatal(err)
	}
	m := nats.NewMsg(goal.SubmitSubject("default"))
	m.Data = []byte(body)
	if key != "" {
		m.Header.Set("Nats-Msg-Id", key)
	}
	ack, err := js.PublishMsg(w.t.Context(), m)
	if err != nil {
		w.t.Fatal(err)
	}
	return ack
}

func (w *process) count(stream, subject string) uint64 {
	w.t.Helper()
	js, err := jetstream.New(w.nc)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := s.Info(w.t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		w.t.Fatal(err)
	}
	n := uint64(0)
	for _, k := range info.State.Subjects {
		n += k
	}
	return n
}

// TestOneKeyByEveryWay: the same key over HTTP to two processes, by publishing
// and by request, all at once, is one task in one queue.
func TestOneKeyByEveryWay(t *testing.T) {
	t.Parallel()
	oneKeyByEveryWay(t, kvtest.Server(t, kvtest.Options{}))
}

// TestOneKeyOnThreeNodes: replicas that are behind change nothing.
func TestOneKeyOnThreeNodes(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	oneKeyByEveryWay(t, kvtest.Server(t, kvtest.Options{Nodes: 3}))
}

func oneKeyByEveryWay(t *testing.T, c *kvtest.Cluster) {
	t.Helper()
	w := newRealOn(t, c)
	other := newRealOn(t, w.cluster)
	id := goal.TaskID("default", "k")
	var wg sync.WaitGroup
	var mu sync.Mutex
	firsts := 0
	note := func(status, replayed, got string) {
		mu.Lock()
		defer mu.Unlock()
		if status != "202" || got != id {
			t.Errorf("status %s, task %s", status, got)
		}
		if replayed == "" {
			firsts++
		}
	}
	for i := range 100 {
		wg.Go(func() {
			p := w
			if i%2 == 1 {
				p = other
			}
			resp, task := p.post("k", []string{goodGoal, sameGoal}[i%2])
			note(strconv.Itoa(resp.StatusCode), resp.Header.Get("Idempotent-Replayed"), task.ID)
		})
		wg.Go(func() {
			m := nats.NewMsg(goal.RequestSubject("default"))
			m.Header.Set("Idempotency-Key", `"k"`)
			m.Data = []byte(goodGoal)
			r, err := w.requested(m)
			if err != nil {
				t.Error(err)
				return
			}
			note(r.Header.Get("Status"), r.Header.Get("Idempotent-Replayed"), strings.TrimPrefix(r.Header.Get("Location"), "/v1/tasks/"))
		})
	}
	wg.Go(func() { w.publish(goodGoal, "k") })
	wg.Wait()
	w.get(id, func(t goal.Task) bool { return t.Status == goal.Queued })
	if n := w.count(goal.GoalsStream("default"), "goals.queue.>"); n != 1 {
		t.Errorf("%d goals in the queue, want 1", n)
	}
	if firsts > 1 { // none when the published one was first
		t.Errorf("%d answers say that they were first", firsts)
	}
}

// requested repeats a request until somebody listens, and the store answers.
func (w *process) requested(m *nats.Msg) (r *nats.Msg, err error) {
	for range 250 {
		r, err = w.nc.RequestMsg(m, 30*time.Second)
		if err == nil && r.Header.Get("Status") != "503" {
			return r, nil
		}
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, err
}

func TestRequest(t *testing.T) {
	t.Parallel()
	w := newReal(t)
	ask := func(key, body string) *nats.Msg {
		m := nats.NewMsg(goal.RequestSubject("default"))
		m.Data = []byte(body)
		if key != "" {
			m.Header.Set("Nats-Msg-Id", key)
		}
		r, err := w.requested(m)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, row := range []struct{ name, key, body, status, kind, replayed string }{
		{"first", "k", goodGoal, "202", "", ""},
		{"replay", "k", sameGoal, "202", "", "true"},
		{"other payload", "k", otherGoal, "409", "idempotency-key-reused", ""},
		{"no key", "", goodGoal, "400", "idempotency-key-missing", ""},
		{"no goal", "k2", "{}", "422", "invalid-goal", ""},
		{"too large", "k3", goodGoal + strings.Repeat(" ", goal.MaxBody), "413", "payload-too-large", ""},
	} {
		r := ask(row.key, row.body)
		if r.Header.Get("Status") != row.status || r.Header.Get("Idempotent-Replayed") != row.replayed {
			t.Errorf("%s: header %v", row.name, r.Header)
		}
		if row.kind == "" {
			if got := w.task(r.Data); got.ID != goal.TaskID("default", row.key) || r.Header.Get("Location") != got.Links.Self {
				t.Errorf("%s: %s at %s", row.name, got.ID, r.Header.Get("Location"))
			}
			continue
		}
		var p goal.Problem
		if err := json.Unmarshal(r.Data, &p); err != nil || string(p.Kind()) != row.kind {
			t.Errorf("%s: %s", row.name, r.Data)
		}
	}
	// What was refused to a request is not stored: its key is free.
	if resp, _ := w.post("k2", goodGoal); resp.StatusCode != http.StatusAccepted || resp.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestDirect: what is published becomes what HTTP would have made of it.
func TestDirect(t *testing.T) {
	t.Parallel()
	w := newReal(t, func(c *ingest.Config) {
		c.CheckWebhook = func(url string) error {
			if strings.Contains(url, "127.0.0.1") {
				return errors.New("is not public")
			}
			return nil
		}
		c.Preflight = func(_ context.Context, p ingest.Principal, g goal.Goal, _ bool) (ingest.Report, error) {
			switch g.Environment {
			case "stale":
				problem := goal.NewProblem(goal.PreconditionMismatch, "account_version has changed")
				problem.Checks = []goal.Difference{{Pointer: "/account_version", Want: []byte("12"), Have: []byte("13")}}
				return ingest.Report{Refusal: problem}, nil
			case "closed":
				return ingest.Report{}, goal.NewProblem(goal.Forbidden, fmt.Sprintf("roles %v", p.Roles))
			}
			return ingest.Report{}, nil
		}
		c.DirectRoles = func(tenant string) []string { return []string{"of-" + tenant} }
	})
	in := func(env string) string {
		return strings.Replace(goodGoal, `{"goal"`, `{"environment":"`+env+`","goal"`, 1)
	}
	hook := strings.Replace(goodGoal, `{"goal"`, `{"webhook_url":"https://example.com/h?token=x","max":1,"goal"`, 1)
	inside := strings.Replace(goodGoal, `{"goal"`, `{"webhook_url":"https://127.0.0.1/h","goal"`, 1)
	for _, row := range []struct {
		key, body string
		status    goal.State
		reason    goal.Reason
		problem   int
		webhook   bool
	}{
		{"good", goodGoal, goal.Queued, "", 0, false},
		{"broken", "{", goal.Failed, goal.InvalidGoal, 400, false},
		{"empty", "", goal.Failed, goal.InvalidGoal, 400, false},
		{"large", goodGoal + strings.Repeat(" ", goal.MaxBody), goal.Failed, goal.InvalidGoal, 413, false},
		{"schema", hook, goal.Failed, goal.InvalidGoal, 422, true},
		{"webhook", inside, goal.Failed, goal.InvalidGoal, 422, false},
		{"stale", in("stale"), goal.Failed, goal.PreconditionFailed, 412, false},
		{"closed", in("closed"), goal.Failed, goal.PermissionDenied, 403, false},
	} {
		w.publish(row.body, row.key)
		got := w.get(goal.TaskID("default", row.key), func(t goal.Task) bool { return t.Status == row.status })
		if got.Reason != row.reason || (got.Problem != nil) != (row.problem != 0) {
			t.Errorf("%s: %s %s with problem %v", row.key, got.Status, got.Reason, got.Problem)
			continue
		}
		if row.problem != 0 && (got.Problem.Status != row.problem || got.HTTPStatus != row.problem) {
			t.Errorf("%s: problem %+v, http_status %d", row.key, got.Problem, got.HTTPStatus)
		}
		if (got.WebhookURL != "") != row.webhook {
			t.Errorf("%s: webhook %q", row.key, got.WebhookURL)
		}
		if row.key == "stale" && len(got.Checks) != 1 {
			t.Errorf("failed checks = %v", got.Checks)
		}
		if row.key == "closed" && !strings.Contains(got.Detail, "of-default") {
			t.Errorf("detail = %q", got.Detail)
		}
	}

	// HTTP meets what was published, under the same rules.
	if resp, task := w.post("good", sameGoal); resp.StatusCode != http.StatusAccepted || resp.Header.Get("Idempotent-Replayed") != "true" || task.ID != goal.TaskID("default", "good") {
		t.Errorf("HTTP after NATS: %d %v", resp.StatusCode, resp.Header)
	}
	resp, body := w.do(http.MethodPost, "/v1/tasks", goodGoal, "Content-Type: application/json", "Idempotency-Key: schema")
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("another payload for a refused key: %d %s", resp.StatusCode, body)
	}
}

// TestDirectConflict: another payload leaves the first task alone, and is noted.
func TestDirectConflict(t *testing.T) {
	t.Parallel()
	w := newReal(t)
	w.post("k", goodGoal)
	w.publish(otherGoal, "k")
	id := goal.TaskID("default", "k")
	task := w.get(id, func(t goal.Task) bool { return len(t.Trace) > 0 })
	if task.Status != goal.Queued || task.Trace[0].Type != goal.KeyConflict || task.Trace[0].N != 0 {
		t.Errorf("task = %s with trace %+v", task.Status, task.Trace)
	}
	_, body := w.do(http.MethodGet, "/v1/tasks/"+id+"/trace", "")
	if !strings.Contains(string(body), "key.conflict.v1") {
		t.Errorf("trace = %s", body)
	}
	if !strings.Contains(string(task.TargetState), "refunded") {
		t.Errorf("target = %s", task.TargetState)
	}
}

func TestDirectWithoutKey(t *testing.T) {
	t.Parallel()
	w := newReal(t)
	w.publish(goodGoal, "")
	w.publish(goodGoal, "a b")
	for range 500 {
		if js, err := jetstream.New(w.nc); err == nil {
			if s, err := js.Stream(t.Context(), goal.DeadStream); err == nil && s.CachedInfo().State.Msgs == 2 {
				if n := w.count(goal.GoalsStream("default"), "goals.queue.>"); n != 0 {
					t.Errorf("%d goals in the queue", n)
				}
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("no dead letters")
}

// TestLiveViews: the worker's appends reach the event stream, the wait and the
// list of another process.
func TestLiveViews(t *testing.T) {
	t.Parallel()
	w := newReal(t)
	other := newRealOn(t, w.cluster)
	_, task := w.post("k", goodGoal)
	snap, err := w.store.Load(t.Context(), "default", task.ID)
	if err != nil {
		t.Fatal(err)
	}
	stream := make(chan string, 64)
	go func() {
		defer close(stream)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other.http.URL+task.Links.Events, http.NoBody)
		if err != nil {
			return
		}
		resp, err := other.http.Client().Do(r)
		if err != nil {
			return
		}
		defer func() { _ = resp.Body.Close() }()
		stream <- "open"
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if typ, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				stream <- typ
			}
		}
	}()
	<-stream
	j, _, _, err := w.store.OpenJournal(t.Context(), snap.Accepted)
	if err != nil {
		t.Fatal(err)
	}
	resp, _ := other.do(http.MethodGet, "/v1/tasks/"+task.ID, "")
	etag := resp.Header.Get("ETag")
	begin := time.Now()
	waited := make(chan goal.Task, 1)
	go func() {
		_, b := other.do(http.MethodGet, "/v1/tasks/"+task.ID, "", "Prefer: wait=30", "If-None-Match: "+etag)
		waited <- other.task(b)
	}()
	for other.srv.Watchers() < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	err = j.Append(t.Context(), goal.Event{
		Type: goal.TaskStarted, Time: time.Now(), Started: &goal.Started{Attempt: 1, GoalSeq: snap.Seq, Deadline: time.Now().Add(time.Minute)},
	}, goal.Event{Type: goal.StateObserved, Time: time.Now(), Observed: &goal.Observed{LeftTotal: 1, Leaves: 1, Left: []goal.Difference{{Pointer: "/a", Want: []byte("1")}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-waited; got.Status != goal.Running || time.Since(begin) > 10*time.Second {
		t.Errorf("waited for %s until %s", time.Since(begin), got.Status)
	}
	if _, err := w.store.Settle(t.Context(), snap.Accepted, goal.Result{
		Status: goal.Succeeded, Reason: goal.TargetStateReached, Left: []goal.Difference{}, EndedAt: time.Now(),
	}, j.N()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for typ := range stream {
		got = append(got, typ)
	}
	if want := "task.started.v1 state.observed.v1 task.ended.v1"; strings.Join(got, " ") != want {
		t.Errorf("stream = %v, want %s", got, want)
	}
	if s := other.listed("?status=succeeded"); len(s) != 1 || s[0].ID != task.ID {
		t.Errorf("list = %+v", s)
	}
	// A process that starts later has the same list.
	late := newRealOn(t, w.cluster)
	if s := late.listed("?status=succeeded"); len(s) != 1 || s[0].EndedAt == nil || s[0].StartedAt == nil {
		t.Errorf("list of a new process = %+v", s)
	}
	resp, _ = w.do(http.MethodGet, task.Links.Events, "", "Last-Event-ID: 3")
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("behind the end: %d", resp.StatusCode)
	}
}

// listed reads the list until it is whole and has something in it.
func (w *process) listed(query string) []ingest.Summary {
	w.t.Helper()
	for range 500 {
		resp, b := w.do(http.MethodGet, "/v1/tasks"+query, "")
		var l list
		if resp.StatusCode == http.StatusOK && json.Unmarshal(b, &l) == nil && len(l.Tasks) > 0 {
			return l.Tasks
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.t.Fatal("the list stays empty")
	return nil
}

// TestCancelQueued on the real store: settled at once, once.
func TestCancelQueued(t *testing.T) {
	t.Parallel()
	w := newReal(t)
	_, task := w.post("k", goodGoal)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			resp, b := w.do(http.MethodPost, "/v1/tasks/"+task.ID+"/cancel", "")
			if got := w.task(b); resp.StatusCode != http.StatusAccepted || got.Status != goal.Cancelled {
				t.Errorf("%d %s", resp.StatusCode, got.Status)
			}
		})
	}
	wg.Wait()
	if n := w.count(goal.EventsStream, goal.EndSubject("default", task.ID)); n != 1 {
		t.Errorf("%d terminal batches, want 1", n)
	}
	if resp, got := w.post("k", goodGoal); resp.StatusCode != http.StatusOK || got.Status != goal.Cancelled {
		t.Errorf("replay of a cancelled goal: %d %s", resp.StatusCode, got.Status)
	}
}

// TestStoreGoesAway: 503 within 2 s (the test allows a loaded machine one more), and everything is there when it is back.
func TestStoreGoesAway(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	w := newRealOn(t, c, func(c *ingest.Config) { c.StoreTimeout = 0 })
	_, task := w.post("k", goodGoal)
	c.Stop(0)
	begin := time.Now()
	resp, body := w.do(http.MethodPost, "/v1/tasks", goodGoal, "Content-Type: application/json", "Idempotency-Key: k2")
	if took := time.Since(begin); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || took > 3*time.Second {
		t.Errorf("store down: %d after %s: %s", resp.StatusCode, took, body)
	}
	c.Restart(t, 0)
	w = newRealOn(t, c) // the server's connections ended with it
	if got := w.get(task.ID, func(goal.Task) bool { return true }); got.ID != task.ID {
		t.Errorf("task = %s", got.ID)
	}
	if resp, _ := w.post("k", goodGoal); resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the key was forgotten: %d", resp.StatusCode)
	}
}

// gate is a barrier that a test holds shut.
type gate struct{ open chan struct{} }

func (g gate) Wait(ctx context.Context) error {
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestNoAnswerBeforeItIsDurable: neither the first submission nor its twin, which
// finds it in the store, is answered 202 before the barrier has passed.
func TestNoAnswerBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	g := gate{open: make(chan struct{})}
	srv, err := ingest.New(ingest.Config{
		Store: c.Store(t, func(conf *kv.Config) { conf.Barrier = g }), Auth: ingest.Anonymous("default"), Log: quiet(), StoreTimeout: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	post := func(body string) int {
		return call(t, srv.Handler(), http.MethodPost, "/v1/tasks", body, "Content-Type: application/json", "Idempotency-Key: k").Code
	}
	for i := range 3 {
		if got := post(goodGoal); got != http.StatusServiceUnavailable {
			t.Errorf("submission %d is answered %d while the barrier is shut", i+1, got)
		}
	}
	close(g.open)
	if got := post(goodGoal); got != http.StatusAccepted {
		t.Errorf("status %d behind the barrier", got)
	}
}

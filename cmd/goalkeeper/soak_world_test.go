package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// soakDuration is how long a soak test keeps its load up: GOALKEEPER_SOAK, or
// short.
func soakDuration(tb testing.TB, short time.Duration) time.Duration {
	tb.Helper()
	v := os.Getenv("GOALKEEPER_SOAK")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		tb.Fatalf("GOALKEEPER_SOAK: %v", err)
	}
	return d
}

// soakSeed is GOALKEEPER_SEED, or any.
func soakSeed(tb testing.TB) uint64 {
	tb.Helper()
	seed := rand.Uint64() //nolint:gosec // any
	if v := os.Getenv("GOALKEEPER_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			tb.Fatalf("GOALKEEPER_SEED: %v", err)
		}
	}
	return seed
}

// soakWorld is what surrounds Goalkeeper in a soak: a planner that rewords its
// answer whenever it is asked, a tool that is not idempotent by nature and
// honours keys, another that does not, the state that they change, and a
// receiver of webhooks that refuses some of them once.
type soakWorld struct {
	*history

	url    string
	secret string
	slow   time.Duration // a call takes less than that
	ambush atomic.Pointer[ambush]

	state    sync.Mutex
	counters map[string]int
	answers  map[string]string // by Idempotency-Key
	asked    int
	refused  map[string]bool // webhooks by id
}

// ambush is what a test does at the moment in which the world sees a thing of a
// kind, once.
type ambush struct {
	kind string
	do   func()
}

// The kinds of things that the world sees.
const (
	sawAnswer  = "answer" // to a submission
	sawCancel  = "cancel" // taken
	sawCall    = "call"
	sawWebhook = "webhook"
	sawEnd     = "end" // of a task, told to a client
)

// saw says that the world has just seen a thing of a kind.
func (w *soakWorld) saw(kind string) {
	if a := w.ambush.Load(); a != nil && a.kind == kind && w.ambush.CompareAndSwap(a, nil) {
		a.do()
	}
}

func newSoakWorld(tb testing.TB) *soakWorld {
	tb.Helper()
	w := &soakWorld{
		history: newHistory(), secret: notifier.NewSecret(), slow: 30 * time.Millisecond, counters: map[string]int{}, answers: map[string]string{}, refused: map[string]bool{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /plan/{tool}", w.plan)
	mux.HandleFunc("POST /add", func(rw http.ResponseWriter, r *http.Request) { w.add(rw, r, true) })
	mux.HandleFunc("POST /push", func(rw http.ResponseWriter, r *http.Request) { w.add(rw, r, false) })
	mux.HandleFunc("GET /state/counters/{id}", w.read)
	mux.HandleFunc("POST /hook", w.hook)
	srv := httptest.NewServer(mux)
	tb.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

const soakAckWait = 3 * time.Second

// config writes the configuration of every role, with head before it, and
// returns its path.
func (w *soakWorld) config(tb testing.TB, dir, head string) string {
	tb.Helper()
	file := filepath.Join(dir, "goalkeeper.yaml")
	text := head + fmt.Sprintf(`
log: {level: warn}
worker: {ack_wait: %s, grace: 2s}
webhooks: {allow: [127.0.0.1/32]}
tenants:
  - name: default
    webhook_secrets: [{key: %s}]
environments:
  - name: default
  - name: counters
    no_state_tools: true
    state: {type: http, url: "%[3]s/state/{collection}/{id}", missing_as_empty: true}
    planner: {type: http, url: "%[3]s/plan/counter.add"}
    tools: [{name: counter.add, url: "%[3]s/add", replay: keyed}]
  - name: pushed
    no_state_tools: true
    state: {type: http, url: "%[3]s/state/{collection}/{id}", missing_as_empty: true}
    planner: {type: http, url: "%[3]s/plan/counter.push"}
    tools: [{name: counter.push, url: "%[3]s/push", replay: unsafe}]
`, soakAckWait, w.secret, w.url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// plan wants one addition more, in other words each time.
func (w *soakWorld) plan(rw http.ResponseWriter, r *http.Request) {
	var q struct {
		Goal struct {
			Goal struct {
				Target struct {
					Counters map[string]json.RawMessage `json:"counters"`
				} `json:"target_state"`
			} `json:"goal"`
		} `json:"goal"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.state.Lock()
	w.asked++
	wording := w.asked
	w.state.Unlock()
	for name := range q.Goal.Goal.Target.Counters {
		answerJSON(rw, http.StatusOK, map[string]any{
			"action": map[string]any{"tool": r.PathValue("tool"), "arguments": map[string]any{"name": name, "wording": wording}}, "why": "one more",
		})
	}
}

// add takes effect, once for each key if it honours keys, and answers some time
// later.
func (w *soakWorld) add(rw http.ResponseWriter, r *http.Request, honours bool) {
	w.saw(sawCall)
	key, task := r.Header.Get("Idempotency-Key"), r.Header.Get("Goalkeeper-Session")
	w.note(func() { w.calls[task] = append(w.calls[task], key) })
	var args struct{ Name string }
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.state.Lock()
	body, known := w.answers[key]
	if !known || !honours {
		w.counters[args.Name]++
		body = fmt.Sprintf(`{"value": %d}`, w.counters[args.Name])
		w.answers[key] = body
		e := effect{task: task, step: r.Header.Get("Goalkeeper-Step"), counter: args.Name}
		w.note(func() { w.effects = append(w.effects, e) })
	}
	w.state.Unlock()
	wait := w.slow
	if !honours {
		wait *= 10 // so that a fault meets a call in flight
	}
	waitABit(r.Context(), jitter(wait))
	rw.Header().Set("Content-Type", "application/json")
	fmt.Fprint(rw, body)
}

func (w *soakWorld) read(rw http.ResponseWriter, r *http.Request) {
	w.state.Lock()
	n, ok := w.counters[r.PathValue("id")]
	w.state.Unlock()
	if !ok {
		http.NotFound(rw, r)
		return
	}
	answerJSON(rw, http.StatusOK, map[string]int{"value": n})
}

// hook takes a webhook. Every sixteenth is refused the first time.
func (w *soakWorld) hook(rw http.ResponseWriter, r *http.Request) {
	w.saw(sawWebhook)
	body, err := io.ReadAll(r.Body)
	var event struct {
		Type string
		Data goal.Task
	}
	// A sender may have been frozen between signing and sending.
	err = errors.Join(err, notifier.Verify(w.secret, r.Header, body, time.Now(), 5*time.Minute), json.Unmarshal(body, &event))
	if err == nil && event.Type != goal.HookType(event.Data.Status, event.Data.Reason) {
		err = fmt.Errorf("type %s for %s %s", event.Type, event.Data.Status, event.Data.Reason)
	}
	if err != nil {
		if r.Context().Err() == nil { // not a sender that was killed
			w.note(func() { w.history.refused = append(w.history.refused, "webhook: "+err.Error()) })
		}
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	id, digest := r.Header.Get("Webhook-Id"), sha256.Sum256(body)
	w.note(func() {
		w.hooks[event.Data.ID] = append(w.hooks[event.Data.ID], seenHook{id: id, status: event.Data.Status, digest: hex.EncodeToString(digest[:])})
		w.ended(event.Data)
	})
	w.state.Lock()
	defer w.state.Unlock()
	if digest[0] < 16 && !w.refused[id] {
		w.refused[id] = true
		http.Error(rw, "not now", http.StatusServiceUnavailable)
	}
}

// jitter is a random time below d.
func jitter(d time.Duration) time.Duration { return rand.N(d) } //nolint:gosec // chance, not a secret

// waitABit waits for d, or until ctx ends.
func waitABit(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// load is clients that want goals at a steady rate from any of the servers.
type load struct {
	world   *soakWorld
	urls    []string
	rate    int // goals a second
	client  *http.Client
	direct  *nats.Conn          // not nil: some goals are sent over NATS
	intake  jetstream.JetStream // not nil: some goals are published to the intake
	cancels bool                // some goals are cancelled that go on until they are
	mixed   bool                // some goals are cancelled or end, some have a tool that may not be repeated
	waits   bool                // some clients are told of the end at once
	running sync.WaitGroup
	clients chan struct{} // bounds the goals in flight
	next    int
	skipped int

	patience time.Duration // how long a client waits for its goal to end
}

// patience is that of a client which has time.
const patience = 3 * time.Minute

func newLoad(tb testing.TB, w *soakWorld, rate int, urls ...string) *load {
	tb.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}
	tb.Cleanup(transport.CloseIdleConnections)
	return &load{
		world: w, urls: urls, rate: rate, client: &http.Client{Transport: transport, Timeout: 5 * time.Second}, clients: make(chan struct{}, 500), patience: patience,
	}
}

// run sends goals until ctx ends, and waits for the clients.
func (l *load) run(ctx context.Context) {
	defer l.running.Wait()
	tick := time.NewTicker(time.Second / time.Duration(l.rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case l.clients <- struct{}{}:
		default: // a long outage: those who wait are load enough
			l.skipped++
			continue
		}
		n := l.next
		l.next++
		l.running.Go(func() {
			defer func() { <-l.clients }()
			l.one(context.WithoutCancel(ctx), n)
		})
	}
}

// goal is the goal of client n, and its body.
func (l *load) goal(n int) (sentGoal, []byte) {
	g := sentGoal{key: "g" + strconv.Itoa(n), n: n, cancel: l.mixed && n%7 == 3, published: l.intake != nil && n%5 == 2}
	thing := map[string]any{"things": map[string]any{g.key: map[string]any{"done": true}}}
	environment, steps := goal.DefaultEnvironment, 8
	if n%2 == 1 {
		g.counter, g.target, environment = "c"+g.key, 1+n/6%3, "counters"
		if l.cancels && n%16 == 1 {
			g.cancel, g.far, g.target, steps = true, true, 45, 50 // far more than it gets
		}
		if g.unsafe = l.mixed && n%3 == 2; g.unsafe {
			environment = "pushed"
		}
		thing = map[string]any{"counters": map[string]any{g.counter: map[string]any{"value": g.target}}}
	}
	body, err := goal.Marshal(map[string]any{
		"goal":       map[string]any{"intent": "Make it so: " + g.key, "target_state": thing},
		"guardrails": map[string]any{"max_steps": steps, "timeout_seconds": 600}, "environment": environment, "webhook_url": l.world.url + "/hook",
	})
	if err != nil {
		panic(err)
	}
	return g, body
}

// one is one client: it wants a goal until it has been taken, sometimes asks
// once more, sometimes changes its mind, and watches how it goes until it ends.
func (l *load) one(ctx context.Context, n int) {
	g, body := l.goal(n)
	task := goal.TaskID(defaultTenant, g.key)
	l.world.note(func() { l.world.sent[task] = g })
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	submit := l.submit
	if g.published {
		submit = l.publish
	}
	if !submit(ctx, g.key, task, body) {
		return
	}
	at := time.Now()
	l.world.note(func() { l.world.acked[task] = at })
	if n%8 == 0 {
		submit(ctx, g.key, task, body)
	}
	if g.cancel {
		most := time.Second
		if !g.far {
			most /= 5 // it may end by itself
		}
		waitABit(ctx, jitter(most))
		l.cancel(ctx, task)
	}
	l.watch(ctx, task, l.waits && n%3 > 0)
}

// watch looks at a task until it has ended, now and then or by waiting for it.
func (l *load) watch(ctx context.Context, task string, wait bool) {
	var prefer []string
	pause := 200 * time.Millisecond
	if wait {
		prefer, pause = []string{"Prefer", "wait=2"}, time.Millisecond
	}
	for ctx.Err() == nil {
		waitABit(ctx, pause+jitter(5*pause))
		var seen goal.Task
		if !l.get(ctx, task, "?trace=none", &seen, prefer...) {
			pause = 200 * time.Millisecond
			continue
		}
		if seen.Status.Terminal() {
			l.world.saw(sawEnd)
		}
		l.world.note(func() {
			l.world.states[task] = append(l.world.states[task], seen.Status)
			l.world.ended(seen)
		})
		if seen.Status.Terminal() {
			return
		}
	}
}

// cancel asks for the end of a task until that is answered.
func (l *load) cancel(ctx context.Context, task string) {
	for ctx.Err() == nil {
		status, _, body := l.do(ctx, http.MethodPost, "/v1/tasks/"+task+"/cancel", "", nil)
		if status == http.StatusAccepted {
			l.world.saw(sawCancel)
			l.world.note(func() { l.world.cancelled[task] = true })
			return
		}
		l.failed(task, "cancel", status, body)
		waitABit(ctx, 50*time.Millisecond+jitter(300*time.Millisecond))
	}
}

// submit sends a goal until it is taken.
func (l *load) submit(ctx context.Context, key, task string, body []byte) bool {
	for ctx.Err() == nil {
		status, header, answer := l.send(ctx, key, body)
		switch {
		case status == http.StatusAccepted || status == http.StatusOK:
			l.world.saw(sawAnswer)
			if got := path.Base(header.Get("Location")); got != task {
				l.world.note(func() { l.world.history.refused = append(l.world.history.refused, key+": location "+got) })
			}
			return true
		case status != 0 && status != http.StatusTooManyRequests && status < http.StatusInternalServerError:
			l.world.note(func() {
				l.world.history.refused = append(l.world.history.refused, fmt.Sprintf("%s: submission answered %d %s", key, status, answer))
			})
			return false
		}
		waitABit(ctx, 50*time.Millisecond+jitter(300*time.Millisecond))
	}
	return false
}

// send submits a goal once, over HTTP or NATS.
func (l *load) send(ctx context.Context, key string, body []byte) (status int, header http.Header, answer []byte) {
	if l.direct == nil || rand.IntN(4) > 0 { //nolint:gosec // chance, not a secret
		return l.do(ctx, http.MethodPost, "/v1/tasks", key, body)
	}
	ctx, cancel := context.WithTimeout(ctx, l.client.Timeout)
	defer cancel()
	m := nats.NewMsg(goal.RequestSubject(defaultTenant))
	m.Data = body
	m.Header.Set("Idempotency-Key", key)
	r, err := l.direct.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, nil, nil
	}
	status, err = strconv.Atoi(r.Header.Get("Status"))
	if err != nil {
		return 0, nil, nil
	}
	return status, http.Header(r.Header), r.Data
}

// publish stores a goal in the intake, and does not wait until it has a task: the
// acknowledgement is the promise.
func (l *load) publish(ctx context.Context, key, _ string, body []byte) bool {
	m := nats.NewMsg(goal.SubmitSubject(defaultTenant))
	m.Data = body
	m.Header.Set(nats.MsgIdHdr, key)
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, l.client.Timeout)
		_, err := l.intake.PublishMsg(try, m)
		cancel()
		if err == nil {
			return true
		}
		waitABit(ctx, 50*time.Millisecond+jitter(300*time.Millisecond))
	}
	return false
}

// get reads something of an acknowledged task, which must be there: only a
// server that cannot answer may say anything else.
func (l *load) get(ctx context.Context, task, what string, v any, header ...string) bool {
	status, _, body := l.do(ctx, http.MethodGet, "/v1/tasks/"+task+what, "", nil, header...)
	if status == http.StatusOK {
		return json.Unmarshal(body, v) == nil
	}
	l.failed(task, "GET", status, body)
	return false
}

// failed judges an answer that is not a success: only a server that cannot
// answer may give one, and any to a goal that waits in the intake.
func (l *load) failed(task, what string, status int, body []byte) {
	l.world.note(func() {
		waits := l.world.sent[task].published && len(l.world.states[task]) == 0 && !l.world.cancelled[task]
		if status == 0 || status >= http.StatusInternalServerError || status == http.StatusNotFound && waits {
			return
		}
		l.world.history.refused = append(l.world.history.refused, fmt.Sprintf("%s: %s answered %d %s", task, what, status, body))
	})
}

// do sends one request to any server; status 0 means that there was no answer.
// more are names and values of header fields.
func (l *load) do(ctx context.Context, method, target, key string, body []byte, more ...string) (status int, header http.Header, answer []byte) {
	url := l.urls[rand.IntN(len(l.urls))] //nolint:gosec // chance, not a secret
	req, err := http.NewRequestWithContext(ctx, method, url+target, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	if key != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, nil, nil
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, nil
	}
	return resp.StatusCode, resp.Header, answer
}

// finish waits for the webhooks that are still to come, reads every trace, and
// fails the test with what is wrong.
func (l *load) finish(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	for len(l.world.missing()) > 0 && ctx.Err() == nil {
		waitABit(ctx, 100*time.Millisecond)
	}
	for task := range l.world.acked {
		var trace struct{ Events []goal.Event }
		for ctx.Err() == nil && !l.get(ctx, task, "/trace", &trace) {
			waitABit(ctx, 100*time.Millisecond)
		}
		l.world.traces[task] = trace.Events
	}
	tb.Logf("%s\n%s\nticks without a free client: %d\nthe latest take-over:\n%s", l.world.timeline(), l.world.summary(), l.skipped, l.world.slowest())
	report := func(what string, list []string) {
		if len(list) > 0 {
			tb.Errorf("%s: %d\n%s", what, len(list), strings.Join(list[:min(len(list), 40)], "\n"))
		}
	}
	report("broken promises", l.world.check())
	report("tasks that ended otherwise", l.world.unwanted())
}

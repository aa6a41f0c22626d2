package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

const (
	acme    = "acme"
	ackWait = worker.DefaultAckWait
	beat    = ackWait / 3
)

var errDown = fmt.Errorf("test: %w", goal.ErrUnavailable)

// world is everything outside the workers, by hand: queues that redeliver,
// leases that run out, fenced journals, create-only results and an environment
// with one keyed tool. It lives in a bubble of virtual time.
type world struct {
	t     *testing.T
	start time.Time

	// act is what the tool does before its effect; an outcome with a kind is
	// answered instead of it. decide is what the planner does before its answer.
	// look is what the state does before it answers.
	act    func(ctx context.Context, c agent.Call) goal.Outcome
	decide func(ctx context.Context, s agent.Situation)
	look   func()

	mu       sync.Mutex // guards what follows
	log      []entry
	queues   map[string]*queue
	tasks    map[string]*task
	order    []*task // as submitted
	watchers map[int]func(tenant, task string)
	watched  int
	busy     int // calls of the tool under way
	most     int // of them at a time
}

// entry is one call of a worker, as "verb task".
type entry struct {
	at   time.Duration
	what string
}

// task is what the world knows of one goal.
type task struct {
	acc       goal.Accepted
	events    []goal.Event
	batches   int // of the journal: what the next append must find
	result    *goal.Result
	created   int // results: at most 1
	ended     bool
	cancel    bool
	lease     *lock
	leaseEnds time.Time
	delivered int
	silent    *time.Timer // fires AckWait after the last sign of life
	acked     bool
	docs      map[string]any
	keys      map[string]int // calls that came with a key
	effects   int
	asked     int // questions to the planner
}

// newWorld is an empty world in the bubble of t.
func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, start: time.Now(), queues: map[string]*queue{}, tasks: map[string]*task{}, watchers: map[int]func(string, string){}}
}

// submit queues a goal that takes so many calls of the tool.
func (w *world) submit(tenant, id string, steps int, change ...func(*goal.Accepted)) *task {
	t := w.add(tenant, id, steps, change...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueue(t)
	return t
}

// add makes a goal known to the environment.
func (w *world) add(tenant, id string, steps int, change ...func(*goal.Accepted)) *task {
	target := map[string]any{}
	for i := range steps {
		target[strconv.Itoa(i+1)] = true
	}
	raw, err := json.Marshal(map[string]any{id: target})
	if err != nil {
		w.t.Fatal(err)
	}
	acc := goal.Accepted{
		Submission: goal.Submission{
			Version: goal.SubmissionVersion, TaskID: id, Tenant: tenant,
			Goal: goal.Goal{
				Objective:  goal.Objective{Intent: "reach it", TargetState: raw},
				Guardrails: goal.Guardrails{MaxSteps: 50, TimeoutSeconds: 600},
			},
		},
		At: time.Now(), Expires: time.Now().Add(7 * 24 * time.Hour),
	}
	for _, f := range change {
		f(&acc)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	acc.Seq = uint64(len(w.order) + 1)
	t := &task{acc: acc, docs: map[string]any{}, keys: map[string]int{}}
	w.tasks[id], w.order = t, append(w.order, t)
	return t
}

func (w *world) enqueue(t *task) {
	q := w.queue(t.acc.Submission.Tenant)
	q.ready = append(q.ready, t)
	close(q.wake)
	q.wake = make(chan struct{})
}

// later puts the task back after d, unless its delivery is over by then.
func (w *world) later(t *task, d time.Duration) {
	if t.silent != nil {
		t.silent.Stop()
	}
	n := t.delivered
	t.silent = time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !t.acked && t.delivered == n {
			w.enqueue(t)
		}
	})
}

func (w *world) queue(tenant string) *queue {
	if w.queues[tenant] == nil {
		w.queues[tenant] = &queue{wake: make(chan struct{})}
	}
	return w.queues[tenant]
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, entry{time.Since(w.start), fmt.Sprintf(format, args...)})
}

// said lists what the workers did with these verbs, in order.
func (w *world) said(verbs ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []string{}
	for _, e := range w.log {
		if verb, _, _ := strings.Cut(e.what, " "); slices.Contains(verbs, verb) {
			out = append(out, e.what)
		}
	}
	return out
}

// times lists when the workers did that.
func (w *world) times(what string) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []time.Duration
	for _, e := range w.log {
		if e.what == what {
			out = append(out, e.at)
		}
	}
	return out
}

// pass runs the world's clock on by d and waits until nothing moves.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// settledOnce wants every goal to be settled so, once, its message gone and
// each effect made once.
func (w *world) settledOnce(want goal.Reason) {
	w.t.Helper()
	for _, fault := range w.unsettled(want) {
		w.t.Error(fault)
	}
}

// unsettled says what settledOnce would complain of.
func (w *world) unsettled(want goal.Reason) (faults []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.order {
		id := t.acc.Submission.TaskID
		switch {
		case t.result == nil:
			faults = append(faults, fmt.Sprintf("%s is not settled; log %v", id, w.log))
		case t.result.Reason != want || t.created != 1 || !t.ended || !t.acked:
			faults = append(faults, fmt.Sprintf("%s: reason %s (%s), results %d, ended %v, acked %v; want %s once",
				id, t.result.Reason, t.result.Detail, t.created, t.ended, t.acked, want))
		}
		if t.effects != len(t.docs) {
			faults = append(faults, fmt.Sprintf("%s: %d effects for %d documents", id, t.effects, len(t.docs)))
		}
	}
	return faults
}

// queue is one tenant's. Its messages come again AckWait after the last sign of
// life, as from a real one.
type queue struct {
	ready []*task
	wake  chan struct{}
}

// fault fails, or holds up, the n-th call of a kind; nil: the call goes on.
type fault func(ctx context.Context, n int) error

// first fails the first n calls.
func first(n int, err error) fault {
	return func(_ context.Context, i int) error {
		if i <= n {
			return err
		}
		return nil
	}
}

// node is one worker with its own way to the world, which can fail.
type node struct {
	w       *world
	name    string
	latency time.Duration // of taking

	mu     sync.Mutex
	faults map[string]fault // by verb
	calls  map[string]int

	stop func() // and wait
	done chan struct{}

	observer watcher
}

// seen is what the worker has told so far.
func (n *node) seen() (all sights) {
	n.observer.told(func(s *sights) { all = *s })
	return all
}

func (w *world) node(name string) *node {
	return &node{w: w, name: name, faults: map[string]fault{}, calls: map[string]int{}}
}

// start runs the worker until stop is called, or the test ends.
func (n *node) start(change ...func(*worker.Config)) *node {
	n.w.t.Helper()
	cfg := n.config()
	for _, f := range change {
		f(&cfg)
	}
	wk, err := worker.New(cfg)
	if err != nil {
		n.w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.done = make(chan struct{})
	go func() {
		defer close(n.done)
		if err := wk.Run(ctx); err != nil {
			n.w.t.Errorf("Run() = %v, want nil", err)
		}
	}()
	n.stop = func() {
		cancel()
		<-n.done
	}
	n.w.t.Cleanup(n.stop)
	return n
}

func (n *node) config() worker.Config {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	queues := map[string]worker.Queue{}
	n.w.queue(acme)
	for tenant := range n.w.queues {
		queues[tenant] = taker{n, tenant}
	}
	return worker.Config{
		Name: n.name, Queues: queues, Store: n, Environments: environments{n.w},
		Log: slog.New(slog.DiscardHandler), Observer: &n.observer,
	}
}

func (n *node) setFault(verb string, f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[verb] = f
}

// enter notes a call and lets its fault have it.
func (n *node) enter(ctx context.Context, verb, what string) error {
	n.w.mu.Lock()
	n.w.note("%s", strings.TrimSpace(verb+" "+what))
	n.w.mu.Unlock()
	n.mu.Lock()
	n.calls[verb]++
	f, i := n.faults[verb], n.calls[verb]
	n.mu.Unlock()
	if f != nil {
		if err := f(ctx, i); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// taker is a tenant's queue as the node sees it.
type taker struct {
	n      *node
	tenant string
}

// Next implements worker.Queue.
func (q taker) Next(ctx context.Context) (worker.Job, error) {
	if err := q.n.enter(ctx, "next", ""); err != nil {
		return nil, err
	}
	w := q.n.w
	for {
		w.mu.Lock()
		mine := w.queue(q.tenant)
		wake := mine.wake
		if len(mine.ready) > 0 {
			t := mine.ready[0]
			mine.ready = mine.ready[1:]
			t.delivered++
			w.later(t, ackWait)
			w.note("take %s", t.acc.Submission.TaskID)
			j := &job{n: q.n, t: t, delivery: t.delivered}
			w.mu.Unlock()
			time.Sleep(q.n.latency)
			return j, nil
		}
		w.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// job is one delivery.
type job struct {
	n        *node
	t        *task
	delivery int
}

// Accepted implements worker.Job.
func (j *job) Accepted() goal.Accepted { return j.t.acc }

// Redelivered implements worker.Job.
func (j *job) Redelivered() bool { return j.delivery > 1 }

func (j *job) id() string { return j.t.acc.Submission.TaskID }

// Ack implements worker.Job. As with a real queue, also an old delivery can.
func (j *job) Ack() error {
	if err := j.n.enter(context.Background(), "ack", j.id()); err != nil {
		return err
	}
	j.n.w.mu.Lock()
	defer j.n.w.mu.Unlock()
	if j.t.result == nil || !j.t.ended {
		j.n.w.t.Errorf("%s was acknowledged before it was settled", j.id())
	}
	j.t.acked = true
	return nil
}

// Nak implements worker.Job.
func (j *job) Nak(delay time.Duration) error {
	if err := j.n.enter(context.Background(), "nak", fmt.Sprintf("%s %s", j.id(), delay)); err != nil {
		return err
	}
	j.n.w.mu.Lock()
	defer j.n.w.mu.Unlock()
	if j.t.delivered == j.delivery {
		j.n.w.later(j.t, delay)
	}
	return nil
}

// InProgress implements worker.Job.
func (j *job) InProgress() error {
	if err := j.n.enter(context.Background(), "beat", j.id()); err != nil {
		return err
	}
	j.n.w.mu.Lock()
	defer j.n.w.mu.Unlock()
	if j.t.delivered == j.delivery {
		j.n.w.later(j.t, ackWait)
	}
	return nil
}

// lock is a lease.
type lock struct {
	n   *node
	t   *task
	ttl time.Duration
}

// Lock implements worker.Store.
func (n *node) Lock(ctx context.Context, tenant, id, owner string, ttl time.Duration) (worker.Lock, error) {
	if err := n.enter(ctx, "lock", id); err != nil {
		return nil, err
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	t := n.w.tasks[id]
	if t.acc.Submission.Tenant != tenant || !strings.HasPrefix(owner, n.name+"/") || ttl != ackWait {
		n.w.t.Errorf("Lock(%s, %s, %s, %s)", tenant, id, owner, ttl)
	}
	if left := time.Until(t.leaseEnds); t.lease != nil && left > 0 {
		return nil, fmt.Errorf("lock: %w", &goal.LockedError{Holder: t.lease.n.name, Left: left})
	}
	t.lease, t.leaseEnds = &lock{n: n, t: t, ttl: ttl}, time.Now().Add(ttl)
	return t.lease, nil
}

func (l *lock) held() bool { return l.t.lease == l && time.Now().Before(l.t.leaseEnds) }

// Renew implements worker.Lock.
func (l *lock) Renew(ctx context.Context) error {
	if err := l.n.enter(ctx, "renew", l.t.acc.Submission.TaskID); err != nil {
		return err
	}
	l.n.w.mu.Lock()
	defer l.n.w.mu.Unlock()
	if !l.held() {
		return goal.ErrFenced
	}
	l.t.leaseEnds = time.Now().Add(l.ttl)
	return nil
}

// Release implements worker.Lock.
func (l *lock) Release(ctx context.Context) error {
	if err := l.n.enter(ctx, "release", l.t.acc.Submission.TaskID); err != nil {
		return err
	}
	l.n.w.mu.Lock()
	defer l.n.w.mu.Unlock()
	if !l.held() {
		return goal.ErrFenced
	}
	l.t.lease = nil
	return nil
}

// Drop implements worker.Lock.
func (l *lock) Drop() error { return l.Release(context.Background()) }

// BeginJournal implements worker.Store.
func (n *node) BeginJournal(acc goal.Accepted) worker.Journal {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.w.note("begin %s", acc.Submission.TaskID)
	return &journal{n: n, t: n.w.tasks[acc.Submission.TaskID]}
}

// OpenJournal implements worker.Store.
func (n *node) OpenJournal(ctx context.Context, acc goal.Accepted) (worker.Journal, []goal.Event, *goal.Result, error) {
	if err := n.enter(ctx, "open", acc.Submission.TaskID); err != nil {
		return nil, nil, nil, err
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	t := n.w.tasks[acc.Submission.TaskID]
	return &journal{n: n, t: t, last: t.batches, events: len(t.events)}, slices.Clone(t.events), t.result, nil
}

type journal struct {
	n      *node
	t      *task
	last   int // batch
	events int
}

// N implements worker.Journal.
func (j *journal) N() int { return j.events }

// Append implements agent.Journal.
func (j *journal) Append(ctx context.Context, events ...goal.Event) error {
	if err := j.n.enter(ctx, "append", j.t.acc.Submission.TaskID); err != nil {
		return err
	}
	j.n.w.mu.Lock()
	defer j.n.w.mu.Unlock()
	if j.last != j.t.batches {
		return goal.ErrFenced
	}
	j.t.batches++
	j.last = j.t.batches
	j.t.events = append(j.t.events, events...)
	j.events += len(events)
	return nil
}

// Settle implements worker.Journal.
func (j *journal) Settle(ctx context.Context, r goal.Result) (goal.Result, error) {
	acc := j.t.acc
	if err := j.n.enter(ctx, "settle", acc.Submission.TaskID); err != nil {
		return goal.Result{}, err
	}
	j.n.w.mu.Lock()
	defer j.n.w.mu.Unlock()
	if j.t.result == nil {
		if j.events != len(j.t.events) {
			return goal.Result{}, goal.ErrFenced
		}
		if !r.Status.Terminal() || r.TaskID != acc.Submission.TaskID || r.Tenant != acc.Submission.Tenant || r.GoalSeq != acc.Seq {
			j.n.w.t.Errorf("Settle(%+v)", r)
		}
		j.t.result = &r
		j.t.created++
	}
	if !j.t.ended {
		j.t.ended = true
		j.t.batches++
	}
	return *j.t.result, nil
}

// Over implements worker.Store.
func (n *node) Over(ctx context.Context, acc goal.Accepted) (bool, error) {
	if err := n.enter(ctx, "over", acc.Submission.TaskID); err != nil {
		return false, err
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	t := n.w.tasks[acc.Submission.TaskID]
	return t.cancel || t.result != nil, nil
}

// OnCancel implements worker.Store.
func (n *node) OnCancel(f func(tenant, task string)) (stop func(), err error) {
	if err := n.enter(context.Background(), "watch", ""); err != nil {
		return nil, err
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.w.watched++
	i := n.w.watched
	n.w.watchers[i] = f
	return func() {
		n.w.mu.Lock()
		defer n.w.mu.Unlock()
		delete(n.w.watchers, i)
	}, nil
}

// askCancel leaves the marker on the task and, unless it is lost, sends the
// message.
func (w *world) askCancel(t *task, message bool) {
	w.mu.Lock()
	t.cancel = true
	var watchers []func(string, string)
	if message {
		for _, f := range w.watchers {
			watchers = append(watchers, f)
		}
	}
	w.mu.Unlock()
	for _, f := range watchers {
		f(t.acc.Submission.Tenant, t.acc.Submission.TaskID)
	}
}

// environments is "default" for every tenant.
type environments struct{ w *world }

// Environment implements worker.Environments.
func (e environments) Environment(tenant, name string) (agent.Environment, bool) {
	if name != goal.DefaultEnvironment {
		return agent.Environment{}, false
	}
	box := box{w: e.w, tenant: tenant}
	return agent.Environment{Name: name, State: box, Tools: box, Planner: box}, true
}

// box is the state, the tool and the planner of a tenant.
type box struct {
	w      *world
	tenant string
}

// Observe implements agent.State: a collection is a task, an id is a step.
func (b box) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	if b.w.look != nil {
		b.w.look()
	}
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	state := map[string]any{}
	for _, e := range entities {
		t := b.w.tasks[e.Collection]
		if t.acc.Submission.Tenant != b.tenant {
			return agent.Observation{}, errors.New("a task of another tenant")
		}
		docs, ok := state[e.Collection].(map[string]any)
		if !ok {
			docs = map[string]any{}
			state[e.Collection] = docs
		}
		if v, ok := t.docs[e.ID]; ok {
			docs[e.ID] = v
		}
	}
	return agent.Observation{State: state}, ctx.Err()
}

// List implements agent.Toolbox.
func (b box) List(context.Context) ([]agent.ToolSpec, error) {
	return []agent.ToolSpec{{Name: "put", Replay: goal.ReplayKeyed}}, nil
}

// Call implements agent.Toolbox.
func (b box) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	w := b.w
	w.mu.Lock()
	w.note("call %s", c.TaskID)
	w.busy++
	w.most = max(w.most, w.busy)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
	}()
	if w.act != nil {
		if out := w.act(ctx, c); out.Kind != "" {
			return out, nil
		}
	}
	var args struct {
		Step string `json:"step"`
	}
	if err := json.Unmarshal(c.Arguments, &args); err != nil {
		return goal.Outcome{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[c.TaskID]
	t.keys[c.Key]++
	replayed := t.keys[c.Key] > 1
	if !replayed {
		t.effects++
		t.docs[args.Step] = true
	}
	return goal.Outcome{Kind: goal.CallOK, Attempts: 1, Replayed: replayed}, nil
}

// Decide implements agent.Planner: the first thing that is left.
func (b box) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	b.w.mu.Lock()
	b.w.tasks[s.TaskID].asked++
	b.w.note("decide %s", s.TaskID)
	b.w.mu.Unlock()
	if b.w.decide != nil {
		b.w.decide(ctx, s)
	}
	if ctx.Err() != nil {
		return agent.Answer{}, &agent.PlannerError{Kind: agent.PlannerUnavailable, Err: ctx.Err()}
	}
	step := s.Left[0].Pointer[strings.LastIndexByte(s.Left[0].Pointer, '/')+1:]
	return agent.Answer{Actions: []goal.Action{{Tool: "put", Arguments: json.RawMessage(`{"step":"` + step + `"}`)}}}, nil
}

// takes is a tool that works so long, or until it is cut off.
func takes(d time.Duration) func(context.Context, agent.Call) goal.Outcome {
	return func(ctx context.Context, _ agent.Call) goal.Outcome {
		if !sleep(ctx, d) {
			return goal.Outcome{Kind: goal.CallUnknown}
		}
		return goal.Outcome{}
	}
}

// sleep reports whether ctx let it sleep to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watcher is an observer.
type watcher struct {
	mu  sync.Mutex
	all sights // guarded by mu
}

// sights are what an observer was told.
type sights struct{ taken, resumed, settled, lost, running, most int }

func (o *watcher) told(f func(*sights)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.all)
}

// Taken implements worker.Observer.
func (o *watcher) Taken(_ string, _ time.Duration, resumed bool) {
	o.told(func(s *sights) {
		s.taken++
		if resumed {
			s.resumed++
		}
	})
}

// Settled implements worker.Observer.
func (o *watcher) Settled(string, goal.Result, time.Duration) {
	o.told(func(s *sights) { s.settled++ })
}

// LockLost implements worker.Observer.
func (o *watcher) LockLost(string) { o.told(func(s *sights) { s.lost++ }) }

// Running implements worker.Observer.
func (o *watcher) Running(n int) { o.told(func(s *sights) { s.running, s.most = n, max(s.most, n) }) }

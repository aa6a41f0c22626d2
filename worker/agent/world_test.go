package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// world is everything outside the loop, by hand: documents with revisions,
// tools that act on them, a planner and a journal. It outlives a crash of the
// loop, as the real ones do.
type world struct {
	t  testing.TB
	mu sync.Mutex

	docs      map[string]map[string]any // collection, id
	revisions map[string]uint64         // "collection/id"; nil: the source has none
	etag      string
	writes    []string          // keys of the calls that took effect, once each
	answers   map[string]string // key to what keyed tools answered
	calls     []agent.Call

	tools  []agent.ToolSpec
	call   func(agent.Call) (goal.Outcome, error) // instead of the tools; nil result kind: go on
	decide func(agent.Situation) (agent.Answer, error)
	looks  int
	watch  func(look int) error // may fail the n-th look

	events   []goal.Event
	appends  int
	onAppend func(n int, events []goal.Event) (store bool, err error)
	asked    []agent.Situation

	accepted goal.Accepted
	opts     agent.Options
	roles    []string
	envRoles []string

	redelivered bool
	listErrors  int // so often the tools cannot be listed
	from        int // events up to here belong to an earlier submission
}

func newWorld(tb testing.TB, target string, limits goal.Guardrails) *world {
	tb.Helper()
	if limits.MaxSteps == 0 {
		limits.MaxSteps = 12
	}
	if limits.TimeoutSeconds == 0 {
		limits.TimeoutSeconds = 60
	}
	w := &world{
		t: tb, docs: map[string]map[string]any{}, revisions: map[string]uint64{}, answers: map[string]string{},
		tools: []agent.ToolSpec{
			{Name: "charge", Replay: goal.ReplayUnsafe},
			{Name: "get", Replay: goal.ReplayRead},
			{Name: "put", Replay: goal.ReplayKeyed},
			{Name: "touch", Replay: goal.ReplayIdempotent},
		},
	}
	w.decide = w.reach
	w.accepted = goal.Accepted{
		Submission: goal.Submission{
			TaskID: goal.TaskID("default", tb.Name()), Tenant: "default", Traceparent: "00-11111111111111111111111111111111-2222222222222222-01",
			Goal: goal.Goal{Objective: goal.Objective{Intent: "reach it", TargetState: json.RawMessage(target)}, Guardrails: limits},
		},
		Seq: 7,
	}
	return w
}

// run lets one worker try.
func (w *world) run(ctx context.Context) (goal.Result, error) {
	w.mu.Lock()
	history := slices.Clone(w.events)
	w.mu.Unlock()
	task := agent.Task{Accepted: w.accepted, History: history, Roles: w.roles, Worker: "w1", Redelivered: w.redelivered}
	env := agent.Environment{Name: "shop", Roles: w.envRoles, State: w, Tools: w, Planner: planner{w}}
	return agent.Run(ctx, task, env, w, w.opts)
}

// end runs the task and wants a result with that reason.
func (w *world) end(reason goal.Reason) goal.Result {
	w.t.Helper()
	r, err := w.run(w.t.Context())
	if err != nil {
		w.t.Fatalf("Run() error %v, want reason %s", err, reason)
	}
	if r.Reason != reason {
		w.t.Fatalf("Run() reason %s (%s), want %s", r.Reason, r.Detail, reason)
	}
	if want := reason == goal.TargetStateReached; want != (r.Status == goal.Succeeded) {
		w.t.Fatalf("Run() status %s with reason %s", r.Status, reason)
	}
	return r
}

func (w *world) set(collection, id string, value any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.store(collection, id, value)
}

func (w *world) store(collection, id string, value any) {
	if w.docs[collection] == nil {
		w.docs[collection] = map[string]any{}
	}
	w.docs[collection][id] = value
	if w.revisions != nil {
		w.revisions[collection+"/"+id]++
	}
}

// Observe implements agent.State.
func (w *world) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	if w.watch != nil {
		n, watch := w.looks, w.watch
		w.mu.Unlock()
		err := watch(n)
		w.mu.Lock()
		if err != nil {
			return agent.Observation{}, err
		}
	}
	if ctx.Err() != nil {
		return agent.Observation{}, ctx.Err()
	}
	obs := agent.Observation{State: map[string]any{}, ETag: w.etag}
	if w.revisions != nil {
		obs.Revisions = map[string]uint64{}
	}
	for _, e := range entities {
		for id, value := range w.docs[e.Collection] {
			if e.ID != "" && e.ID != id {
				continue
			}
			if obs.State[e.Collection] == nil {
				obs.State[e.Collection] = map[string]any{}
			}
			obs.State[e.Collection].(map[string]any)[id] = value //nolint:forcetypeassert // made above
		}
		if w.revisions != nil && e.ID != "" {
			obs.Revisions[e.Key()] = w.revisions[e.Key()]
		}
	}
	return obs, nil
}

// List implements agent.Toolbox.
func (w *world) List(context.Context) ([]agent.ToolSpec, error) {
	if w.listErrors--; w.listErrors >= 0 {
		return nil, errors.New("away")
	}
	return w.tools, nil
}

// Call implements agent.Toolbox: put and touch set a document, get reads one,
// charge counts up and does so each time that it is called.
func (w *world) Call(_ context.Context, c agent.Call) (goal.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, c)
	if w.call != nil {
		w.mu.Unlock()
		out, err := w.call(c)
		w.mu.Lock()
		if err != nil || out.Kind != "" {
			return out, err
		}
	}
	var a struct {
		Collection, ID string
		Value          json.RawMessage
	}
	if err := json.Unmarshal(c.Arguments, &a); err != nil {
		return goal.Outcome{}, &agent.ArgumentsError{Detail: err.Error()}
	}
	if c.Tool == "get" {
		raw, _ := json.Marshal(w.docs[a.Collection][a.ID])
		return goal.Outcome{Kind: goal.CallOK, Status: 200, Result: raw, Attempts: 1}, nil
	}
	if answer, ok := w.answers[c.Key]; ok && c.Tool != "charge" {
		return goal.Outcome{Kind: goal.CallOK, Result: json.RawMessage(answer), Attempts: 1, Replayed: true, Revisions: w.wrote(a.Collection, a.ID)}, nil
	}
	value, err := goal.Decode(a.Value)
	if err != nil {
		return goal.Outcome{Kind: goal.CallToolError, Status: 400, Message: err.Error()}, nil
	}
	if c.Tool == "charge" {
		n := 0
		if old, ok := w.docs[a.Collection][a.ID].(json.Number); ok {
			i, _ := old.Int64()
			n = int(i)
		}
		value = json.Number(strconv.Itoa(n + 1))
	}
	w.store(a.Collection, a.ID, value)
	w.writes = append(w.writes, c.Key)
	w.answers[c.Key] = `{"ok":true}`
	return goal.Outcome{Kind: goal.CallOK, Result: json.RawMessage(`{"ok":true}`), Attempts: 1, Revisions: w.wrote(a.Collection, a.ID)}, nil
}

func (w *world) wrote(collection, id string) map[string]uint64 {
	if w.revisions == nil {
		return nil
	}
	return map[string]uint64{collection + "/" + id: w.revisions[collection+"/"+id]}
}

// Append implements agent.Journal.
func (w *world) Append(ctx context.Context, events ...goal.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.appends++
	store, err := true, error(nil)
	if w.onAppend != nil {
		store, err = w.onAppend(w.appends, events)
	}
	if store {
		for _, e := range events {
			if e.N != len(w.events)+1 {
				w.t.Errorf("event %s has number %d, want %d", e.Type, e.N, len(w.events)+1)
			}
			w.events = append(w.events, recode(w.t, e))
		}
	}
	return err
}

// recode is the event as it comes out of a store.
func recode(tb testing.TB, e goal.Event) goal.Event {
	tb.Helper()
	raw, err := goal.Marshal(e)
	if err != nil {
		tb.Fatalf("encode event: %v", err)
	}
	var out goal.Event
	if err := json.Unmarshal(raw, &out); err != nil {
		tb.Fatalf("decode event: %v", err)
	}
	return out
}

// planner is the world's planner.
type planner struct{ *world }

// Decide implements agent.Planner.
func (p planner) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	p.mu.Lock()
	p.asked = append(p.asked, s)
	for _, e := range p.events {
		if e.Step == len(s.Steps)+1 && e.N > p.from {
			p.t.Errorf("the planner is asked for step %d, which is journaled", e.Step)
		}
	}
	p.mu.Unlock()
	if ctx.Err() != nil {
		return agent.Answer{}, ctx.Err()
	}
	return p.decide(s)
}

// reach puts the first difference right. It words every answer differently.
func (w *world) reach(s agent.Situation) (agent.Answer, error) {
	if len(s.Left) == 0 {
		return agent.Answer{}, errors.New("nothing is left")
	}
	return agent.Answer{Actions: []goal.Action{w.put(s.Left[0])}, Why: fmt.Sprintf("thought %d", len(w.asked)), Tokens: 10}, nil
}

// put is the action that puts a difference at /collection/id right.
func (w *world) put(d goal.Difference) goal.Action {
	e := agent.EntityOf(d.Pointer[1:])
	return put(e.Collection, e.ID, string(d.Want), strconv.Itoa(len(w.asked)))
}

func put(collection, id, value, note string) goal.Action {
	return action("put", collection, id, value, note)
}

func action(tool, collection, id, value, note string) goal.Action {
	return goal.Action{Tool: tool, Arguments: json.RawMessage(fmt.Sprintf(
		`{"collection":%q,"id":%q,"value":%s,"note":%q}`, collection, id, value, note))}
}

// script answers with these actions, one each time, by the number of steps.
func script(actions ...goal.Action) func(agent.Situation) (agent.Answer, error) {
	return func(s agent.Situation) (agent.Answer, error) {
		if len(s.Steps) >= len(actions) {
			return agent.Answer{}, nil
		}
		return agent.Answer{Actions: actions[len(s.Steps) : len(s.Steps)+1]}, nil
	}
}

// types are the types of the journal's events.
func (w *world) types() []goal.EventType {
	out := make([]goal.EventType, len(w.events))
	for i, e := range w.events {
		out[i] = e.Type
	}
	return out
}

// clock is a settable clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

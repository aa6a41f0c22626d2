package planner_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// memJournal keeps a journal for the test to look at.
type memJournal struct {
	mu     sync.Mutex
	events []goal.Event
}

func (j *memJournal) Append(_ context.Context, events ...goal.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, events...)
	return nil
}

// environment is one on the document store, in a namespace of its own.
func environment(t *testing.T, docs *kv.Documents, ns string, p agent.Planner) agent.Environment {
	t.Helper()
	tools, err := tool.NewDocuments(docs, ns)
	if err != nil {
		t.Fatal(err)
	}
	return agent.Environment{Name: "default", State: state.KV{Documents: docs, Namespace: ns}, Tools: tools, Planner: p}
}

// run drives a task to its end with the real loop.
func run(t *testing.T, env agent.Environment, g goal.Goal) (goal.Result, []goal.Event) {
	t.Helper()
	task := agent.Task{Accepted: goal.Accepted{
		Submission: goal.Submission{Version: 1, TaskID: goal.TaskID("acme", t.Name()), Tenant: "acme", Goal: g},
		Seq:        1, At: time.Now(), Expires: time.Now().Add(time.Hour),
	}, Worker: "w"}
	j := &memJournal{}
	r, err := agent.Run(t.Context(), task, env, j, agent.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r, j.events
}

// realGoal is a line of goals.jsonl.
type realGoal struct {
	ID       string             `json:"id"`
	Goal     goal.Objective     `json:"goal"`
	EndState map[string]*string `json:"end_state"`
}

// The built-in planner reaches real goals on real data, and leaves exactly the
// state that an expert's tool calls left.
func TestBuiltinOnRealGoals(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	for _, domain := range []string{"retail", "airline"} {
		t.Run(domain, func(t *testing.T) {
			t.Parallel()
			var db map[string]map[string]json.RawMessage
			readJSON(t, kvtest.Shared(t, "data/"+domain+"/db.json"), &db)
			for _, g := range readGoals(t, kvtest.Shared(t, "data/"+domain+"/goals.jsonl")) {
				t.Run(g.ID, func(t *testing.T) {
					t.Parallel()
					for key := range g.EndState {
						e := agent.EntityOf(key)
						if v, ok := db[e.Collection][e.ID]; ok {
							if _, err := docs.Put(t.Context(), g.ID, e.Collection, e.ID, v, 0); err != nil {
								t.Fatal(err)
							}
						}
					}
					env := environment(t, docs, g.ID, planner.Builtin{})
					r, _ := run(t, env, goal.Goal{Objective: g.Goal, Guardrails: goal.Guardrails{MaxSteps: 20, TimeoutSeconds: 60}})
					if r.Reason != goal.TargetStateReached || r.Usage.Steps == 0 {
						t.Fatalf("result %+v", r)
					}
					for key, want := range g.EndState {
						if got := hashOf(t, docs, g.ID, key); got != want && (got == nil || want == nil || *got != *want) {
							t.Errorf("%s is not as the expert left it", key)
						}
					}
				})
			}
		})
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}

func readGoals(t *testing.T, path string) []realGoal {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []realGoal
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var g realGoal
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	if err := lines.Err(); err != nil || len(out) == 0 {
		t.Fatalf("%d goals, %v", len(out), err)
	}
	return out
}

// hashOf is the digest of an entity with sorted members; nil if it is absent.
func hashOf(t *testing.T, docs *kv.Documents, ns, key string) *string {
	t.Helper()
	e := agent.EntityOf(key)
	raw, _, err := docs.Get(t.Context(), ns, e.Collection, e.ID)
	if errors.Is(err, goal.ErrNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	v, err := goal.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	sorted, err := goal.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(sorted)
	text := hex.EncodeToString(sum[:])
	return &text
}

// A scripted model drives the real loop over the protocol: a wrong tool, broken
// arguments, words instead of a call, and then what reaches the target.
func TestOpenAIDrivesATask(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	model := scripted([]goal.Action{
		{Tool: "orders.refund", Arguments: json.RawMessage(`{"id":"W1"}`)},
		{Tool: "state.set", Arguments: json.RawMessage(`{"collection":1}`)},
		{Tool: "state.merge", Arguments: json.RawMessage(`{"collection":"orders","id":"W1","patch":{"n":9007199254740993}}`)},
		{Tool: "state.set", Arguments: json.RawMessage(`{"collection":"v","value":2}`)},
	})
	s, cfg := newStub(t, model)
	r, events := run(t, environment(t, docs, "ns", newOpenAI(t, cfg)), goal.Goal{
		Objective: goal.Objective{
			Intent: "Do as scripted", TargetState: json.RawMessage(`{"orders":{"W1":{"n":9007199254740993}},"v":2}`),
		},
		Guardrails: goal.Guardrails{MaxSteps: 6, TimeoutSeconds: 60},
	})
	if r.Reason != goal.TargetStateReached || r.Usage.Steps != 4 || r.Usage.Tokens != 400 || r.Usage.ToolCalls != 2 {
		t.Errorf("result %+v", r)
	}
	if len(s.seen()) != 4 {
		t.Errorf("%d requests", len(s.seen()))
	}
	for _, e := range events {
		if raw, err := goal.Marshal(e.Public()); err != nil || strings.Contains(string(raw), "planner_state") {
			t.Errorf("public event %s, %v", raw, err)
		}
	}
}

package planner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// On the real store, with the real tools, the built-in planner reaches every
// target that does not want a whole collection of entities gone, which no
// single call may do.
func TestBuiltinReachesOnTheStore(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	world := 0
	rapid.Check(t, func(t *rapid.T) {
		world++
		w := newWorld(t, docs, fmt.Sprint("w", world))
		target := object(3).Filter(func(m map[string]any) bool { return len(m) > 0 }).Draw(t, "target")
		initial := object(3).Draw(t, "state")
		for collection, v := range initial {
			members, isObject := v.(map[string]any)
			if !isObject || rapid.Bool().Draw(t, "whole") {
				w.put(collection, "", v)
				continue
			}
			for id, m := range members {
				if id != "" {
					w.put(collection, id, m)
				}
			}
			if want, named := target[collection]; named && want == nil {
				delete(target, collection)
			}
		}
		w.reach(target)
	})
}

type world struct {
	t     *rapid.T
	docs  *kv.Documents
	ns    string
	tools *tool.Documents
	calls int
}

func newWorld(t *rapid.T, docs *kv.Documents, ns string) *world {
	tools, err := tool.NewDocuments(docs, ns)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, docs: docs, ns: ns, tools: tools}
}

func (w *world) put(collection, id string, v any) {
	raw, err := goal.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.docs.Put(context.Background(), w.ns, collection, id, json.RawMessage(raw), 0); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) observe(target map[string]any) map[string]any {
	source := state.KV{Documents: w.docs, Namespace: w.ns}
	obs, err := source.Observe(context.Background(), agent.Entities(target))
	if err != nil {
		w.t.Fatal(err)
	}
	return obs.State
}

// reach runs plans until the target is observed, three at most: a collection
// that was removed whole may have to be made an object again.
func (w *world) reach(target map[string]any) {
	for range 3 {
		have := w.observe(target)
		left := agent.Left(target, have)
		actions, err := planner.Plan(left, have)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, a := range actions {
			w.calls++
			call := agent.Call{Tool: a.Tool, Arguments: a.Arguments, Key: fmt.Sprint("k", w.calls)}
			for _, replayed := range []bool{false, true} { // every call twice: the second must change nothing
				out, err := w.tools.Call(context.Background(), call)
				if err != nil || !out.OK() || out.Replayed != replayed {
					w.t.Fatalf("%s %s: %+v, %v", a.Tool, a.Arguments, out, err)
				}
			}
		}
	}
	if left := agent.Left(target, w.observe(target)); len(left) > 0 {
		w.t.Fatalf("left %v of %v", left, target)
	}
}

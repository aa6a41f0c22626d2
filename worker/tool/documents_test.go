package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// get reads a document for a test; "-" is an absent one.
func get(t *testing.T, d *kv.Documents, ns, key string) string {
	t.Helper()
	e := agent.EntityOf(key)
	raw, _, err := d.Get(t.Context(), ns, e.Collection, e.ID)
	if errors.Is(err, goal.ErrNotFound) {
		return "-"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDocumentTools(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	rows := map[string]struct {
		before     map[string]string
		tool, args string
		kind       goal.OutcomeKind
		after      map[string]string
		message    string
	}{
		"set":                        {nil, tool.StateSet, `{"collection":"c","id":"a","value":{"n":9007199254740993,"f":1.10}}`, goal.CallOK, map[string]string{"c/a": `{"n":9007199254740993,"f":1.10}`}, ""},
		"set null":                   {nil, tool.StateSet, `{"collection":"c","id":"a","value":null}`, goal.CallOK, map[string]string{"c/a": `null`}, ""},
		"set root":                   {map[string]string{"v": `1`}, tool.StateSet, `{"collection":"v","value":2}`, goal.CallOK, map[string]string{"v": `2`}, ""},
		"set if absent":              {nil, tool.StateSet, `{"collection":"c","id":"a","value":1,"if_revision":0}`, goal.CallOK, map[string]string{"c/a": `1`}, ""},
		"set but present":            {map[string]string{"c/a": `1`}, tool.StateSet, `{"collection":"c","id":"a","value":2,"if_revision":0}`, goal.CallPrecondition, map[string]string{"c/a": `1`}, "revision"},
		"merge":                      {map[string]string{"c/a": `{"x":1,"y":{"z":2,"w":3}}`}, tool.StateMerge, `{"collection":"c","id":"a","patch":{"x":null,"y":{"z":9007199254740993}}}`, goal.CallOK, map[string]string{"c/a": `{"y":{"w":3,"z":9007199254740993}}`}, ""},
		"merge absent":               {nil, tool.StateMerge, `{"collection":"c","id":"a","patch":{"x":{"y":null}}}`, goal.CallOK, map[string]string{"c/a": `{"x":{}}`}, ""},
		"merge a scalar":             {map[string]string{"c/a": `5`}, tool.StateMerge, `{"collection":"c","id":"a","patch":{"x":1}}`, goal.CallOK, map[string]string{"c/a": `{"x":1}`}, ""},
		"merge keeps null in arrays": {nil, tool.StateMerge, `{"collection":"c","id":"a","patch":{"l":[null,{"x":null}]}}`, goal.CallOK, map[string]string{"c/a": `{"l":[null,{"x":null}]}`}, ""},
		"merge into a whole":         {map[string]string{"c": `{"a":{"x":1}}`}, tool.StateMerge, `{"collection":"c","id":"a","patch":{"y":2}}`, goal.CallOK, map[string]string{"c/a": `{"x":1,"y":2}`}, ""},
		"patch":                      {map[string]string{"c/a": `{"l":[1,2],"n":1.0}`}, tool.StatePatch, `{"collection":"c","id":"a","patch":[{"op":"test","path":"/n","value":1},{"op":"add","path":"/l/-","value":9007199254740993}]}`, goal.CallOK, map[string]string{"c/a": `{"l":[1,2,9007199254740993],"n":1}`}, ""},
		"patch all or nothing":       {map[string]string{"c/a": `{"x":1}`}, tool.StatePatch, `{"collection":"c","id":"a","patch":[{"op":"remove","path":"/x"},{"op":"test","path":"/y","value":1}]}`, goal.CallToolError, map[string]string{"c/a": `{"x":1}`}, "patch"},
		"patch negative index":       {map[string]string{"c/a": `[1]`}, tool.StatePatch, `{"collection":"c","id":"a","patch":[{"op":"remove","path":"/-1"}]}`, goal.CallToolError, map[string]string{"c/a": `[1]`}, "patch"},
		"patch absent":               {nil, tool.StatePatch, `{"collection":"c","id":"a","patch":[]}`, goal.CallToolError, map[string]string{"c/a": `-`}, "there is no c/a"},
		"delete":                     {map[string]string{"c/a": `1`, "c/b": `2`}, tool.StateDelete, `{"collection":"c","id":"a"}`, goal.CallOK, map[string]string{"c/a": `-`, "c/b": `2`}, ""},
		"delete absent":              {nil, tool.StateDelete, `{"collection":"c","id":"a"}`, goal.CallOK, map[string]string{"c/a": `-`}, ""},
		"delete a member of a whole": {map[string]string{"c": `{"a":1,"b":2}`}, tool.StateDelete, `{"collection":"c","id":"a"}`, goal.CallOK, map[string]string{"c/a": `-`, "c": `{"b":2}`}, ""},
		"delete both":                {map[string]string{"c": `{"a":1,"b":2}`, "c/a": `3`}, tool.StateDelete, `{"collection":"c","id":"a"}`, goal.CallOK, map[string]string{"c/a": `-`, "c": `{"b":2}`}, ""},
		"delete at a revision":       {map[string]string{"c/a": `1`}, tool.StateDelete, `{"collection":"c","id":"a","if_revision":999999}`, goal.CallPrecondition, map[string]string{"c/a": `1`}, "not 999999"},
		"delete a collection":        {map[string]string{"c/a": `1`}, tool.StateDelete, `{"collection":"c"}`, goal.CallToolError, map[string]string{"c/a": `1`}, "one by one"},
		"get":                        {map[string]string{"c/a": `{"n":1.10}`}, tool.StateGet, `{"collection":"c","id":"a"}`, goal.CallOK, nil, ""},
		"get a member of a whole":    {map[string]string{"c": `{"a":1}`}, tool.StateGet, `{"collection":"c","id":"a"}`, goal.CallOK, nil, ""},
		"get absent":                 {nil, tool.StateGet, `{"collection":"c","id":"a"}`, goal.CallToolError, nil, "there is no c/a"},
		"too large":                  {nil, tool.StateSet, `{"collection":"c","id":"a","value":"` + strings.Repeat("x", kv.MaxDocument) + `"}`, goal.CallToolError, map[string]string{"c/a": `-`}, "large"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for key, value := range row.before {
				e := agent.EntityOf(key)
				if _, err := docs.Put(t.Context(), t.Name(), e.Collection, e.ID, json.RawMessage(value), 0); err != nil {
					t.Fatal(err)
				}
			}
			tools, err := tool.NewDocuments(docs, t.Name())
			if err != nil {
				t.Fatal(err)
			}
			c := agent.Call{Tool: row.tool, Arguments: json.RawMessage(row.args), Key: "key"}
			out, err := tools.Call(t.Context(), c)
			if err != nil || out.Kind != row.kind || !strings.Contains(out.Message, row.message) || out.Attempts != 1 {
				t.Fatalf("outcome %+v, %v; want %s, %q", out, err, row.kind, row.message)
			}
			for key, want := range row.after {
				if got := get(t, docs, t.Name(), key); got != want {
					t.Errorf("%s is %s, want %s", key, got, want)
				}
			}
			if row.kind != goal.CallOK || row.tool == tool.StateGet {
				return
			}
			again, err := tools.Call(t.Context(), c)
			if err != nil || !again.OK() || !again.Replayed || string(again.Result) != string(out.Result) {
				t.Errorf("replay answers %+v, %v; want %s", again, err, out.Result)
			}
			for key, rev := range out.Revisions {
				if again.Revisions[key] != rev {
					t.Errorf("replay reports revision %d of %s, want %d", again.Revisions[key], key, rev)
				}
			}
		})
	}
}

func TestDocumentToolsRefuseArguments(t *testing.T) {
	t.Parallel()
	tools, err := tool.NewDocuments(nil, "ns", "writer")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]struct{ tool, args string }{
		"no collection":     {tool.StateSet, `{"value":1}`},
		"no value":          {tool.StateSet, `{"collection":"c"}`},
		"misspelt":          {tool.StateSet, `{"collection":"c","value":1,"if_rev":1}`},
		"wrong type":        {tool.StateMerge, `{"collection":"c","patch":[]}`},
		"negative revision": {tool.StateDelete, `{"collection":"c","if_revision":-1}`},
		"fraction":          {tool.StateDelete, `{"collection":"c","if_revision":1.5}`},
		"empty id":          {tool.StateDelete, `{"collection":"c","id":""}`},
		"no object":         {tool.StateGet, `[]`},
		"not JSON":          {tool.StateGet, `{`},
		"twice the same":    {tool.StateGet, `{"collection":"c","collection":"d"}`},
		"nothing":           {tool.StateGet, ``},
	}
	for name, row := range rows {
		_, err := tools.Call(t.Context(), agent.Call{Tool: row.tool, Arguments: json.RawMessage(row.args)})
		if _, ok := errors.AsType[*agent.ArgumentsError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := tools.Call(t.Context(), agent.Call{Tool: "state.nope"}); !errors.Is(err, agent.ErrUnknownTool) {
		t.Errorf("unknown tool: %v", err)
	}
	specs, err := tools.List(t.Context())
	if err != nil || len(specs) != 5 || specs[0].Roles[0] != "writer" {
		t.Errorf("list %v, %v", specs, err)
	}
}

// brokenStore fails a number of times before it works.
type brokenStore struct {
	tool.DocumentStore
	failures int
}

func (b *brokenStore) Edit(context.Context, string, string, string, string,
	func(json.RawMessage, uint64) (json.RawMessage, error),
) (uint64, bool, error) {
	if b.failures--; b.failures >= 0 {
		return 0, false, goal.ErrUnavailable
	}
	return 7, false, nil
}

func TestDocumentToolsRepeatOnADeadStore(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		failures, attempts int
		kind               goal.OutcomeKind
	}{
		"comes back": {1, 2, goal.CallOK},
		"stays away": {99, 3, goal.CallUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tools, err := tool.NewDocuments(&brokenStore{failures: row.failures}, "ns")
			if err != nil {
				t.Fatal(err)
			}
			out, err := tools.Call(t.Context(), agent.Call{Tool: tool.StateSet, Arguments: json.RawMessage(`{"collection":"c","value":1}`)})
			if err != nil || out.Kind != row.kind || out.Attempts != row.attempts {
				t.Errorf("outcome %+v, %v; want %s after %d attempts", out, err, row.kind, row.attempts)
			}
		})
	}
}

// tornStore dies before its n-th edit.
type tornStore struct {
	*kv.Documents
	left int
}

func (s *tornStore) Edit(ctx context.Context, namespace, collection, id, key string,
	edit func(json.RawMessage, uint64) (json.RawMessage, error),
) (uint64, bool, error) {
	if s.left--; s.left < 0 {
		return 0, false, errors.New("crash")
	}
	return s.Documents.Edit(ctx, namespace, collection, id, key, edit)
}

// A removal takes two writes where a collection is held whole and the entity
// has a document too. A call that died between them is finished by its repeat,
// also when if_revision does not hold any more because of the first write.
func TestDocumentRemovalIsFinishedByItsRepeat(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	if _, err := docs.Put(t.Context(), "ns", "c", "", json.RawMessage(`{"a":1,"b":2}`), 0); err != nil {
		t.Fatal(err)
	}
	torn, err := tool.NewDocuments(&tornStore{Documents: docs, left: 1}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := tool.NewDocuments(docs, "ns")
	if err != nil {
		t.Fatal(err)
	}
	_, rev, err := docs.Get(t.Context(), "ns", "c", "")
	if err != nil {
		t.Fatal(err)
	}
	c := agent.Call{
		Tool: tool.StateDelete, Key: "k",
		Arguments: json.RawMessage(fmt.Sprintf(`{"collection":"c","id":"a","if_revision":%d}`, rev)),
	}
	if out, err := torn.Call(t.Context(), c); err != nil || out.Kind != goal.CallUnavailable {
		t.Fatalf("torn call: %+v, %v", out, err)
	}
	if got := get(t, docs, "ns", "c"); got != `{"b":2}` {
		t.Fatalf("after the crash: %s", got)
	}
	out, err := whole.Call(t.Context(), c)
	if err != nil || !out.OK() || get(t, docs, "ns", "c") != `{"b":2}` || out.Revisions["c"] == 0 {
		t.Errorf("repeat: %+v, %v", out, err)
	}
}

// However often one call is made at once, it has one effect, and every answer
// is that effect's.
func TestDocumentCallsOfOneKey(t *testing.T) {
	t.Parallel()
	docs := kvtest.Store(t, kvtest.Options{}).Documents()
	tools, err := tool.NewDocuments(docs, "ns")
	if err != nil {
		t.Fatal(err)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		first  int
		result = map[string]int{}
	)
	const calls = 20
	for range calls {
		wg.Go(func() {
			out, err := tools.Call(t.Context(), agent.Call{
				Tool: tool.StateSet, Key: "k", Arguments: json.RawMessage(`{"collection":"c","id":"a","value":1}`),
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || !out.OK() {
				t.Errorf("outcome %+v, %v", out, err)
			}
			if !out.Replayed {
				first++
			}
			result[string(out.Result)]++
		})
	}
	wg.Wait()
	if first != 1 || len(result) != 1 {
		t.Errorf("%d first calls, answers %v", first, result)
	}
}

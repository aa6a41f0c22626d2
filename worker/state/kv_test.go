package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
)

// seed writes documents by "collection" or "collection/id".
func seed(t *testing.T, d *kv.Documents, ns string, docs map[string]string) {
	t.Helper()
	for key, value := range docs {
		e := agent.EntityOf(key)
		if _, err := d.Put(t.Context(), ns, e.Collection, e.ID, json.RawMessage(value), 0); err != nil {
			t.Fatalf("seed %s: %v", key, err)
		}
	}
}

func TestKVObserve(t *testing.T) {
	t.Parallel()
	d := kvtest.Store(t, kvtest.Options{}).Documents()
	rows := map[string]struct {
		docs     map[string]string
		entities []agent.Entity
		want     string
	}{
		"only what was named": {
			map[string]string{"orders/W1": `{"n":9007199254740993}`, "orders/W2": `{}`, "version": `12`},
			[]agent.Entity{{Collection: "orders", ID: "W1"}},
			`{"orders":{"W1":{"n":9007199254740993}}}`,
		},
		"root member":               {map[string]string{"version": `1.20`}, []agent.Entity{{Collection: "version"}}, `{"version":1.20}`},
		"absent root member":        {nil, []agent.Entity{{Collection: "version"}}, `{}`},
		"absent entity":             {nil, []agent.Entity{{Collection: "c", ID: "a"}}, `{}`},
		"collection by its entity":  {map[string]string{"c/x": `1`}, []agent.Entity{{Collection: "c"}}, `{"c":{}}`},
		"absent beside another":     {map[string]string{"c/x": `1`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":{}}`},
		"member of a whole":         {map[string]string{"c": `{"a":1,"b":2}`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":{"a":1}}`},
		"absent member of a whole":  {map[string]string{"c": `{"b":2}`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":{}}`},
		"own document wins":         {map[string]string{"c": `{"a":1}`, "c/a": `2`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":{"a":2}}`},
		"scalar where an object is": {map[string]string{"c": `5`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":5}`},
		"null is there":             {map[string]string{"c/a": `null`}, []agent.Entity{{Collection: "c", ID: "a"}}, `{"c":{"a":null}}`},
		"whole and member": {
			map[string]string{"c": `{"x":1}`, "c/a": `2`},
			[]agent.Entity{{Collection: "c", ID: "a"}, {Collection: "c"}},
			`{"c":{"x":1,"a":2}}`,
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed(t, d, t.Name(), row.docs)
			obs, err := state.KV{Documents: d, Namespace: t.Name()}.Observe(t.Context(), row.entities)
			if err != nil {
				t.Fatal(err)
			}
			want, err := goal.Decode([]byte(row.want))
			if err != nil {
				t.Fatal(err)
			}
			if !goal.Equal(obs.State, want) {
				t.Errorf("state %v, want %s", obs.State, row.want)
			}
			for _, e := range row.entities {
				_, own := row.docs[e.Key()]
				if rev, ok := obs.Revisions[e.Key()]; !ok || own && rev == 0 {
					t.Errorf("revision of %s is %d, %t", e.Key(), rev, ok)
				}
			}
		})
	}
}

func TestKVReportsTheRevisionOfAWrite(t *testing.T) {
	t.Parallel()
	d := kvtest.Store(t, kvtest.Options{}).Documents()
	rev, err := d.Put(t.Context(), "ns", "c", "a", json.RawMessage(`1`), 0)
	if err != nil {
		t.Fatal(err)
	}
	obs, err := state.KV{Documents: d, Namespace: "ns"}.Observe(t.Context(), []agent.Entity{{Collection: "c", ID: "a"}, {Collection: "c", ID: "b"}})
	if err != nil || obs.Revisions["c/a"] != rev || obs.Revisions["c/b"] != 0 {
		t.Errorf("revisions %v, %v; want %d for c/a and 0 for c/b", obs.Revisions, err, rev)
	}
}

func TestKVUnknownIsNotAbsent(t *testing.T) {
	t.Parallel()
	cluster := kvtest.Server(t, kvtest.Options{})
	d := cluster.Store(t).Documents()
	cluster.Stop(0)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := state.KV{Documents: d, Namespace: "ns"}.Observe(ctx, []agent.Entity{{Collection: "c", ID: "a"}})
	if err == nil || errors.Is(err, goal.ErrNotFound) {
		t.Errorf("observation of a dead store: %v", err)
	}
}

package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

var _ state.MCPReader = (*tool.MCP)(nil)

// reader answers what it was asked for.
type reader struct{}

func (reader) CallTool(_ context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	if tool == "fail" {
		return nil, errors.New("no")
	}
	return json.RawMessage(`{"` + tool + `":` + string(args) + `}`), nil
}

func (reader) ReadResource(_ context.Context, uri string) ([]byte, error) {
	return []byte(`{"uri":"` + uri + `"}`), nil
}

func TestMCPObserve(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		cfg      state.MCPConfig
		entities []agent.Entity
		want     string
		err      string
	}{
		"tool, entity": {
			state.MCPConfig{Tool: "get", Arguments: map[string]any{"c": "{collection}", "i": "{id}", "n": 1, "l": []any{}}, Pointer: "/get"},
			entities("orders/W1"), `{"orders":{"W1":{"c":"orders","i":"W1","n":1,"l":[]}}}`, "",
		},
		"tool, member": {
			state.MCPConfig{Tool: "get", Arguments: map[string]any{"c": "{collection}"}},
			entities("orders/W1", "orders/W2"), `{"orders":{"get":{"c":"orders"}}}`, "",
		},
		"tool, whole": {state.MCPConfig{Tool: "get"}, entities("get/x", "v"), `{"get":{}}`, ""},
		"resource": {
			state.MCPConfig{Resource: "s://{collection}/{id}", Pointer: "/uri"}, entities("orders/a/b"), `{"orders":{"a/b":"s://orders/a%2Fb"}}`, "",
		},
		"error is unknown": {state.MCPConfig{Tool: "fail"}, entities("a"), "", "no"},
		"too large":        {state.MCPConfig{Tool: "get", MaxBytes: 3}, entities("a"), "", "larger"},
		"no member whole":  {state.MCPConfig{Resource: "s://{collection}/{id}"}, entities("a"), "", "whole"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.cfg.Server = reader{}
			m, err := state.NewMCP(row.cfg)
			if err != nil {
				t.Fatal(err)
			}
			obs, err := m.Observe(t.Context(), row.entities)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Errorf("got %v, %v; want error %q", obs, err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sameState(t, obs.State, row.want)
		})
	}
	for name, cfg := range map[string]state.MCPConfig{
		"no server": {Tool: "t"}, "nothing": {Server: reader{}}, "both": {Server: reader{}, Tool: "t", Resource: "r"},
		"pointer": {Server: reader{}, Tool: "t", Pointer: "x"}, "id alone": {Server: reader{}, Resource: "s://{id}"},
	} {
		if _, err := state.NewMCP(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
	"github.com/goalkeeper-dev/goalkeeper/worker/state"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// environments are the configured worlds, built once at start. They are safe
// for concurrent use.
type environments struct {
	log     *slog.Logger
	all     []environment
	balance *kv.Balances // nil: no tenant has a token balance
	closers []func()     // in the order of opening
	servers []mcpServer
}

// mcpServer is an environment's MCP server.
type mcpServer struct {
	environment string
	*tool.MCP
}

// environment is one world and the tenants that may use it.
type environment struct {
	agent.Environment
	tenants []string
}

// openEnvironments builds every configured environment. Close what it returns.
func openEnvironments(ctx context.Context, c *config, store *kv.Store, m *metrics, tr trace.Tracer, log *slog.Logger) (*environments, error) {
	es := &environments{log: log}
	var err error
	if es.balance, err = openBalances(ctx, c, store); err != nil {
		return nil, err
	}
	for i, ec := range c.Environments {
		e, err := es.open(ec, store, log)
		if err != nil {
			es.Close()
			return nil, fmt.Errorf("environments[%d] (%s): %w", i, ec.Name, err)
		}
		if ec.Planner.Type == "openai" {
			e.Planner = chatPlanner{Planner: e.Planner, tracer: tr, model: ec.Planner.Model, url: ec.Planner.BaseURL}
		}
		es.all = append(es.all, environment{Environment: m.observed(e, tr), tenants: ec.Tenants})
	}
	return es, nil
}

// Environment implements worker.Environments.
func (es *environments) Environment(tenant, name string) (agent.Environment, bool) {
	for _, e := range es.all {
		if e.Name == name && (len(e.tenants) == 0 || slices.Contains(e.tenants, tenant)) {
			return e.Environment, true
		}
	}
	return agent.Environment{}, false
}

// Close ends tool connections and MCP servers.
func (es *environments) Close() {
	for _, f := range slices.Backward(es.closers) {
		f()
	}
}

// open builds one environment.
func (es *environments) open(c environmentConfig, store *kv.Store, log *slog.Logger) (agent.Environment, error) {
	e := agent.Environment{Name: c.Name, Roles: c.Roles}
	servers, err := es.mcpServers(c.MCP, store, log)
	if err != nil {
		return e, err
	}
	for _, m := range servers {
		es.servers = append(es.servers, mcpServer{c.Name, m})
	}
	if e.Tools, err = es.tools(c, servers, store, log); err != nil {
		return e, err
	}
	e.LocalState = c.State.Type == "kv"
	if e.State, err = es.state(c.State, servers, store); err != nil {
		return e, fmt.Errorf("state: %w", err)
	}
	if e.Planner, err = es.openPlanner(c.Planner); err != nil {
		return e, fmt.Errorf("planner: %w", err)
	}
	for i, p := range c.Probes {
		probe, err := newProbe(p)
		if err != nil {
			return e, fmt.Errorf("probes[%d]: %w", i, err)
		}
		e.Probes = append(e.Probes, probe)
	}
	return e, nil
}

// atEnd has something closed with the environments.
func (es *environments) atEnd(f func()) { es.closers = append(es.closers, f) }

// mcpServers are the environment's MCP servers by name. None is started before
// it is needed.
func (es *environments) mcpServers(configs []mcpConfig, store *kv.Store, log *slog.Logger) (map[string]*tool.MCP, error) {
	servers := map[string]*tool.MCP{}
	for i, c := range configs {
		if servers[c.Name] != nil {
			return nil, fmt.Errorf("mcp[%d]: server %q is there twice", i, c.Name)
		}
		m, err := tool.NewMCP(tool.MCPServer{
			Name: c.Name, Command: c.Command, Dir: c.Dir, Env: reveal(c.Env), URL: c.URL, Headers: reveal(c.Headers),
			Tools: c.Tools, Roles: c.Roles, Trusted: c.Trusted, Replay: c.Replay, ProtocolVersion: c.ProtocolVersion,
			CallTimeout: time.Duration(c.Timeout), Objects: store, Log: log,
		})
		if err != nil {
			return nil, fmt.Errorf("mcp[%d]: %w", i, err)
		}
		es.atEnd(m.Close)
		servers[c.Name] = m
	}
	return servers, nil
}

// tools combines the environment's tools: its HTTP endpoints, its MCP servers
// and, unless it says otherwise, the built-in state tools.
func (es *environments) tools(c environmentConfig, servers map[string]*tool.MCP, store *kv.Store, log *slog.Logger) (*tool.Box, error) {
	var sources []tool.Source
	if len(c.Tools) > 0 {
		endpoints := make([]tool.HTTPTool, 0, len(c.Tools))
		for i, t := range c.Tools {
			endpoint, err := t.endpoint()
			if err != nil {
				return nil, fmt.Errorf("tools[%d] (%s): %w", i, t.Name, err)
			}
			endpoints = append(endpoints, endpoint)
		}
		h, err := tool.NewHTTP(tool.HTTPConfig{Tools: endpoints, Objects: store, Log: log})
		if err != nil {
			return nil, err
		}
		es.atEnd(h.Close)
		sources = append(sources, h)
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		sources = append(sources, servers[name])
	}
	if !c.NoState && c.State.Type == "kv" {
		docs, err := tool.NewDocuments(store.Documents(), c.State.Namespace)
		if err != nil {
			return nil, err
		}
		sources = append(sources, docs)
	}
	return tool.NewBox(sources...)
}

func (t toolConfig) endpoint() (tool.HTTPTool, error) {
	var schema json.RawMessage
	if t.InputSchema != nil {
		var err error
		if schema, err = rawJSON(t.InputSchema); err != nil {
			return tool.HTTPTool{}, fmt.Errorf("input_schema: %w", err)
		}
	}
	retries := tool.DefaultRetries
	if t.Retries != nil {
		if retries = *t.Retries; retries == 0 {
			retries = -1 // the package's word for none
		}
	}
	return tool.HTTPTool{
		Name: t.Name, Description: t.Description, Method: t.Method, URL: t.URL, InputSchema: schema, Roles: t.Roles,
		Timeout: time.Duration(t.Timeout), Retries: retries, Replay: t.Replay, Headers: reveal(t.Headers),
	}, nil
}

// state opens the environment's state source.
func (es *environments) state(c stateConfig, servers map[string]*tool.MCP, store *kv.Store) (agent.State, error) {
	switch c.Type {
	case "http":
		h, err := state.NewHTTP(state.HTTPConfig{
			URL: c.URL, CollectionURL: c.CollectionURL, Pointer: c.Pointer, Headers: reveal(c.Headers),
			MissingAsEmpty: c.MissingAsEmpty, Timeout: time.Duration(c.Timeout),
		})
		if err != nil {
			return nil, err
		}
		es.atEnd(h.Close)
		return h, nil
	case "mcp":
		server := servers[c.Server]
		if server == nil {
			return nil, fmt.Errorf("no MCP server %q in this environment", c.Server)
		}
		return state.NewMCP(state.MCPConfig{
			Server: server, Tool: c.Tool, Arguments: c.Arguments, Resource: c.Resource, Pointer: c.Pointer, Text: c.JSONText,
			Timeout: time.Duration(c.Timeout),
		})
	default:
		return state.KV{Documents: store.Documents(), Namespace: c.Namespace}, nil
	}
}

func (es *environments) openPlanner(c plannerConfig) (agent.Planner, error) {
	switch c.Type {
	case "openai":
		o, err := planner.NewOpenAI(planner.OpenAIConfig{
			BaseURL: c.BaseURL, Model: c.Model, Key: string(c.APIKey), Headers: reveal(c.Headers), Timeout: time.Duration(c.Timeout),
			MaxTokens: c.MaxTokens, Temperature: c.Temperature, ParallelToolCalls: c.ParallelToolCalls,
			NoReasoningEcho: c.NoReasoningEcho, Instructions: c.Instructions, ExtraBody: c.ExtraBody,
		})
		if err != nil {
			return nil, err
		}
		es.atEnd(o.Close)
		return o, nil
	case "http":
		h, err := planner.NewHTTP(planner.HTTPConfig{URL: c.URL, Headers: reveal(c.Headers), Timeout: time.Duration(c.Timeout)})
		if err != nil {
			return nil, err
		}
		es.atEnd(h.Close)
		return h, nil
	case "script":
		return openScript(c.Script)
	default:
		return planner.Builtin{}, nil
	}
}

func openScript(actions []scriptAction) (planner.Script, error) {
	script := make(planner.Script, 0, len(actions))
	for i, a := range actions {
		args := json.RawMessage(a.JSON)
		if a.JSON == "" {
			if a.Arguments == nil {
				a.Arguments = map[string]any{}
			}
			var err error
			if args, err = rawJSON(a.Arguments); err != nil {
				return nil, fmt.Errorf("script[%d]: %w", i, err)
			}
		}
		if _, err := goal.Decode(args); err != nil {
			return nil, fmt.Errorf("script[%d]: %w", i, err)
		}
		script = append(script, goal.Action{Tool: a.Tool, Arguments: args})
	}
	return script, nil
}

// agentBalance is the balance that planner calls are charged to.
func (es *environments) agentBalance() agent.Balance {
	if es.balance == nil {
		return nil
	}
	return es.balance
}

// openBalances grants every tenant its configured tokens, once and for all.
func openBalances(ctx context.Context, c *config, store *kv.Store) (*kv.Balances, error) {
	var b *kv.Balances
	for _, t := range c.Tenants {
		if t.TokenBalance == nil {
			continue
		}
		b = store.Balances()
		if err := b.Grant(ctx, t.Name, "configured", *t.TokenBalance); err != nil {
			return nil, fmt.Errorf("token balance of tenant %s: %w", t.Name, err)
		}
	}
	return b, nil
}

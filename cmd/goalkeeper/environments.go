package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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
	all     []environment
	balance func(ctx context.Context, tenant string) (int64, error) // nil: no balances are kept
	closers []io.Closer
}

// environment is one world and the tenants that may use it.
type environment struct {
	agent.Environment
	tenants []string
	planner string // type, for the catalogue
}

// openEnvironments builds every configured environment. Close what it returns.
func openEnvironments(c *config, store *kv.Store, m *metrics, tr trace.Tracer, log *slog.Logger) (*environments, error) {
	es := &environments{}
	for i, ec := range c.Environments {
		e, err := es.open(ec, store, log)
		if err != nil {
			es.Close()
			return nil, fmt.Errorf("environments[%d] (%s): %w", i, ec.Name, err)
		}
		es.all = append(es.all, environment{Environment: m.observed(e, tr), tenants: ec.Tenants, planner: ec.Planner.Type})
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
	for _, c := range es.closers {
		_ = c.Close() // nothing can be done about it at the end
	}
}

func (es *environments) open(c environmentConfig, store *kv.Store, log *slog.Logger) (agent.Environment, error) {
	e := agent.Environment{Name: c.Name, Roles: c.Roles}
	var err error
	if e.Tools, err = es.tools(c, store, log); err != nil {
		return e, err
	}
	if e.State, err = openState(c, store); err != nil {
		return e, fmt.Errorf("state: %w", err)
	}
	if e.Planner, err = openPlanner(c.Planner); err != nil {
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

// tools combines the environment's tools: its HTTP endpoints, its MCP servers
// and, unless it says otherwise, the built-in state tools.
func (es *environments) tools(c environmentConfig, store *kv.Store, log *slog.Logger) (*tool.Box, error) {
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
		es.closers = append(es.closers, closer(h.Close))
		sources = append(sources, h)
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

func openState(c environmentConfig, store *kv.Store) (agent.State, error) {
	switch c.State.Type {
	case "kv":
		return state.KV{Documents: store.Documents(), Namespace: c.State.Namespace}, nil
	default:
		return nil, fmt.Errorf("type %q is not known", c.State.Type)
	}
}

func openPlanner(c plannerConfig) (agent.Planner, error) {
	switch c.Type {
	case "builtin":
		return planner.Builtin{}, nil
	case "script":
		return openScript(c.Script)
	default:
		return nil, fmt.Errorf("type %q is not known", c.Type)
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

// closer makes an io.Closer of a function.
type closer func()

// Close implements io.Closer.
func (f closer) Close() error { f(); return nil }

// probe checks a third party before a goal is accepted and before it starts.
type probe struct {
	name    string
	timeout time.Duration
	check   func(ctx context.Context) error
}

// Name implements agent.Probe.
func (p probe) Name() string { return p.name }

// Check implements agent.Probe.
func (p probe) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.check(ctx)
}

const probeTimeout = 3 * time.Second

func newProbe(c probeConfig) (agent.Probe, error) {
	p := probe{name: c.Name, timeout: c.Timeout.or(probeTimeout)}
	switch {
	case c.HTTP != "" && c.TCP == "":
		setDefault(&p.name, goal.RedactURL(c.HTTP))
		p.check = func(ctx context.Context) error { return probeHTTP(ctx, c.HTTP) }
	case c.TCP != "" && c.HTTP == "":
		setDefault(&p.name, c.TCP)
		p.check = func(ctx context.Context) error { return probeTCP(ctx, c.TCP) }
	default:
		return nil, errors.New("want exactly one of http and tcp")
	}
	return p, nil
}

// probeClient has a connection of its own per probe: a pooled one would hide
// that the dependency is gone.
var probeClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func probeHTTP(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return unwrapURL(err)
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		return unwrapURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("answered %d", resp.StatusCode)
	}
	return nil
}

func probeTCP(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// agentBalance is the balance that planner calls are charged to.
func (es *environments) agentBalance() agent.Balance { return nil }

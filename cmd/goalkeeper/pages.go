package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/dashboard"
)

// openDashboard makes the pages. They reach the API through s.ingest, which is
// made after them and serves before anybody can ask.
func (s *service) openDashboard(auth ingest.Authenticator) (http.Handler, error) {
	cfg := dashboard.Config{
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ingest.Handler().ServeHTTP(w, r) }),
		Authenticate: func(r *http.Request) (dashboard.Caller, error) {
			p, err := auth.Authenticate(r)
			return dashboard.Caller{Tenant: p.Tenant, Name: p.Name, Admin: p.Has("admin")}, err
		},
		Load: s.store.Load, Each: s.eachRow, Queue: s.queue, Servers: s.envs.serverHealth, Tenants: s.cfg.tenantNames(), Log: s.log,
	}
	if s.metrics != nil {
		cfg.Health = s.metrics.toolHealth
	}
	return dashboard.New(cfg)
}

// eachRow is the list as the pages read it.
func (s *service) eachRow(tenant string, fn func(dashboard.Row) bool) (whole bool) {
	return s.ingest.EachTask(tenant, func(t ingest.Summary) bool {
		return fn(dashboard.Row{
			ID: t.ID, Status: t.Status, Reason: t.Reason, Intent: t.Intent, Environment: t.Environment,
			AcceptedAt: t.AcceptedAt, StartedAt: t.StartedAt, EndedAt: t.EndedAt, Usage: t.Usage, LeftTotal: t.LeftTotal,
			Worker: t.Worker, ChangedAt: t.ChangedAt,
		})
	})
}

func (s *service) queue(ctx context.Context, tenant string) (dashboard.Queue, error) {
	q, err := s.store.Stats(ctx, tenant)
	return dashboard.Queue{Pending: q.Pending, InFlight: q.InFlight, Oldest: q.Oldest}, err
}

// serverHealth asks every MCP server for its tools, all at once.
func (es *environments) serverHealth(ctx context.Context) []dashboard.ServerHealth {
	out := make([]dashboard.ServerHealth, len(es.servers))
	var wg sync.WaitGroup
	for i, m := range es.servers {
		wg.Go(func() {
			tools, err := m.List(ctx)
			out[i] = dashboard.ServerHealth{Environment: m.environment, Name: m.Name(), Tools: len(tools), Err: err, Stderr: m.Stderr()}
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b dashboard.ServerHealth) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// toolHealth is what the metrics say of every tool that was called in this
// process.
func (m *metrics) toolHealth() []dashboard.ToolHealth {
	r := prometheus.NewRegistry()
	r.MustRegister(m.steps, m.toolTime)
	families, err := r.Gather()
	if err != nil {
		return nil // two collectors of our own cannot disagree
	}
	type key struct{ environment, tool string }
	seen := map[key]*dashboard.ToolHealth{}
	var out []dashboard.ToolHealth
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			label := map[string]string{}
			for _, l := range sample.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			k := key{label["environment"], label["tool"]}
			h := seen[k]
			if h == nil {
				h = &dashboard.ToolHealth{Environment: k.environment, Tool: k.tool}
				seen[k] = h
			}
			if hist := sample.GetHistogram(); hist != nil && hist.GetSampleCount() > 0 {
				h.Mean = time.Duration(hist.GetSampleSum() / float64(hist.GetSampleCount()) * float64(time.Second))
				continue
			}
			n := uint64(sample.GetCounter().GetValue())
			h.Calls += n
			if label["outcome"] != "ok" {
				h.Failed += n
			}
		}
	}
	for _, h := range seen {
		out = append(out, *h)
	}
	return out
}

package main

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// metrics are the numbers of the worker's side; ingest, the notifier and the
// gateway register their own. Labels are of bounded number: tenants, reasons,
// configured tools and environments; never ids or keys.
type metrics struct {
	running      prometheus.Gauge
	settled      *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	queued       *prometheus.HistogramVec
	takeovers    *prometheus.CounterVec
	lockLosses   *prometheus.CounterVec
	steps        *prometheus.CounterVec
	toolTime     *prometheus.HistogramVec
	plannerTime  *prometheus.HistogramVec
	tokens       *prometheus.CounterVec
	observations *prometheus.HistogramVec
}

// Buckets in seconds: short ones for the store's own pace, long ones for tools
// and planners.
var (
	shortBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	longBuckets  = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
)

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "goalkeeper", Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "goalkeeper", Name: name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(h)
		return h
	}
	m := &metrics{
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "goalkeeper", Name: "tasks_running", Help: "Tasks that this worker is driving.",
		}),
		settled:      counter("tasks_settled_total", "Tasks settled.", "tenant", "status", "reason"),
		duration:     histogram("task_duration_seconds", "From acceptance to the settled end.", longBuckets, "tenant"),
		queued:       histogram("task_queue_seconds", "From acceptance to the first start.", longBuckets, "tenant"),
		takeovers:    counter("takeovers_total", "Tasks taken that had a journal already.", "tenant"),
		lockLosses:   counter("lock_losses_total", "Tasks left because another worker had taken over.", "tenant"),
		steps:        counter("steps_total", "Tool calls by outcome.", "environment", "tool", "outcome"),
		toolTime:     histogram("tool_duration_seconds", "Time of a tool call with its retries.", longBuckets, "environment", "tool"),
		plannerTime:  histogram("planner_duration_seconds", "Time of a planner's decision.", longBuckets, "environment", "result"),
		tokens:       counter("planner_tokens_total", "Tokens that planners reported.", "tenant", "environment"),
		observations: histogram("observation_duration_seconds", "Time of reading the state.", shortBuckets, "environment", "result"),
	}
	r.MustRegister(m.running)
	return m
}

// Taken implements worker.Observer.
func (m *metrics) Taken(tenant string, queued time.Duration, resumed bool) {
	if resumed {
		m.takeovers.WithLabelValues(tenant).Inc()
		return
	}
	m.queued.WithLabelValues(tenant).Observe(queued.Seconds())
}

// Settled implements worker.Observer.
func (m *metrics) Settled(tenant string, r goal.Result, took time.Duration) {
	m.settled.WithLabelValues(tenant, string(r.Status), string(r.Reason)).Inc()
	m.duration.WithLabelValues(tenant).Observe(took.Seconds())
}

// Running implements worker.Observer.
func (m *metrics) Running(n int) { m.running.Set(float64(n)) }

// LockLost implements worker.Observer.
func (m *metrics) LockLost(tenant string) { m.lockLosses.WithLabelValues(tenant).Inc() }

// queueCollector reads the queues' depth when it is scraped.
type queueCollector struct {
	store   *kv.Store
	tenants []string
	depth   *prometheus.Desc
	flight  *prometheus.Desc
	oldest  *prometheus.Desc
}

func newQueueCollector(s *kv.Store, tenants []string) *queueCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("goalkeeper_queue_"+name, help, []string{"tenant"}, nil)
	}
	return &queueCollector{
		store: s, tenants: tenants, depth: desc("depth", "Goals that no worker has taken yet."),
		flight: desc("in_flight", "Goals that a worker holds."), oldest: desc("oldest_seconds", "Age of the oldest goal not taken."),
	}
}

// Describe implements prometheus.Collector.
func (q *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.depth
	ch <- q.flight
	ch <- q.oldest
}

// Collect implements prometheus.Collector. A queue that does not answer within
// two seconds is left out of this scrape.
func (q *queueCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, t := range q.tenants {
		s, err := q.store.Stats(ctx, t)
		if err != nil {
			continue
		}
		age := 0.0
		if !s.Oldest.IsZero() {
			age = time.Since(s.Oldest).Seconds()
		}
		ch <- prometheus.MustNewConstMetric(q.depth, prometheus.GaugeValue, float64(s.Pending), t)
		ch <- prometheus.MustNewConstMetric(q.flight, prometheus.GaugeValue, float64(s.InFlight), t)
		ch <- prometheus.MustNewConstMetric(q.oldest, prometheus.GaugeValue, age, t)
	}
}

// observed wraps an environment so that its planner, tools and state are
// counted and traced.
func (m *metrics) observed(e agent.Environment, tr trace.Tracer) agent.Environment {
	o := observedEnv{m: m, env: e.Name, tracer: tr}
	e.Planner, e.Tools, e.State = observedPlanner{o, e.Planner}, observedTools{o, e.Tools}, observedState{o, e.State}
	return e
}

type observedEnv struct {
	m      *metrics
	env    string
	tracer trace.Tracer
}

type observedPlanner struct {
	observedEnv
	agent.Planner
}

// Decide implements agent.Planner. Span names follow the GenAI conventions.
func (p observedPlanner) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	ctx, span := p.tracer.Start(ctx, "plan "+p.env, trace.WithAttributes(attribute.String("gen_ai.operation.name", "plan")))
	defer span.End()
	start := time.Now()
	a, err := p.Planner.Decide(ctx, s)
	result := "ok"
	var pe *agent.PlannerError
	switch {
	case errors.As(err, &pe):
		result = string(pe.Kind)
	case err != nil:
		result = "error"
	}
	if err != nil {
		span.SetStatus(codes.Error, result)
	}
	span.SetAttributes(attribute.Int64("gen_ai.usage.total_tokens", a.Tokens))
	p.m.plannerTime.WithLabelValues(p.env, result).Observe(time.Since(start).Seconds())
	p.m.tokens.WithLabelValues(s.Tenant, p.env).Add(float64(a.Tokens))
	return a, err
}

// chatPlanner traces the request to a model; its span is inside the plan's.
type chatPlanner struct {
	agent.Planner
	tracer     trace.Tracer
	model, url string
}

// Decide implements agent.Planner. The span holds no message and no key.
func (p chatPlanner) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", p.model),
	}
	if u, err := url.Parse(p.url); err == nil {
		attributes = append(attributes, attribute.String("server.address", u.Hostname()))
	}
	ctx, span := p.tracer.Start(ctx, "chat "+p.model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	defer span.End()
	a, err := p.Planner.Decide(ctx, s)
	if err != nil {
		kind := "error"
		if pe, ok := errors.AsType[*agent.PlannerError](err); ok {
			kind = string(pe.Kind)
		}
		span.SetStatus(codes.Error, kind)
		span.SetAttributes(attribute.String("error.type", kind))
	}
	return a, err
}

type observedTools struct {
	observedEnv
	agent.Toolbox
}

// Call implements agent.Toolbox. Arguments, results and keys stay out of the
// span.
func (t observedTools) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	ctx, span := t.tracer.Start(ctx, "execute_tool "+c.Tool, trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", c.Tool),
		attribute.Int("goalkeeper.step", c.Step), attribute.Bool("goalkeeper.repeated", c.Repeated),
	))
	defer span.End()
	c.Traceparent = traceparent(ctx, c.Traceparent)
	start := time.Now()
	out, err := t.Toolbox.Call(ctx, c)
	kind := string(out.Kind)
	if err != nil {
		kind = "refused"
	}
	if err != nil || !out.OK() {
		span.SetStatus(codes.Error, kind)
		span.SetAttributes(attribute.String("error.type", kind))
	}
	span.SetAttributes(attribute.Bool("goalkeeper.replayed", out.Replayed))
	t.m.steps.WithLabelValues(t.env, c.Tool, kind).Inc()
	t.m.toolTime.WithLabelValues(t.env, c.Tool).Observe(time.Since(start).Seconds())
	return out, err
}

type observedState struct {
	observedEnv
	agent.State
}

// Observe implements agent.State.
func (s observedState) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	ctx, span := s.tracer.Start(ctx, "goalkeeper.observe")
	defer span.End()
	start := time.Now()
	o, err := s.State.Observe(ctx, entities)
	result := "ok"
	if err != nil {
		result = "unknown"
		span.SetStatus(codes.Error, result)
	}
	s.m.observations.WithLabelValues(s.env, result).Observe(time.Since(start).Seconds())
	return o, err
}

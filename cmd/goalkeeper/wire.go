package main

import (
	"context"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// The adapters in this file turn kv's concrete values into the interfaces that
// the stages declare; they add nothing.

// workerStore is the store as a worker needs it.
type workerStore struct{ *kv.Store }

// Lock implements worker.Store.
func (s workerStore) Lock(ctx context.Context, tenant, task, owner string, ttl time.Duration) (worker.Lock, error) {
	l, err := s.Store.Lock(ctx, tenant, task, owner, ttl)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// BeginJournal implements worker.Store.
func (s workerStore) BeginJournal(acc goal.Accepted) worker.Journal { return s.Store.BeginJournal(acc) }

// OpenJournal implements worker.Store.
func (s workerStore) OpenJournal(ctx context.Context, acc goal.Accepted) (worker.Journal, []goal.Event, *goal.Result, error) {
	j, events, result, err := s.Store.OpenJournal(ctx, acc)
	if err != nil {
		return nil, nil, nil, err
	}
	return j, events, result, nil
}

// workerQueue is a tenant's queue as a worker needs it.
type workerQueue struct{ *kv.Queue }

// Next implements worker.Queue.
func (q workerQueue) Next(ctx context.Context) (worker.Job, error) {
	d, err := q.Queue.Next(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	return job{d}, nil
}

type job struct{ *kv.Delivery }

// Accepted implements worker.Job.
func (j job) Accepted() goal.Accepted { return j.Delivery.Accepted }

// Redelivered implements worker.Job.
func (j job) Redelivered() bool { return j.Delivered > 1 }

// Environments implements ingest.Catalog. An environment whose tools cannot be
// listed now (an MCP server is away) is shown without them.
func (es *environments) Environments(ctx context.Context) ([]ingest.Environment, error) {
	out := make([]ingest.Environment, 0, len(es.all))
	for _, e := range es.all {
		shown := ingest.Environment{Name: e.Name, Roles: e.Roles}
		specs, err := e.Tools.List(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			es.log.WarnContext(ctx, "tools could not be listed", "environment", e.Name, "error", err)
		}
		for _, s := range specs {
			shown.Tools = append(shown.Tools, ingest.Tool{
				Name: s.Name, Environment: e.Name, Description: s.Description, InputSchema: s.InputSchema, Replay: s.Replay, Roles: s.Roles,
			})
		}
		out = append(out, shown)
	}
	return out, nil
}

// preflight checks a goal before it is accepted.
func (es *environments) preflight(ctx context.Context, p ingest.Principal, g goal.Goal, dry bool) (ingest.Report, error) {
	env, ok := es.Environment(p.Tenant, g.EnvironmentName())
	if !ok {
		problem := goal.NewProblem(goal.GoalInvalid, "the environment is not known")
		problem.Errors = []goal.FieldError{{Pointer: "/environment", Detail: "no environment of this name"}}
		return ingest.Report{}, problem
	}
	caller := agent.Caller{Roles: p.Roles}
	if es.balance != nil {
		caller.Balance = func(ctx context.Context) (int64, error) { return es.balance.Left(ctx, p.Tenant) }
	}
	if !dry {
		problem, err := agent.Admit(ctx, env, g, caller)
		return ingest.Report{Refusal: problem}, err
	}
	r, err := agent.Preflight(ctx, env, g, caller)
	if err != nil {
		return ingest.Report{}, err
	}
	out := ingest.Report{Verdict: ingest.Verdict(r.Verdict), Refusal: r.Problem()}
	for _, c := range r.Checks {
		out.Checks = append(out.Checks, ingest.Check{Name: c.Name, OK: c.OK, Detail: c.Detail, Differences: c.Differences})
	}
	return out, nil
}

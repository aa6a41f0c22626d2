package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// storeTimes measures the store as the stages see it: with the group commit
// and every retry.
type storeTimes struct{ took *prometheus.HistogramVec }

func newStoreTimes(r prometheus.Registerer) storeTimes {
	t := storeTimes{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "goalkeeper", Name: "store_duration_seconds", Buckets: shortBuckets,
		Help: "Time of a store operation; result failed: the store did not answer, or not in time.",
	}, []string{"operation", "result"})}
	r.MustRegister(t.took)
	return t
}

// observe counts an operation that began at start. An answer that a stage is
// prepared for (exists, not found, fenced, locked, full) is no failure.
func (t storeTimes) observe(operation string, start time.Time, err error) {
	result := "ok"
	if errors.Is(err, goal.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		result = "failed"
	}
	t.took.WithLabelValues(operation, result).Observe(time.Since(start).Seconds())
}

// submitStore is the store as ingest needs it, measured.
type submitStore struct {
	*kv.Store

	times storeTimes
}

// Submit implements ingest.Queue.
func (s submitStore) Submit(ctx context.Context, sub goal.Submission) (goal.Accepted, bool, error) {
	start := time.Now()
	acc, created, err := s.Store.Submit(ctx, sub)
	s.times.observe("submit", start, err)
	return acc, created, err
}

// Load implements ingest.Queue.
func (s submitStore) Load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	start := time.Now()
	snap, err := s.Store.Load(ctx, tenant, task)
	s.times.observe("load", start, err)
	return snap, err
}

// Trace implements ingest.Queue.
func (s submitStore) Trace(ctx context.Context, tenant, task string, seq uint64) ([]goal.Event, error) {
	start := time.Now()
	events, err := s.Store.Trace(ctx, tenant, task, seq)
	s.times.observe("trace", start, err)
	return events, err
}

// taskStore is the store as a worker needs it, measured.
type taskStore struct {
	worker.Store

	times storeTimes
}

// Lock implements worker.Store.
func (s taskStore) Lock(ctx context.Context, tenant, task, owner string, ttl time.Duration) (worker.Lock, error) {
	start := time.Now()
	l, err := s.Store.Lock(ctx, tenant, task, owner, ttl)
	s.times.observe("lock", start, err)
	return l, err
}

// BeginJournal implements worker.Store.
func (s taskStore) BeginJournal(acc goal.Accepted) worker.Journal {
	return timedJournal{s.Store.BeginJournal(acc), s.times}
}

// OpenJournal implements worker.Store.
func (s taskStore) OpenJournal(ctx context.Context, acc goal.Accepted) (worker.Journal, []goal.Event, *goal.Result, error) {
	start := time.Now()
	j, events, result, err := s.Store.OpenJournal(ctx, acc)
	s.times.observe("open_journal", start, err)
	if err != nil {
		return nil, nil, nil, err
	}
	return timedJournal{j, s.times}, events, result, nil
}

// timedJournal measures appends and the end.
type timedJournal struct {
	worker.Journal

	times storeTimes
}

// Append implements agent.Journal.
func (j timedJournal) Append(ctx context.Context, events ...goal.Event) error {
	start := time.Now()
	err := j.Journal.Append(ctx, events...)
	j.times.observe("append", start, err)
	return err
}

// Settle implements worker.Journal.
func (j timedJournal) Settle(ctx context.Context, r goal.Result) (goal.Result, error) {
	start := time.Now()
	won, err := j.Journal.Settle(ctx, r)
	j.times.observe("settle", start, err)
	return won, err
}

// deliveryStore is the store as the notifier needs it, measured.
type deliveryStore struct {
	*kv.Store

	times storeTimes
}

// CreateDelivery implements notifier.Records.
func (s deliveryStore) CreateDelivery(ctx context.Context, d goal.Delivery) (uint64, error) {
	start := time.Now()
	rev, err := s.Store.CreateDelivery(ctx, d)
	s.times.observe("create_delivery", start, err)
	return rev, err
}

// UpdateDelivery implements notifier.Records.
func (s deliveryStore) UpdateDelivery(ctx context.Context, d goal.Delivery, rev uint64) (uint64, error) {
	start := time.Now()
	next, err := s.Store.UpdateDelivery(ctx, d, rev)
	s.times.observe("update_delivery", start, err)
	return next, err
}

package kv

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	// outlive is how long a task's records outlive its goal. A result that went
	// before its goal would let the goal run again, so the margin covers clocks
	// that differ; what outlives its goal is told apart by the goal's sequence.
	outlive = 2 * time.Minute
	// dedupeWindow is short: it costs memory per id and a scan at every start,
	// and only spares a second read. Create-only subjects are what dedupes.
	dedupeWindow = 30 * time.Second
	// manyConsumers is above the server's default of 1,000 per stream.
	manyConsumers = 10_000
)

// provision creates or updates what all tenants share.
func (s *Store) provision(ctx context.Context) error {
	if err := s.ensureAll(ctx, s.sharedStreams()); err != nil {
		return err
	}
	return s.ensureObjects(ctx)
}

func (s *Store) sharedStreams() []jetstream.StreamConfig {
	kept := s.conf.Retention + outlive
	locks := s.bucket(goal.LocksBucket, 0)
	if s.conf.LocksInMemory {
		locks.Storage = jetstream.MemoryStorage
	}
	events := s.stream(goal.EventsStream, kept, "goals.events.>", "goals.notes.>")
	events.AllowDirect, events.AllowMsgTTL, events.MaxConsumers = true, true, manyConsumers
	deliveries := s.stream(goal.DeliveriesStream, 0, "deliveries.>")
	deliveries.AllowDirect, deliveries.AllowMsgTTL, deliveries.AllowMsgSchedules = true, true, true
	deliveries.AllowRollup = true // the server forces it on a stream with schedules
	return []jetstream.StreamConfig{
		events, deliveries, locks,
		s.bucket(goal.ResultsBucket, kept),
		s.bucket(goal.CancelsBucket, kept),
		s.bucket(goal.CallsBucket, 0),
		s.bucket(goal.StateBucket, 0),
		s.bucket(goal.BalancesBucket, 0),
	}
}

func (s *Store) tenantStreams(tenant string) []jetstream.StreamConfig {
	queue := s.stream(goal.GoalsStream(tenant), s.conf.Retention, goal.QueueSubject(tenant, "*"))
	queue.MaxMsgsPerSubject, queue.Discard, queue.DiscardNewPerSubject = 1, jetstream.DiscardNew, true
	queue.AllowDirect, queue.AllowMsgTTL = true, true
	intake := s.stream(goal.IntakeStream(tenant), s.conf.Retention, goal.SubmitSubject(tenant))
	intake.Duplicates = min(2*time.Minute, s.conf.Retention) // public contract: the ack says that a key was seen
	intake.AllowDirect = true
	return []jetstream.StreamConfig{queue, intake}
}

// stream is a stream with Limits retention on file.
func (s *Store) stream(name string, maxAge time.Duration, subjects ...string) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: name, Subjects: subjects, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
		MaxConsumers: -1, MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1,
		Discard: jetstream.DiscardOld, MaxAge: maxAge, Replicas: s.conf.Replicas, Duplicates: dedupeWindow,
	}
	if maxAge > 0 {
		c.Duplicates = min(c.Duplicates, maxAge)
	}
	return c
}

// bucket is a stream that NATS key-value clients can read. It has no limit
// markers: an expired key leaves nothing behind, so that a create-only write
// finds an empty subject.
func (s *Store) bucket(name string, maxAge time.Duration) jetstream.StreamConfig {
	c := s.stream("KV_"+name, maxAge, "$KV."+name+".>")
	c.MaxMsgsPerSubject, c.Discard = 1, jetstream.DiscardNew
	c.AllowRollup, c.DenyDelete, c.AllowDirect, c.AllowMsgTTL = true, true, true, true
	c.MaxConsumers = manyConsumers
	return c
}

func (s *Store) ensureAll(ctx context.Context, configs []jetstream.StreamConfig) error {
	for _, c := range configs {
		if err := s.ensure(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// ensure creates the stream, or updates the settings that are ours and leaves
// an operator's (placement, byte and message limits, compression, metadata).
func (s *Store) ensure(ctx context.Context, want jetstream.StreamConfig) error {
	for attempt := 0; ; attempt++ {
		err := s.ensureOnce(ctx, want)
		if err == nil {
			return nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return fmt.Errorf("kv: provision stream %s: %w", want.Name, err)
		}
	}
}

func (s *Store) ensureOnce(ctx context.Context, want jetstream.StreamConfig) error {
	ctx, cancel := attemptContext(ctx, provisionTimeout)
	defer cancel()
	have, err := s.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = s.js.CreateStream(ctx, want)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		have, err = s.js.Stream(ctx, want.Name) // another process was first
	}
	if err != nil {
		return err
	}
	old := have.CachedInfo().Config
	merged := overlay(old, want)
	if reflect.DeepEqual(old, merged) {
		return nil
	}
	_, err = s.js.UpdateStream(ctx, merged)
	return err
}

// overlay is old with the settings that the code depends on.
func overlay(old, want jetstream.StreamConfig) jetstream.StreamConfig {
	c := old
	c.Subjects, c.MaxAge, c.Replicas, c.Duplicates = want.Subjects, want.MaxAge, want.Replicas, want.Duplicates
	c.Storage, c.Retention = want.Storage, want.Retention
	c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject = want.MaxMsgsPerSubject, want.Discard, want.DiscardNewPerSubject
	c.AllowDirect, c.AllowMsgTTL, c.AllowMsgSchedules = want.AllowDirect, want.AllowMsgTTL, want.AllowMsgSchedules
	c.AllowRollup = want.AllowRollup
	return c
}

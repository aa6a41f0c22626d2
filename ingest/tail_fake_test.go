package ingest_test

import (
	"context"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// fakeTail is a tail that a test feeds. It is open from the start.
type fakeTail struct {
	mu     sync.Mutex
	seq    uint64
	events chan func(ingest.BatchFunc)
	queue  chan goal.Accepted
	old    []goal.Accepted             // what TailQueue finds
	recall []func(fn ingest.BatchFunc) // what RecallEvents finds
	hold   chan struct{}               // RecallEvents waits for it, where set
	breaks chan error                  // ends TailEvents
	tailed chan struct{}               // one for every TailEvents that began
}

func newFakeTail() *fakeTail {
	return &fakeTail{
		events: make(chan func(ingest.BatchFunc)), queue: make(chan goal.Accepted), breaks: make(chan error), tailed: make(chan struct{}, 16),
	}
}

// bring hands events to the tail and returns when it has taken them.
func (f *fakeTail) bring(tenant, task string, events ...goal.Event) {
	f.mu.Lock()
	f.seq++
	seq := f.seq
	f.mu.Unlock()
	done := make(chan struct{})
	f.events <- func(fn ingest.BatchFunc) {
		fn(seq, tenant, task, events)
		close(done)
	}
	<-done
}

func (f *fakeTail) TailHead(context.Context) (uint64, error) { return 0, nil }

func (f *fakeTail) TailEvents(ctx context.Context, _ uint64, fn ingest.BatchFunc) error {
	f.tailed <- struct{}{}
	for {
		select {
		case e := <-f.events:
			e(fn)
		case err := <-f.breaks:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeTail) RecallEvents(ctx context.Context, _ string, _ time.Time, fn ingest.BatchFunc) error {
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, r := range f.recall {
		r(fn)
	}
	return nil
}

func (f *fakeTail) TailQueue(ctx context.Context, _ string, _ int, _ func(string, uint64) bool, fn func(goal.Accepted), caughtUp func()) error {
	for _, acc := range f.old {
		acc.Stored = acc.At
		fn(acc)
	}
	caughtUp()
	for {
		select {
		case acc := <-f.queue:
			fn(acc)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

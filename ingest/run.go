package ingest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// BatchFunc takes the events of one append to a task's journal, or one note.
type BatchFunc = func(seq uint64, tenant, task string, events []goal.Event)

// Tail reads the streams in their order. Each method is called from one
// goroutine per tenant at a time and returns when ctx ends, or when it is cut
// off for good; then it is called again.
type Tail interface {
	// TailHead is the sequence of the last message of the journals.
	TailHead(ctx context.Context) (uint64, error)
	// TailEvents brings what is appended to any journal from sequence from on.
	TailEvents(ctx context.Context, from uint64, fn BatchFunc) error
	// RecallEvents brings what a tenant's journals hold since that time, and
	// returns when it has brought all that was there when it was called.
	RecallEvents(ctx context.Context, tenant string, since time.Time, fn BatchFunc) error
	// TailQueue brings about the keep newest submissions of a tenant, calls
	// caughtUp, and brings what is submitted from then on, but for those that
	// known says are known.
	TailQueue(ctx context.Context, tenant string, keep int, known func(task string, seq uint64) bool, fn func(goal.Accepted), caughtUp func()) error
}

// Run keeps the views live and takes direct submissions until ctx ends, and
// waits for what it started. What fails is tried again, so it returns nil. It is
// called once.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	if s.cfg.Tail != nil {
		all.Go(func() { s.runEvents(ctx) })
		for _, tenant := range s.cfg.Tenants {
			all.Go(func() { s.runList(ctx, tenant) })
		}
	}
	if s.cfg.Intake != nil {
		for _, tenant := range s.cfg.Tenants {
			all.Go(func() { s.runIntake(ctx, tenant) })
			all.Go(func() { s.runRequests(ctx, tenant) })
		}
	}
	<-ctx.Done()
	all.Wait()
	return nil
}

// runEvents is the one reader of the journals in this process. Lists and every
// watcher live on it.
func (s *Server) runEvents(ctx context.Context) {
	next := uint64(0)
	s.keep(ctx, "tail of the events", func(ctx context.Context) error {
		head, err := s.cfg.Tail.TailHead(ctx)
		if err != nil {
			return err
		}
		if next == 0 || next > head+1 { // the first time, or the store was restored from an older copy
			next = head + 1
		}
		s.lists.begin()
		return s.cfg.Tail.TailEvents(ctx, next, func(seq uint64, tenant, task string, events []goal.Event) {
			next = seq + 1
			s.lists.apply(tenant, task, events)
			s.hub.publish(tenant, task, events)
		})
	})
}

// runList rebuilds the tenant's list and keeps it.
func (s *Server) runList(ctx context.Context, tenant string) {
	s.keep(ctx, "list of "+tenant, func(ctx context.Context) error {
		caughtUp := make(chan struct{})
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			tail, stop := context.WithCancel(ctx)
			defer stop()
			known := func(task string, seq uint64) bool { return s.lists.knows(tenant, task, seq) }
			err := s.cfg.Tail.TailQueue(tail, tenant, s.cfg.ListSize, known, s.lists.accept, func() {
				close(caughtUp)
				if s.cfg.Alone {
					stop()
				}
			})
			if tail.Err() != nil && ctx.Err() == nil {
				<-ctx.Done() // every later goal comes through this process
			}
			return err
		})
		g.Go(func() error {
			select {
			case <-caughtUp:
				return s.recall(ctx, tenant)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		return g.Wait()
	})
}

// recall folds in what happened to the listed tasks before the tail began.
func (s *Server) recall(ctx context.Context, tenant string) error {
	if since, ok := s.lists.oldest(tenant); ok {
		err := s.cfg.Tail.RecallEvents(ctx, tenant, since, func(_ uint64, tenant, task string, events []goal.Event) {
			s.lists.apply(tenant, task, events)
		})
		if err != nil {
			return err
		}
	}
	s.lists.rebuilt(tenant)
	return nil
}

// keep runs what must not end before ctx does, again and again, with a pause
// that grows to 5 s while it fails at once.
func (s *Server) keep(ctx context.Context, name string, run func(context.Context) error) {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause := least
	for ctx.Err() == nil {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > most {
			pause = least
		}
		s.cfg.Log.WarnContext(ctx, "cut off, goes on", "what", name, "error", err)
		t := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter needs no secrecy
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, most)
	}
}

package worker

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// slots bounds the goals that run at a time. Waiters are served in order.
type slots struct {
	sem *semaphore.Weighted

	mu   sync.Mutex
	free int             // guarded by mu
	line []chan struct{} // who waits in waitFree, in order, by its wake; guarded by mu
}

// headStart is what the first in the line has over the next one to take a goal
// and the free slot. Only who has goals, or was not asked since it had, is in the
// line, so that it is hardly ever waited in vain.
const headStart = 5 * time.Millisecond

func newSlots(n int) *slots {
	return &slots{sem: semaphore.NewWeighted(int64(n)), free: n}
}

// acquire takes a slot, or reports false when ctx ends first.
func (s *slots) acquire(ctx context.Context) bool {
	if s.sem.Acquire(ctx, 1) != nil {
		return false
	}
	s.taken()
	return true
}

// tryAcquire takes a slot if one is free and nobody waits for it.
func (s *slots) tryAcquire() bool {
	if !s.sem.TryAcquire(1) {
		return false
	}
	s.taken()
	return true
}

func (s *slots) taken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free--
}

func (s *slots) release() {
	s.mu.Lock()
	s.free++
	for _, wake := range s.line {
		select {
		case wake <- struct{}{}:
		default: // it has not looked yet since it was woken before
		}
	}
	s.mu.Unlock()
	s.sem.Release(1)
}

// waitFree waits until some slot is free, without taking it. Who waits longer
// comes first: else a tenant whose goals are at hand could be the faster one
// again and again.
func (s *slots) waitFree(ctx context.Context) bool {
	me := make(chan struct{}, 1)
	s.mu.Lock()
	s.line = append(s.line, me)
	s.mu.Unlock()
	defer s.leave(me)
	for waited := false; ; {
		s.mu.Lock()
		free, place := s.free, slices.Index(s.line, me)
		s.mu.Unlock()
		if free > place || free > 0 && waited { // there is one for everybody before
			return ctx.Err() == nil
		}
		var turn <-chan time.Time
		if free > 0 {
			turn = time.After(time.Duration(place) * headStart)
		}
		waited = false
		select {
		case <-me:
		case <-turn:
			waited = true
		case <-ctx.Done():
			return false
		}
	}
}

// leave takes a waiter out of the line. The others move up; who is first then
// still lets the head start pass for the slot that is free now.
func (s *slots) leave(me chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = slices.DeleteFunc(s.line, func(c chan struct{}) bool { return c == me })
}

// backoff waits 50 ms, doubling to 1 s, each ±50 %: an outage is not made longer.
type backoff struct{ n int }

func (b *backoff) reset() { b.n = 0 }

// next is the time to wait before the next try.
func (b *backoff) next() time.Duration {
	d := min(50*time.Millisecond<<min(b.n, 5), time.Second)
	b.n++
	return d/2 + rand.N(d) //nolint:gosec // jitter needs no secret randomness
}

func (b *backoff) wait(ctx context.Context) {
	t := time.NewTimer(b.next())
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// every calls f once in each d until f returns false or the returned function is
// called, which waits for the call that runs and may be repeated. There is a
// goroutine only while f runs: most goals end before.
func every(d time.Duration, f func() bool) (stop func()) {
	turn := make(chan bool, 1) // holds whether to go on, while f does not run
	next := time.Now().Add(d)
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		on := <-turn
		if on = on && f(); on {
			next = next.Add(d)
			t.Reset(max(0, time.Until(next))) // f was slow, or is late: at once
		}
		turn <- on
	})
	turn <- true // t is set by now
	return func() {
		<-turn
		t.Stop()
		turn <- false
	}
}

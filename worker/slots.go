package worker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// slots bounds the goals that run at a time. Waiters are served in order.
type slots struct {
	sem *semaphore.Weighted

	mu   sync.Mutex
	free int           // guarded by mu
	wake chan struct{} // closed and replaced when a slot becomes free; guarded by mu
}

func newSlots(n int) *slots {
	return &slots{sem: semaphore.NewWeighted(int64(n)), free: n, wake: make(chan struct{})}
}

// acquire takes a slot, or reports false when ctx ends first.
func (s *slots) acquire(ctx context.Context) bool {
	if s.sem.Acquire(ctx, 1) != nil {
		return false
	}
	s.mu.Lock()
	s.free--
	s.mu.Unlock()
	return true
}

func (s *slots) release() {
	s.mu.Lock()
	s.free++
	close(s.wake)
	s.wake = make(chan struct{})
	s.mu.Unlock()
	s.sem.Release(1)
}

// waitFree waits until some slot is free, without taking it.
func (s *slots) waitFree(ctx context.Context) bool {
	for {
		s.mu.Lock()
		free, wake := s.free > 0, s.wake
		s.mu.Unlock()
		if free {
			return ctx.Err() == nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return false
		}
	}
}

// backoff waits 50 ms, doubling to 5 s, each ±50 %.
type backoff struct{ n int }

func (b *backoff) reset() { b.n = 0 }

// next is the time to wait before the next try.
func (b *backoff) next() time.Duration {
	d := min(50*time.Millisecond<<min(b.n, 7), 5*time.Second)
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

// every calls f each d until f returns false or the returned function is
// called, which waits for the call that runs and may be repeated.
func every(d time.Duration, f func() bool) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			if !f() {
				return
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() { close(quit) })
		<-done
	}
}

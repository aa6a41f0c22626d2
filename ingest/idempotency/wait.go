package idempotency

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// flights are the calls that this process runs. A repetition of one of them
// need not ask the store, and a waiter is woken at once. For calls of other
// processes waiters poll: a watch per key would cost a consumer each and sleep
// on for many seconds after a restart of the server.
type flights struct {
	waiters chan struct{} // a slot for each request that waits
	mu      sync.Mutex
	running map[string]*flight
}

type flight struct {
	rec  Record        // as claimed; never changed
	done chan struct{} // closed when the outcome is stored
}

const (
	firstPoll = 20 * time.Millisecond
	lastPoll  = 500 * time.Millisecond
)

func (f *flights) start(c *claim) *flight {
	fl := &flight{rec: c.rec, done: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running = make(map[string]*flight)
	}
	f.running[c.id] = fl
	return fl
}

// end wakes the waiters. It may be repeated.
func (f *flights) end(id string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[id] == fl {
		delete(f.running, id)
		close(fl.done)
	}
}

func (f *flights) find(id string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[id]
}

// wait blocks until it makes sense to claim again, and reports false when the
// deadline passes first, the caller leaves or too many wait already.
func (f *flights) wait(ctx context.Context, g *Guard, id string, cur found, deadline time.Time) bool {
	if !time.Now().Before(deadline) {
		return false
	}
	select {
	case f.waiters <- struct{}{}:
		defer func() { <-f.waiters }()
	default:
		return false
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if fl := f.find(id); fl != nil {
		select {
		case <-fl.done:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return f.poll(ctx, g, id, cur)
}

// poll waits for the record of another process to change.
func (f *flights) poll(ctx context.Context, g *Guard, id string, cur found) bool {
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		select {
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // jitter
		case <-ctx.Done():
			return false
		}
		now, err := g.ledger.read(ctx, id)
		if err != nil || now.Owner != cur.Owner || now.State != cur.State {
			return ctx.Err() == nil // the claim looks again, also at an error
		}
	}
}

// preferredWait reads "Prefer: wait=N" (RFC 7240), in seconds, at most MaxWait.
func preferredWait(r *http.Request) (wait time.Duration, applied string) {
	for _, line := range r.Header.Values("Prefer") {
		for pref := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(pref), "=")
			n, err := strconv.Atoi(strings.Trim(strings.TrimSpace(value), `"`))
			if !strings.EqualFold(strings.TrimSpace(name), "wait") || err != nil || n <= 0 {
				continue
			}
			wait = min(time.Duration(min(n, 1000))*time.Second, MaxWait)
			return wait, "wait=" + strconv.Itoa(int(wait/time.Second))
		}
	}
	return 0, ""
}

package notifier

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Bounds of what runs and waits, from the public contract section 4. A
// destination is a tenant's origin (scheme, host, port).
const (
	maxInFlight       = 256 // in all
	maxPerDestination = 8
	// What has not answered fast of late may fill three quarters of all slots,
	// what failed or was slow half of them: receivers in good health always
	// find a slot, however many others hang.
	maxUnproven = maxInFlight * 3 / 4
	maxSuspect  = maxInFlight / 2
	// A destination starts with few requests at a time and doubles with every
	// good answer, so that one that came back is not run over at once.
	firstLimit = 2

	// How many may wait for one destination, by its standing; the rest is put
	// off. The sum is bounded by maxHeld.
	roomProven  = 2048
	roomFresh   = 256
	roomSuspect = 64

	fastAnswer = 2 * time.Second // a slower one does not prove a destination
)

// Breaker settings. Convoy's numbers, and an open time that doubles.
const (
	openAfter    = 5 // outages in a row
	openRatio    = 0.7
	openMinCount = 10
	openWindow   = 5 * time.Minute
	openFirst    = 30 * time.Second
	openLongest  = 15 * time.Minute
)

// Deliveries that are put off come back one after the other.
const (
	spreadLeast = time.Millisecond
	spreadMost  = 250 * time.Millisecond
	busyWait    = 2 * time.Second // least wait of what found a full queue
	putOffMost  = time.Hour
)

// Destinations that were not used for forgetAfter are forgotten when there are
// keepDestinations.
const (
	keepDestinations = 10_000
	forgetAfter      = 20 * time.Minute
)

// standing is what is known of a destination.
type standing int

const (
	fresh   standing = iota // not heard of yet
	proven                  // its last answer was good and fast
	suspect                 // its last answer was slow, or none
)

// destination is the state of one receiver. The mutex of destinations guards it.
type destination struct {
	standing standing
	inFlight int
	limit    int // in flight, at most: slow start
	waiters  []*waiter

	outages int           // in a row
	opened  int           // how often in a row the breaker opened; 0: closed
	until   time.Time     // no attempt before it: open breaker, or Retry-After
	window  time.Time     // start of the time that count and bad are of
	count   int           // answers and outages in the window
	bad     int           // outages among them
	horizon time.Time     // until when put-off deliveries are spread
	took    time.Duration // moving average of an attempt
	used    time.Time
}

// waiter is a delivery that waits for a slot; grant has room for its one answer.
type waiter struct{ grant chan grant }

// grant is the answer to a delivery that asked for a slot: go, or come back.
type grant struct {
	slot *slot     // set: make one attempt, then release
	at   time.Time // else: come back then
	why  string    // whyBusy or whyBreaker
}

// slot is the right to make one attempt.
type slot struct {
	p        *destinations
	d        *destination
	standing standing // of the destination at the start: what the slot is counted as
}

// destinations shares the slots out. It starts no goroutine, and blocks in
// acquire only.
type destinations struct {
	mu       sync.Mutex
	all      map[string]*destination
	ring     []*destination // those with waiters, in turn
	inFlight int
	started  [suspect + 1]int // of inFlight, by standing
}

func newDestinations() *destinations { return &destinations{all: map[string]*destination{}} }

// Why a delivery is put off, beside ClassOwn.
const (
	whyBusy    = "busy"
	whyBreaker = "breaker"
)

// urgency says how long a delivery may wait for its slot.
type urgency int

const (
	mayWait urgency = iota
	noWait          // start at once or be put off: too many wait already
	forced          // sent again by request: passes an open breaker
)

// acquire waits until the destination may be sent to, or says when to come
// back. Its error is that of ctx.
func (p *destinations) acquire(ctx context.Context, key string, u urgency) (grant, error) {
	if ctx.Err() != nil {
		return grant{}, context.Cause(ctx) // no new attempt while stopping
	}
	p.mu.Lock()
	now := time.Now()
	d := p.get(key, now)
	switch {
	case now.Before(d.until) && u != forced:
		defer p.mu.Unlock()
		return grant{at: d.spread(now, d.until), why: whyBreaker}, nil
	case len(d.waiters) == 0 && p.mayStart(d):
		defer p.mu.Unlock()
		return grant{slot: p.start(d)}, nil
	case u == noWait || len(d.waiters) >= d.room():
		defer p.mu.Unlock()
		return grant{at: d.spread(now, now.Add(busyWait)), why: whyBusy}, nil
	}
	w := &waiter{grant: make(chan grant, 1)}
	d.waiters = append(d.waiters, w)
	if len(d.waiters) == 1 {
		p.ring = append(p.ring, d)
	}
	p.mu.Unlock()
	select {
	case g := <-w.grant:
		return g, nil
	case <-ctx.Done():
		p.leave(d, w)
		return grant{}, context.Cause(ctx)
	}
}

// leave takes a waiter out of its queue, or gives back what it was granted.
func (p *destinations) leave(d *destination, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.waiters = slices.DeleteFunc(d.waiters, func(x *waiter) bool { return x == w })
	if len(d.waiters) == 0 {
		p.ring = slices.DeleteFunc(p.ring, func(x *destination) bool { return x == d })
	}
	select {
	case g := <-w.grant:
		if g.slot != nil {
			p.free(g.slot)
			p.dispatch()
		}
	default:
	}
}

// get finds or makes a destination, and forgets those long unused.
func (p *destinations) get(key string, now time.Time) *destination {
	d := p.all[key]
	if d == nil {
		if len(p.all) >= keepDestinations {
			maps.DeleteFunc(p.all, func(_ string, d *destination) bool {
				return d.inFlight == 0 && len(d.waiters) == 0 && now.Sub(d.used) > forgetAfter && now.After(d.until)
			})
		}
		d = &destination{limit: firstLimit}
		p.all[key] = d
	}
	d.used = now
	return d
}

// mayStart reports whether one more attempt may run now. The caller has looked
// at until.
func (p *destinations) mayStart(d *destination) bool {
	if d.inFlight >= d.limit || p.inFlight >= maxInFlight {
		return false
	}
	switch d.standing {
	case suspect:
		return p.started[suspect] < maxSuspect && p.started[fresh]+p.started[suspect] < maxUnproven
	case fresh:
		return p.started[fresh]+p.started[suspect] < maxUnproven
	case proven:
	}
	return true
}

func (p *destinations) start(d *destination) *slot {
	d.inFlight++
	p.inFlight++
	p.started[d.standing]++
	return &slot{p: p, d: d, standing: d.standing}
}

func (p *destinations) free(s *slot) {
	s.d.inFlight--
	p.inFlight--
	p.started[s.standing]--
}

// dispatch hands free slots to the destinations in turn, one each.
func (p *destinations) dispatch() {
	for progress := true; progress; {
		progress = false
		for range len(p.ring) {
			d := p.ring[0]
			p.ring = p.ring[1:]
			if p.mayStart(d) {
				w := d.waiters[0]
				d.waiters = d.waiters[1:]
				w.grant <- grant{slot: p.start(d)}
				progress = true
			}
			if len(d.waiters) > 0 {
				p.ring = append(p.ring, d)
			}
		}
	}
}

// outcome is what an attempt said about its destination.
type outcome struct {
	outage bool          // no answer, or one that says that it is down
	spoke  bool          // it answered; neither: the attempt was not made
	took   time.Duration //
	hold   time.Duration // Retry-After: no attempt before
}

// release gives the slot back and draws the conclusions.
func (s *slot) release(o outcome) {
	p, d := s.p, s.d
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(s)
	now := time.Now()
	switch {
	case o.outage:
		d.failed(now)
	case o.spoke:
		d.answered(now, o.took)
	}
	if o.hold > 0 {
		d.until = later(d.until, now.Add(o.hold))
	}
	if now.Before(d.until) {
		p.flush(d, now)
	}
	p.dispatch()
}

// flush sends the waiters of a closed destination away.
func (p *destinations) flush(d *destination, now time.Time) {
	if len(d.waiters) == 0 {
		return
	}
	for _, w := range d.waiters {
		w.grant <- grant{at: d.spread(now, d.until), why: whyBreaker}
	}
	d.waiters = nil
	p.ring = slices.DeleteFunc(p.ring, func(x *destination) bool { return x == d })
}

// answered notes that the destination is up.
func (d *destination) answered(now time.Time, took time.Duration) {
	d.tally(now, false)
	d.outages, d.opened = 0, 0
	d.took += (took - d.took) / 8
	d.standing = proven
	if took > fastAnswer {
		d.standing = suspect
	}
	d.limit = min(2*d.limit, maxPerDestination)
}

// failed notes an outage and opens the breaker when there were too many. A
// probe that fails opens it for twice as long.
func (d *destination) failed(now time.Time) {
	d.tally(now, true)
	d.outages++
	d.standing = suspect
	ratio := d.count >= openMinCount && float64(d.bad) >= openRatio*float64(d.count)
	if d.opened == 0 && d.outages < openAfter && !ratio {
		d.limit = max(1, min(d.limit, firstLimit))
		return
	}
	if now.Before(d.until) {
		return // one of several that were in flight when it opened
	}
	d.until = now.Add(jitter(min(openFirst<<min(d.opened, 10), openLongest)))
	d.opened++
	d.limit, d.count, d.bad = 1, 0, 0
}

func (d *destination) tally(now time.Time, bad bool) {
	if now.Sub(d.window) > openWindow {
		d.window, d.count, d.bad = now, 0, 0
	}
	d.count++
	if bad {
		d.bad++
	}
}

// room is how many may wait for the destination.
func (d *destination) room() int {
	switch d.standing {
	case proven:
		return roomProven
	case suspect:
		return roomSuspect
	case fresh:
	}
	return roomFresh
}

// spread is a time at or after from for one more delivery that is put off. They
// come back one after the other, about as fast as the destination takes them.
func (d *destination) spread(now, from time.Time) time.Time {
	step := min(max(d.took/time.Duration(d.limit), spreadLeast), spreadMost)
	at := later(d.horizon, from)
	if limit := now.Add(putOffMost); at.After(limit) {
		at = later(limit, from)
	}
	d.horizon = at.Add(step)
	return at
}

// counts are for the metrics.
func (p *destinations) counts() (inFlight, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, d := range p.all {
		if now.Before(d.until) {
			open++
		}
	}
	return p.inFlight, open
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// cellConfig describes one cell: a cluster of three servers with its workers
// and notifiers, and the load on it. Zero times cost nothing.
type cellConfig struct {
	rate    float64 // goals a second at the peak of the day, which is at time 0
	peak    float64 // the peak as a multiple of the day's mean; 1: no curve
	steps   int
	think   func(*rand.Rand) time.Duration // the planner's time for a step
	call    func(*rand.Rand) time.Duration // the tool's time for a step
	answer  func(*rand.Rand) time.Duration // of a webhook's receiver; nil: no webhooks
	store   groupCommit
	tenants int // each with a queue of its own
	inWork  int // goals of one tenant that workers hold at a time; 0: no bound
	workers int // processes
	slots   int // goals that one process works on at a time
	posts   int // webhooks in flight over all notifiers

	// What is lost, and for how long. Times of 0 lose nothing.
	from, to           time.Duration // what is simulated; the cell is empty at first
	steady             time.Duration // from here on it counts
	serverLost         time.Duration // a server with the leader of EVENTS
	electionMin        time.Duration
	electionMax        time.Duration
	workerLost         time.Duration // one process
	workerBack         time.Duration // how long until it is started again
	ackWait, retryMost time.Duration // silence until take-over; pause before a refused write is repeated
}

// groupCommit is how one leader makes writes durable: those that wait when a
// commit begins, up to a number, share it.
type groupCommit struct {
	sync, each time.Duration // what a commit costs, and every write in it
	most       int           // writes in a commit
}

// took is the time of a commit of n writes.
func (c groupCommit) took(n int) time.Duration { return c.sync + time.Duration(n)*c.each }

// leader makes the writes to one stream durable, one commit after the other.
type leader struct {
	waiting []*simulated
	running []*simulated // in the commit that runs
	down    bool         // nobody leads: writes are refused and repeated later
	term    int          // rises when the leader is lost, and its commit with it
	writes  int
	commits int
}

// simulated is a goal on its way through the script.
type simulated struct {
	tenant   int
	next     int // step of the script
	accepted time.Duration
	ended    time.Duration
	slot     int
	dead     bool // its worker died; a copy of it goes on
}

// phase is a part of the simulated time, and what was seen of it.
type phase struct {
	from    time.Duration
	to      time.Duration
	start   *hdrhistogram.Histogram // acceptance to durable start, in microseconds, by the time of acceptance
	backlog int                     // the most goals that waited for a slot
	behind  time.Duration           // from the start of the phase until less than a second's arrivals wait for good
	used    float64                 // mean of the slots in use
	told    *hdrhistogram.Histogram // from the end to the receiver's answer, in microseconds, by the time of the answer
	ticks   int
	writes  float64 // to EVENTS, a second
	shared  float64 // writes to EVENTS in one commit
}

// cell is the simulation. Its time is virtual and its chance seeded, so that
// the same configuration gives the same report.
type cell struct {
	cellConfig
	curve  float64
	rng    *rand.Rand
	now    time.Duration
	agenda agenda
	script []func(*simulated)

	intakes                     []*leader // GOALS_<tenant>
	events, results, deliveries *leader

	queues  [][]*simulated // accepted and not in work, by tenant
	again   []*simulated   // to be handed out once more, before all others
	queued  int            // in queues and again
	held    []int          // in work, by tenant
	turn    int            // tenant that is looked at first
	free    []int          // slots, in the order in which they became free
	running []*simulated   // by slot
	busy    int

	outbox  []*simulated // webhooks that wait for a notifier
	posting int

	phases []*phase
}

// simulate runs a cell and reports its phases: the steady state, what follows
// the loss of a server, and what follows the loss of a worker.
func simulate(conf cellConfig) []*phase {
	c := &cell{
		cellConfig: conf, curve: concentration(conf.peak), rng: rand.New(rand.NewPCG(1, 1)), now: conf.from, //nolint:gosec // a simulation, to be repeated
		events: &leader{}, results: &leader{}, deliveries: &leader{},
		queues: make([][]*simulated, conf.tenants), held: make([]int, conf.tenants),
		running: make([]*simulated, conf.workers*conf.slots),
	}
	for range conf.tenants {
		c.intakes = append(c.intakes, &leader{})
	}
	for slot := range c.running { // one slot of every process in turn
		c.free = append(c.free, slot%conf.workers*conf.slots+slot/conf.workers)
	}
	c.write()
	c.begin()
	c.at(c.from, c.arrive)
	c.at(c.from, c.tick)
	c.at(c.steady, c.begin)
	if conf.serverLost != 0 {
		c.at(conf.serverLost, c.begin)
		c.at(conf.serverLost, c.loseServer)
	}
	if conf.workerLost != 0 {
		c.at(conf.workerLost, c.begin)
		c.at(conf.workerLost, c.loseWorker)
	}
	for len(c.agenda) > 0 && c.agenda[0].at < c.to {
		e := c.agenda.pop()
		c.now = e.at
		if e.do != nil {
			e.do()
		} else {
			c.advance(e.job)
		}
	}
	c.end()
	return c.phases[1:]
}

// write writes the script of a goal: what a goal writes, and when.
func (c *cell) write() {
	into := func(l *leader) func(*simulated) { return func(j *simulated) { c.join(l, j) } }
	wait := func(d func(*rand.Rand) time.Duration) func(*simulated) {
		return func(j *simulated) { c.agenda.push(event{at: c.now + d(c.rng), job: j}) }
	}
	c.script = []func(*simulated){func(j *simulated) { c.join(c.intakes[j.tenant], j) }, c.enqueue, into(c.events), c.started}
	for range c.steps {
		c.script = append(c.script, wait(c.think), into(c.events), wait(c.call), into(c.events))
	}
	c.script = append(c.script, into(c.results), into(c.events), c.release)
	if c.answer != nil {
		c.script = append(c.script, into(c.deliveries), c.post, wait(c.answer), c.posted, into(c.deliveries))
	}
	c.script = append(c.script, func(*simulated) {}) // the end
}

// advance takes the next step of a job, whose last one is over.
func (c *cell) advance(j *simulated) {
	if j.dead {
		return
	}
	j.next++
	c.script[j.next-1](j)
}

func (c *cell) at(t time.Duration, do func()) { c.agenda.push(event{at: t, do: do}) }

// upTo is a time from 0 to d.
func (c *cell) upTo(d time.Duration) time.Duration {
	return time.Duration(c.rng.Float64() * float64(d))
}

// arrive submits a goal and asks for the next one.
func (c *cell) arrive() {
	c.advance(&simulated{tenant: c.rng.IntN(c.tenants)})
	rate := c.rate * daily(c.curve, c.now)
	c.at(c.now+time.Duration(c.rng.ExpFloat64()/rate*float64(time.Second)), c.arrive)
}

// join adds a job's write to the leader's next commit.
func (c *cell) join(l *leader, j *simulated) {
	if j.dead {
		return
	}
	l.waiting = append(l.waiting, j)
	c.commit(l)
}

func (c *cell) commit(l *leader) {
	if l.down || len(l.running) > 0 || len(l.waiting) == 0 {
		return
	}
	n := len(l.waiting)
	if c.store.most > 0 {
		n = min(n, c.store.most)
	}
	l.running, l.waiting = l.waiting[:n:n], l.waiting[n:]
	term := l.term
	c.at(c.now+c.store.took(n), func() {
		if l.term != term {
			return
		}
		done := l.running
		l.running = nil
		l.writes += n
		l.commits++
		for _, j := range done {
			c.advance(j)
		}
		c.commit(l)
	})
}

// enqueue accepts a goal.
func (c *cell) enqueue(j *simulated) {
	j.accepted = c.now
	c.queues[j.tenant] = append(c.queues[j.tenant], j)
	c.queued++
	c.hand()
}

// hand gives waiting goals to free slots: those that come again first, then one
// of each tenant in turn.
func (c *cell) hand() {
	for len(c.free) > 0 {
		j, again := c.take()
		if j == nil {
			return
		}
		c.queued--
		j.slot, c.free = c.free[0], c.free[1:]
		c.running[j.slot] = j
		c.busy++
		if again { // it is noted in the journal who goes on
			c.join(c.events, j)
		} else {
			c.held[j.tenant]++
			c.advance(j)
		}
	}
}

func (c *cell) take() (_ *simulated, again bool) {
	if len(c.again) > 0 {
		j := c.again[0]
		c.again = c.again[1:]
		return j, true
	}
	for range c.tenants {
		t := c.turn
		c.turn = (c.turn + 1) % c.tenants
		if len(c.queues[t]) > 0 && (c.inWork == 0 || c.held[t] < c.inWork) {
			j := c.queues[t][0]
			c.queues[t] = c.queues[t][1:]
			return j, false
		}
	}
	return nil, false
}

// started notes how long the goal has waited.
func (c *cell) started(j *simulated) {
	for _, p := range slices.Backward(c.phases) {
		if j.accepted >= p.from {
			_ = p.start.RecordValue((c.now - j.accepted).Microseconds()) // an hour would be too large
			break
		}
	}
	c.advance(j)
}

// release frees the slot of a job that has ended.
func (c *cell) release(j *simulated) {
	j.ended = c.now
	c.running[j.slot] = nil
	c.busy--
	c.held[j.tenant]--
	c.free = append(c.free, j.slot)
	c.hand()
	c.advance(j)
}

// post takes the place of a webhook in flight, or waits for one.
func (c *cell) post(j *simulated) {
	if c.posting == c.posts {
		c.outbox = append(c.outbox, j)
		return
	}
	c.posting++
	c.advance(j)
}

// posted notes when the receiver had the webhook, and gives its place away.
func (c *cell) posted(j *simulated) {
	_ = c.phases[len(c.phases)-1].told.RecordValue((c.now - j.ended).Microseconds())
	if len(c.outbox) > 0 {
		next := c.outbox[0]
		c.outbox = c.outbox[1:]
		c.advance(next)
	} else {
		c.posting--
	}
	c.advance(j)
}

// loseServer takes a third of the leaders away, that of EVENTS among them,
// until others are elected. What was on its way is repeated.
func (c *cell) loseServer() {
	for i, l := range append([]*leader{c.events, c.results, c.deliveries}, c.intakes...) {
		if i%3 != 0 {
			continue
		}
		l.down = true
		l.term++
		l.waiting = append(l.running, l.waiting...)
		l.running = nil
		c.at(c.now+c.electionMin+c.upTo(c.electionMax-c.electionMin), func() {
			l.down = false
			refused := l.waiting
			l.waiting = nil
			for _, j := range refused {
				c.at(c.now+c.upTo(c.retryMost), func() { c.join(l, j) })
			}
		})
	}
}

// loseWorker kills the first process. Others take its goals over when they have
// been silent for long enough, and repeat the step that was cut.
func (c *cell) loseWorker() {
	lost := func(slot int) bool { return slot < c.slots }
	free := c.free[:0:0]
	for _, slot := range c.free {
		if !lost(slot) {
			free = append(free, slot)
		}
	}
	c.free = free
	for slot, j := range c.running[:c.slots] {
		if j == nil {
			continue
		}
		j.dead = true
		c.running[slot] = nil
		c.busy--
		next := &simulated{tenant: j.tenant, next: j.next - 1, accepted: j.accepted}
		silent := c.upTo(c.ackWait / 3) // since the last sign of life
		c.at(c.now+c.ackWait-silent, func() {
			c.again = append(c.again, next)
			c.queued++
			c.hand()
		})
	}
	c.at(c.now+c.workerBack, func() {
		for slot := range c.slots {
			c.free = append(c.free, slot)
		}
		c.hand()
	})
}

// begin starts a phase. The first one is the filling of the empty cell.
func (c *cell) begin() {
	if len(c.phases) > 0 {
		c.end()
	}
	times := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, time.Hour.Microseconds(), 3) }
	c.phases = append(c.phases, &phase{from: c.now, start: times(), told: times()})
}

// end completes the phase that runs.
func (c *cell) end() {
	p := c.phases[len(c.phases)-1]
	p.used /= float64(max(1, p.ticks))
	p.to = c.now
	p.writes = float64(c.events.writes) / (c.now - p.from).Seconds()
	p.shared = float64(c.events.writes) / float64(max(1, c.events.commits))
	c.events.writes, c.events.commits = 0, 0
}

// tick looks at the cell ten times a second.
func (c *cell) tick() {
	p := c.phases[len(c.phases)-1]
	p.ticks++
	p.used += float64(c.busy)
	p.backlog = max(p.backlog, c.queued)
	if float64(c.queued) >= c.rate {
		p.behind = c.now - p.from
	}
	c.at(c.now+time.Second/10, c.tick)
}

// daily is the load at a time of day as a share of the peak, which is at 0: a
// bell that repeats every day.
func daily(concentration float64, at time.Duration) float64 {
	return math.Exp(concentration * (math.Cos(2*math.Pi*at.Hours()/24) - 1))
}

// concentration is that of the bell whose peak is so many times its mean.
func concentration(peak float64) float64 {
	low, high := 0.0, 1000.0
	for range 60 {
		middle := (low + high) / 2
		if 1/dailyMean(middle) < peak {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func dailyMean(concentration float64) float64 {
	var sum float64
	for minute := range 24 * 60 {
		sum += daily(concentration, time.Duration(minute)*time.Minute)
	}
	return sum / (24 * 60)
}

// event is what happens at a time: a job goes on, or something else.
type event struct {
	at  time.Duration
	job *simulated
	do  func()
}

// agenda is a heap of events, the next one first.
type agenda []event

func (a *agenda) push(e event) {
	h := append(*a, e)
	i := len(h) - 1
	for i > 0 && e.at < h[(i-1)/4].at {
		h[i] = h[(i-1)/4]
		i = (i - 1) / 4
	}
	h[i] = e
	*a = h
}

func (a *agenda) pop() event {
	h := *a
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		least := -1
		for child := 4*i + 1; child < min(4*i+5, len(h)); child++ {
			if least < 0 || h[child].at < h[least].at {
				least = child
			}
		}
		if least < 0 || last.at <= h[least].at {
			h[i] = last
			break
		}
		h[i] = h[least]
		i = least
	}
	*a = h
	return first
}

package notifier

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Feed hands out turns, each until it is acknowledged.
type Feed interface {
	// Next waits for a turn. It returns an error when ctx ends, and when the
	// store cannot be reached: it may be called again then. One caller at a time.
	Next(ctx context.Context) (goal.Due, error)
}

// Records keeps the deliveries. Every method may be called concurrently and
// repeated; a write is durable when it returns.
type Records interface {
	// CreateDelivery stores the first state of a delivery, or returns goal.ErrExists.
	CreateDelivery(ctx context.Context, d goal.Delivery) (rev uint64, err error)
	// Delivery reads a delivery with its revision, or returns goal.ErrNotFound.
	Delivery(ctx context.Context, tenant, id string) (d goal.Delivery, rev uint64, err error)
	// UpdateDelivery replaces revision rev, or returns goal.ErrFenced.
	UpdateDelivery(ctx context.Context, d goal.Delivery, rev uint64) (uint64, error)
}

// Timetable keeps turns for later.
type Timetable interface {
	// ScheduleTurn makes the turn fall due at t.At, never before; it replaces
	// the delivery's turn of the same kind (automatic, or by request). It is
	// durable when it returns, and may be repeated.
	ScheduleTurn(ctx context.Context, t goal.Turn) error
}

// Config of a notifier. Everything without a default is required.
type Config struct {
	Ended     Feed // terminal batches: turns with a Webhook
	Due       Feed // turns that the Timetable let fall due
	Records   Records
	Timetable Timetable
	// Secrets are the signing secrets of a tenant, asked for at every attempt,
	// so that pending retries pick up a rotation. Without a valid one nothing is
	// sent and no attempt spent. Called concurrently.
	Secrets func(ctx context.Context, tenant string) ([]Secret, error)
	// Guard decides where connections may go. Default: public addresses only.
	Guard *Guard
	// RootCAs that receivers' certificates are checked against. Default: the system's.
	RootCAs *x509.CertPool
	// Transport replaces the guarded one, in tests: with it only URLs are checked.
	Transport http.RoundTripper
	// Version is named in the User-Agent header. Default: "dev".
	Version string
	// Drain is how long Run waits for attempts in flight when it is cancelled.
	// Default: 25 s, a little more than an attempt takes.
	Drain time.Duration
	// Trace, if set, opens a span around every attempt (n from 1): it returns the
	// attempt's context, the W3C traceparent that the receiver gets (empty: the
	// delivery's own) and what is told the outcome: the HTTP status, 0 without an
	// answer, and the error class, empty for success. Called concurrently.
	Trace func(ctx context.Context, w goal.Webhook, n int) (_ context.Context, traceparent string, end func(status int, class string))
	// Log may be nil: slog.Default.
	Log *slog.Logger
	// Registerer of the metrics; nil exports none.
	Registerer prometheus.Registerer
}

const (
	defaultDrain = 25 * time.Second
	// maxHeld bounds the turns that a notifier holds, in flight or waiting; the
	// rest stays in the store. From crowded on no turn waits for its slot: it
	// starts at once or is put off, so that the feed never stands still because
	// of destinations that do not answer.
	maxHeld = 4096
	crowded = 3072
	// extendEvery keeps a turn from being given to another; the feeds wait
	// several times as long for an acknowledgement.
	extendEvery = 6 * time.Second
	// recordTimeout bounds what follows an attempt: repeating a write is better
	// than sending twice.
	recordTimeout = 30 * time.Second
	feedPause     = 5 * time.Second // longest pause after a feed failed
)

// Notifier works off deliveries.
type Notifier struct {
	conf         Config
	log          *slog.Logger
	guard        *Guard
	transport    http.RoundTripper
	userAgent    string
	secrets      func(ctx context.Context, tenant string) ([]Secret, error)
	destinations *destinations
	metrics      *metrics
	held         chan struct{} // one token per turn held

	mu     sync.Mutex
	active map[string]chan struct{} // turns being worked at; closed at their end
}

// New checks the settings. It starts nothing.
func New(c Config) (*Notifier, error) {
	switch {
	case c.Ended == nil || c.Due == nil:
		return nil, errors.New("notifier: Config.Ended and Config.Due must be set")
	case c.Records == nil || c.Timetable == nil:
		return nil, errors.New("notifier: Config.Records and Config.Timetable must be set")
	case c.Secrets == nil:
		return nil, errors.New("notifier: Config.Secrets must be set")
	case c.Drain < 0:
		return nil, errors.New("notifier: Config.Drain must not be negative")
	}
	if c.Guard == nil {
		g, err := NewGuard()
		if err != nil {
			return nil, err
		}
		c.Guard = g
	}
	if c.Transport == nil {
		c.Transport = newTransport(c.Guard, c.RootCAs)
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Drain == 0 {
		c.Drain = defaultDrain
	}
	if c.Trace == nil {
		c.Trace = untraced
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	p := newDestinations()
	n := &Notifier{
		conf: c, log: c.Log, guard: c.Guard, transport: c.Transport, userAgent: "Goalkeeper-Webhooks/" + c.Version,
		secrets: c.Secrets, destinations: p, metrics: newMetrics(p), held: make(chan struct{}, maxHeld), active: map[string]chan struct{}{},
	}
	if err := n.metrics.register(c.Registerer); err != nil {
		return nil, err
	}
	return n, nil
}

// untraced is Config.Trace of a notifier that exports no spans: receivers still
// learn which trace the task belongs to.
func untraced(ctx context.Context, w goal.Webhook, _ int) (context.Context, string, func(int, string)) {
	return ctx, w.Traceparent, func(int, string) {}
}

// errStopping is the cause of the contexts that Run cancels.
var errStopping = errors.New("notifier is stopping")

// Run works off deliveries until ctx ends. Then it takes no more, sends away
// what waits for a slot, lets attempts in flight finish for Config.Drain, and
// returns nil. What was not finished stays in the store. Call it once.
func (n *Notifier) Run(ctx context.Context) error {
	// Two contexts: ctx ends the taking, work ends the working.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var feeds, turns sync.WaitGroup
	for _, f := range []Feed{n.conf.Ended, n.conf.Due} {
		feeds.Go(func() { n.take(ctx, work, f, &turns) })
	}
	feeds.Wait()
	timer := time.AfterFunc(n.conf.Drain, func() { stop(errStopping) })
	defer timer.Stop()
	turns.Wait()
	if t, ok := n.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// take starts a goroutine for every turn of the feed, at most maxHeld at once.
func (n *Notifier) take(ctx, work context.Context, f Feed, turns *sync.WaitGroup) {
	for failed := 0; ctx.Err() == nil; {
		due, err := f.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			failed++
			n.log.WarnContext(ctx, "webhook feed failed, trying again", "error", err)
			pause(ctx, min(100*time.Millisecond<<min(failed, 10), feedPause))
			continue
		}
		failed = 0
		select {
		case n.held <- struct{}{}:
		case <-ctx.Done():
			_ = due.Release() // comes again by itself if that fails
			return
		}
		turns.Go(func() {
			defer func() { <-n.held }()
			n.serve(ctx, work, due)
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(jitter(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// serve does one turn and acknowledges it, last. A turn that could not be done
// is not acknowledged: the feed gives it again, and every step before can be
// repeated.
func (n *Notifier) serve(ctx, work context.Context, due goal.Due) {
	stop := n.keep(work, due)
	defer stop()
	err := n.one(ctx, work, due)
	if err == nil {
		ackCtx, cancel := context.WithTimeout(context.WithoutCancel(work), recordTimeout)
		defer cancel()
		err = due.Ack(ackCtx)
	}
	if err == nil {
		return
	}
	if ctx.Err() != nil { // stopping: another process, or the next start, takes it at once
		err = due.Release()
	}
	if err != nil {
		n.log.WarnContext(work, "webhook turn not finished, it will be repeated",
			"tenant", due.Tenant, "webhook_id", due.ID, "error", err)
	}
}

// one does the turn when no other of its kind runs.
func (n *Notifier) one(ctx, work context.Context, due goal.Due) error {
	if !n.enter(ctx, due) {
		return context.Cause(ctx)
	}
	defer n.exit(due)
	return n.turn(ctx, work, due)
}

// enter makes turns of one kind of one delivery run one after the other in this
// process: the second finds what the first has done. It reports false when ctx
// ended first.
func (n *Notifier) enter(ctx context.Context, due goal.Due) bool {
	k := activeKey(due)
	for {
		n.mu.Lock()
		other := n.active[k]
		if other == nil {
			n.active[k] = make(chan struct{})
		}
		n.mu.Unlock()
		if other == nil {
			return true
		}
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

func (n *Notifier) exit(due goal.Due) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := activeKey(due)
	close(n.active[k])
	delete(n.active, k)
}

func activeKey(due goal.Due) string { return due.Tenant + " " + due.ID + " " + due.Request }

// keep extends the turn until stop is called.
func (n *Notifier) keep(ctx context.Context, due goal.Due) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(extendEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if err := due.Extend(); err != nil {
				n.log.DebugContext(ctx, "webhook turn not extended", "webhook_id", due.ID, "error", err)
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

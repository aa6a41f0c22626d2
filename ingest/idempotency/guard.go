package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Guard protects HTTP handlers by the idempotency contract. It is safe for
// concurrent use.
type Guard struct {
	cfg     Config
	ledger  ledger
	metrics *metrics
	flights flights
	done    recent // calls that were completed here

	// ctx ends with Close; late holds what still writes to the store by then.
	ctx      context.Context
	stop     context.CancelFunc
	late     sync.WaitGroup
	lateSlot chan struct{}
}

// New checks the configuration. Close the guard after the HTTP server.
func New(cfg Config) (*Guard, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return newGuard(cfg, m), nil
}

func newGuard(cfg Config, m *metrics) *Guard {
	ctx, stop := context.WithCancel(context.Background())
	return &Guard{
		cfg: cfg, ledger: ledger{cfg.Store}, metrics: m,
		flights: flights{waiters: make(chan struct{}, cfg.MaxWaiters)},
		ctx:     ctx, stop: stop, lateSlot: make(chan struct{}, maxUnrecorded),
	}
}

// Close ends the attempts to record answers that the store did not take, and
// waits for them. The handlers must have returned. It may be repeated.
func (g *Guard) Close() {
	g.stop()
	g.late.Wait()
}

// Wrap returns next with its unsafe methods protected. Safe methods pass.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !unsafeMethod(r.Method) {
			next.ServeHTTP(w, withoutOwn(r))
			return
		}
		g.serve(w, r, next)
	})
}

// withoutOwn drops the fields that only we may tell the handler.
func withoutOwn(r *http.Request) *http.Request {
	if r.Header.Get(HeaderAttempt) == "" && r.Header.Get(HeaderFence) == "" {
		return r
	}
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	r.Header.Del(HeaderAttempt)
	r.Header.Del(HeaderFence)
	return r
}

func (g *Guard) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c, p := g.admit(w, r)
	if p != nil {
		g.metrics.count(g.cfg.Name, resultRefused)
		refuse(w, c.key, 0, p)
		return
	}
	wait, applied := preferredWait(r)
	if applied != "" {
		w.Header().Set("Preference-Applied", applied)
	}
	if c.slot.named() && g.cfg.SlotGuard {
		if !g.ownSlot(r.Context(), w, c) {
			return
		}
	}
	deadline := time.Now().Add(wait)
	for {
		began := time.Now()
		cl, cur, err := g.take(r.Context(), c, r)
		switch {
		case err != nil:
			g.unavailable(r.Context(), w, c, err)
		case cl != nil:
			g.run(w, r, next, c, cl, began)
		case cur.Fingerprint != c.fp:
			g.metrics.count(g.cfg.Name, resultMismatch)
			refuse(w, c.key, 0, problem(goal.KeyReused, http.StatusUnprocessableEntity, "", 0))
		case cur.State == Completed:
			g.replay(r.Context(), w, c, cur)
		case g.flights.wait(r.Context(), g, c.id, cur, deadline):
			continue
		default:
			g.busy(w, c, cur)
		}
		return
	}
}

// take claims the call. It does not end with the caller's connection: a write
// whose fate is unknown would block the key for a lease.
func (g *Guard) take(ctx context.Context, c *call, r *http.Request) (*claim, found, error) {
	now := time.Now()
	if fl := g.flights.find(c.id); fl != nil {
		cur := fl.rec
		cur.LeaseUntil = now.Add(g.cfg.Lease * 2 / 3) // renewed every third
		return nil, found{Record: &cur}, nil
	}
	ctx, cancel := g.storeContext(ctx)
	defer cancel()
	path, _ := target(r)
	want := Record{
		Fingerprint: c.fp, Owner: newOwner(), Tenant: c.tenant, KeyHint: hint(c.key),
		Method: r.Method, Path: path, Started: now.UTC(), LeaseUntil: now.Add(g.cfg.Lease).UTC(),
	}
	cl, cur, err := g.ledger.claim(ctx, c.id, want, g.leaseTTL(), g.done.has(c.id))
	if err != nil {
		// The claim may have been written all the same. Nothing ran, so it is
		// taken back, above all where it would not expire.
		//nolint:contextcheck // it outlives the request and ends with the guard
		g.retry(now.Add(g.cfg.Lease), func() {}, func(ctx context.Context) error {
			return g.ledger.abandon(ctx, c.id, want.Owner)
		})
	}
	return cl, cur, err
}

// leaseTTL is the time to live of a record whose call runs.
func (g *Guard) leaseTTL() time.Duration {
	if g.cfg.OnAmbiguous == Hold {
		return 0
	}
	return g.cfg.Lease
}

func (g *Guard) storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), g.cfg.StoreTimeout)
}

func (g *Guard) ownSlot(ctx context.Context, w http.ResponseWriter, c *call) bool {
	ctx, cancel := g.storeContext(ctx)
	defer cancel()
	mine, err := g.takeSlot(ctx, c)
	switch {
	case err != nil:
		g.unavailable(ctx, w, c, err)
	case !mine:
		g.metrics.count(g.cfg.Name, resultMismatch)
		refuse(w, c.key, 0, problem(goal.KeyReused, http.StatusUnprocessableEntity,
			"This session, step and tool were used with another payload.", 0))
	}
	return mine && err == nil
}

// busy answers a repetition that came while the call runs or is held. The
// longer it has run, the later to come again, within the lease.
func (g *Guard) busy(w http.ResponseWriter, c *call, cur found) {
	g.metrics.count(g.cfg.Name, resultConflict)
	detail := "Repeat the request later with the same key to get its answer."
	left := min(max(time.Until(cur.LeaseUntil), time.Second), g.cfg.Lease)
	after := min(left, time.Second+rand.N(max(time.Since(cur.Started), 0)+time.Second)) //nolint:gosec // jitter
	if cur.State == Held {
		detail, after = "An earlier attempt may have taken effect: its outcome is not known yet.", left
	}
	refuse(w, c.key, cur.Attempt, problem(goal.RequestInProgress, 0, detail, after))
}

// unavailable answers when the store could not be asked: the handler did not run.
func (g *Guard) unavailable(ctx context.Context, w http.ResponseWriter, c *call, err error) {
	g.metrics.count(g.cfg.Name, resultUnavailable)
	if !errors.Is(err, goal.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		g.cfg.Log.ErrorContext(ctx, "idempotency store", slog.String("guard", g.cfg.Name), slog.Any("error", err))
	}
	after := time.Second + rand.N(4*time.Second) //nolint:gosec // jitter
	refuse(w, c.key, 0, problem(goal.StoreUnavailable, 0, "The call was not executed.", after))
}

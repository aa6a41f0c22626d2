package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Causes with which a handler's context ends (see context.Cause).
var (
	// ErrLeaseLost: the lease could not be renewed; another attempt may run.
	ErrLeaseLost = errors.New("the lease on the call was lost")
	// ErrMaxRun: the handler ran longer than it may.
	ErrMaxRun = errors.New("the call ran longer than it may")
)

// execution is one run of a handler under a claim.
type execution struct {
	g       *Guard
	w       http.ResponseWriter
	call    *call
	claim   *claim
	ctx     context.Context // of the handler: outlives the caller's connection
	cancel  context.CancelCauseFunc
	capture *capture
	fate    *fate
	flight  *flight
	// proven is when the last successful write of the lease began: at that
	// time plus the lease, another may hold it. Written by keep, read after kept.
	proven time.Time
	quit   context.CancelFunc
	kept   chan struct{} // closed when keep has returned
	// recorded says how the tombstone's write ended, once the answer passes.
	recorded error
	crash    any // what the handler panicked with
}

// errGoexit stands for a handler that ended its goroutine.
var errGoexit = errors.New("the handler ended its goroutine")

func (g *Guard) run(w http.ResponseWriter, r *http.Request, next http.Handler, c *call, cl *claim, began time.Time) {
	ctx, done := context.WithTimeoutCause(context.WithoutCancel(r.Context()), g.cfg.MaxRun, ErrMaxRun)
	defer done()
	x := &execution{
		g: g, w: w, call: c, claim: cl, fate: &fate{}, proven: began, kept: make(chan struct{}),
		flight: g.flights.start(cl),
	}
	x.ctx, x.cancel = context.WithCancelCause(context.WithValue(ctx, fateKey{}, x.fate))
	defer x.cancel(nil)
	x.capture = &capture{
		w: w, header: http.Header{}, limit: int(g.cfg.MaxResponse), streams: g.cfg.StreamTypes, pass: x.pass,
	}
	inner := x.request(r) // before the claim is the keeper's
	keepCtx, quit := context.WithCancel(x.ctx)
	x.quit = quit
	go x.keep(keepCtx) //nolint:contextcheck // made from the request's, without its end
	g.metrics.running.WithLabelValues(g.cfg.Name).Inc()
	defer g.metrics.running.WithLabelValues(g.cfg.Name).Dec()
	//nolint:contextcheck // outcomes are stored also when the request's context has ended
	defer x.settle() // deferred, since a handler may end its goroutine
	x.serve(next, inner)
}

// request is what the handler sees: the body once more, from memory.
func (x *execution) request(r *http.Request) *http.Request {
	r = r.WithContext(x.ctx)
	r.Header = r.Header.Clone()
	r.Header.Set(HeaderAttempt, strconv.Itoa(x.claim.rec.Attempt))
	r.Header.Set(HeaderFence, strconv.FormatUint(x.claim.rev, 10))
	// One stored answer serves callers that accept different codings, so it is
	// kept as identity; compress outside of this middleware.
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Del("Expect") // answered by reading the body
	r.Header.Del("Upgrade")
	setBody(r, x.call.body)
	return r
}

func (x *execution) serve(next http.Handler, r *http.Request) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if x.crash = recover(); x.crash == nil {
			x.crash = errGoexit
		}
	}()
	next.ServeHTTP(x.capture, r)
	returned = true
}

// keep renews the lease until ctx ends. A lease that cannot be proven any more
// ends the handler's context while there is still time before it runs out.
func (x *execution) keep(ctx context.Context) {
	defer close(x.kept)
	lease := x.g.cfg.Lease
	timer := time.NewTimer(lease / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		err := x.renew(ctx, began)
		expires := x.g.cfg.OnAmbiguous == Expire
		switch {
		case err == nil:
			x.proven = began
			timer.Reset(lease / 3)
		case ctx.Err() != nil:
			return
		case errors.Is(err, errLost), expires && time.Since(x.proven) >= lease*5/6:
			x.g.metrics.lost.WithLabelValues(x.g.cfg.Name).Inc()
			x.cancel(ErrLeaseLost)
			return
		default:
			timer.Reset(lease / 30)
		}
	}
}

func (x *execution) renew(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, x.g.cfg.StoreTimeout)
	defer cancel()
	return x.g.ledger.renew(ctx, x.claim, began.Add(x.g.cfg.Lease).UTC(), x.g.leaseTTL())
}

// stopKeeping returns when nothing but the caller uses the claim.
func (x *execution) stopKeeping() {
	x.quit()
	<-x.kept
}

// pass stores that the call was executed, before the first byte of an answer
// that is not kept goes out, and sends its status and header.
func (x *execution) pass() {
	x.stopKeeping()
	a := Answer{Status: x.capture.status, Header: storedHeader(x.capture.head), Dropped: true, At: x.capture.at.UTC()}
	x.recorded = x.record(a)
	h := x.w.Header()
	maps.Copy(h, x.capture.head)
	x.mark(h, x.recorded)
	x.w.WriteHeader(x.capture.status)
}

// settle decides what the run means, stores it, and only then answers.
func (x *execution) settle() {
	x.stopKeeping()
	if x.crash != nil {
		x.logCrash()
	}
	if x.capture.passing {
		x.settlePassed()
		return
	}
	outcome, reason := x.judge()
	switch outcome {
	case resultMiss:
		a := x.capture.answer()
		err := x.record(a)
		if err == nil {
			x.g.flights.end(x.call.id, x.flight)
		}
		h := x.capture.head
		x.mark(h, err)
		send(x.w, a.Status, h, a.Body, x.capture.trailer())
	case resultReleased:
		x.conclude(outcome, func(ctx context.Context) error { return x.g.ledger.release(ctx, x.claim, reason) })
		x.sendUnstored(0)
	default:
		ttl := x.g.leaseTTL()
		x.conclude(outcome, func(ctx context.Context) error { return x.g.ledger.hold(ctx, x.claim, reason, ttl) })
		x.sendUnstored(x.g.cfg.Lease)
	}
	x.abort()
}

// judge maps the end of the handler to the contract's rows.
func (x *execution) judge() (outcome, reason string) {
	kind, reason, _ := x.fate.get()
	status := x.capture.status
	switch {
	case kind == fateUnknown:
		return resultHeld, reason
	case kind == fateNothing:
		return resultReleased, reason
	case x.crash != nil && status == 0:
		return resultReleased, "panic"
	case x.crash != nil:
		return resultHeld, "panic after the answer had begun"
	case status >= 500 && errors.Is(context.Cause(x.ctx), ErrMaxRun):
		return resultHeld, "the handler ran into its time limit"
	case status >= 500, repeatable(status, x.capture.head):
		return resultReleased, "status " + strconv.Itoa(status)
	}
	return resultMiss, ""
}

// repeatable answers say that the call was not executed.
func repeatable(status int, h http.Header) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict:
		return h.Get("Retry-After") != ""
	}
	return false
}

// settlePassed ends an answer that went out as it was made. A stream that
// ended well and was small enough is kept after all.
func (x *execution) settlePassed() {
	if x.recorded == nil {
		defer x.g.flights.end(x.call.id, x.flight)
	}
	if kind, _, _ := x.fate.get(); kind != fateOK || x.crash != nil {
		panic(http.ErrAbortHandler) // the caller must see that its answer is cut
	}
	trailer := x.capture.trailer()
	for k, lines := range trailer {
		x.w.Header()[http.TrailerPrefix+k] = lines
	}
	if x.recorded == nil && x.capture.stream && !x.capture.over {
		if err := x.store(func(ctx context.Context) error {
			return x.g.ledger.complete(ctx, x.claim, x.capture.answer(), x.g.cfg.ResultTTL)
		}); err != nil {
			x.g.cfg.Log.WarnContext(x.ctx, "a stream's answer is not kept", slog.Any("error", err))
		}
	}
}

// record stores the answer. When the store does not take it, the attempts go on
// in the background to the lease's end, and the answer is sent as unrecorded.
func (x *execution) record(a Answer) error {
	if headerSize(a.Header)+headerSize(a.Trailer) > maxMeta {
		a.Dropped, a.Header, a.Trailer = true, nil, nil
	}
	complete := func(ctx context.Context) error { return x.g.ledger.complete(ctx, x.claim, a, x.g.cfg.ResultTTL) }
	err := x.store(complete)
	if err == nil {
		x.g.done.add(x.call.id)
		x.g.metrics.count(x.g.cfg.Name, resultMiss)
		return nil
	}
	x.g.metrics.count(x.g.cfg.Name, resultUnrecorded)
	x.g.cfg.Log.WarnContext(x.ctx, "answer not recorded", slog.String("guard", x.g.cfg.Name),
		slog.String("call", x.call.id), slog.Any("error", err))
	x.later(err, complete)
	return err
}

// conclude stores an outcome that is no answer.
func (x *execution) conclude(outcome string, move func(context.Context) error) {
	x.g.metrics.count(x.g.cfg.Name, outcome)
	if err := x.store(move); err != nil {
		x.later(err, move)
		return
	}
	x.g.flights.end(x.call.id, x.flight)
}

func (x *execution) store(move func(context.Context) error) error {
	ctx, cancel := x.g.storeContext(x.ctx)
	defer cancel()
	return move(ctx)
}

// later repeats a write that failed, until the lease has run out. The flight
// goes on meanwhile: repetitions in this process get 409, not another run.
func (x *execution) later(err error, move func(context.Context) error) {
	end := func() { x.g.flights.end(x.call.id, x.flight) }
	if errors.Is(err, errLost) {
		end()
		return
	}
	x.g.retry(x.proven.Add(x.g.cfg.Lease), end, move)
}

// sendUnstored sends an answer that is not kept.
func (x *execution) sendUnstored(after time.Duration) {
	if _, _, p := x.fate.get(); p != nil {
		x.crash = nil // how a proxy ends an answer that was cut
		p.RetryAfter = int(after / time.Second)
		refuse(x.w, x.call.key, x.claim.rec.Attempt, p)
		return
	}
	if x.crash != nil {
		if x.crash != http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
			refuse(x.w, x.call.key, x.claim.rec.Attempt, problem(goal.InternalError, 0, "", after))
		}
		return
	}
	if x.capture.status == 0 {
		x.capture.WriteHeader(http.StatusOK)
	}
	h := x.capture.head
	if after > 0 && h.Get("Retry-After") == "" {
		h.Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	}
	x.mark(h, nil)
	send(x.w, x.capture.status, h, x.capture.body.Bytes(), x.capture.trailer())
}

// abort passes an intended abort on: net/http then closes the connection.
func (x *execution) abort() {
	if x.crash == http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
		panic(http.ErrAbortHandler)
	}
}

func (x *execution) mark(h http.Header, unstored error) {
	mark(h, x.call.key, lookupMiss, x.claim.rec.Attempt)
	if unstored != nil {
		h.Set(HeaderIdempotency, unrecorded)
	}
}

func (x *execution) logCrash() {
	if x.crash == http.ErrAbortHandler || x.crash == errGoexit { //nolint:errorlint // panic values, compared as net/http does
		return
	}
	x.g.cfg.Log.ErrorContext(x.ctx, "handler panicked", slog.String("guard", x.g.cfg.Name),
		slog.String("panic", fmt.Sprint(x.crash)), slog.String("stack", string(debug.Stack())))
}

func headerSize(h http.Header) int {
	n := 0
	for k, lines := range h {
		for _, line := range lines {
			n += len(k) + len(line)
		}
	}
	return n
}

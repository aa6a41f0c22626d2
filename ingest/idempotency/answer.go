package idempotency

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// mark sets the fields that every answer to a protected call carries.
func mark(h http.Header, key, lookup string, attempt int) {
	for _, name := range ownFields {
		h.Del(name)
	}
	if key != "" {
		h.Set(HeaderKey, quoteKey(key))
	}
	h.Set(HeaderLookup, lookup)
	if attempt > 0 {
		h.Set(HeaderAttempt, strconv.Itoa(attempt))
	}
	expose(h)
}

// send writes status, header, body and trailers. Errors are the caller's
// connection's: it is gone, and gets the stored answer when it asks again.
func send(w http.ResponseWriter, status int, header http.Header, body []byte, trailer http.Header) {
	h := w.Header()
	maps.Copy(h, header)
	h.Del("Trailer")
	switch {
	case len(trailer) > 0: // goes with a chunked body only
		h.Del("Content-Length")
		h.Set("Trailer", strings.Join(slices.Sorted(maps.Keys(trailer)), ", "))
	case bodyAllowed(status):
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if bodyAllowed(status) {
		_, _ = w.Write(body) //nolint:gosec // the backend's answer, as it is; for the error see above
	}
	maps.Copy(h, trailer)
}

// refuse answers a protected call with a problem.
func refuse(w http.ResponseWriter, key string, attempt int, p *goal.Problem) {
	mark(w.Header(), key, lookupMiss, attempt)
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p *goal.Problem) {
	body, err := goal.Marshal(p)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Link", "<"+p.Type+`>; rel="describedby"`)
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Kind() == goal.KeyReused || p.Kind() == goal.ResponseNotRetained {
		h.Set(headerShouldRetry, "false") // common client libraries retry every 409 and more
	}
	send(w, p.Status, nil, body, nil)
}

// problem makes a problem with a Retry-After, in whole seconds, at least 1.
func problem(kind goal.ProblemType, status int, detail string, after time.Duration) *goal.Problem {
	p := goal.NewProblem(kind, detail)
	if status != 0 {
		p.Status = status
	}
	if after > 0 {
		p.RetryAfter = max(1, int(after/time.Second))
	}
	return p
}

// replay sends the stored answer.
func (g *Guard) replay(ctx context.Context, w http.ResponseWriter, c *call, cur found) {
	a := cur.Answer
	gone := "The call was executed with status " + strconv.Itoa(a.Status) + ", but its answer was not kept. Do not repeat it."
	if a.Dropped {
		g.metrics.count(g.cfg.Name, resultNotRetained)
		refuse(w, c.key, cur.Attempt, goal.NewProblem(goal.ResponseNotRetained, gone))
		return
	}
	ctx, cancel := g.storeContext(ctx)
	defer cancel()
	body, err := g.ledger.body(ctx, c.id, cur.Owner, a)
	switch {
	case errors.Is(err, goal.ErrNotFound), errors.Is(err, errRecord):
		g.metrics.count(g.cfg.Name, resultNotRetained)
		refuse(w, c.key, cur.Attempt, goal.NewProblem(goal.ResponseNotRetained, gone))
		return
	case err != nil:
		g.unavailable(ctx, w, c, err)
		return
	}
	g.metrics.count(g.cfg.Name, resultHit)
	h := w.Header()
	maps.Copy(h, a.Header)
	mark(h, c.key, lookupHit, cur.Attempt)
	h.Set(HeaderReplayed, "true")
	h.Set(HeaderOriginalDate, a.At.Format(http.TimeFormat))
	send(w, a.Status, nil, body, a.Trailer)
}

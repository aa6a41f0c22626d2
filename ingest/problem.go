package ingest

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// clientGone is the status that a request is counted under when its client did
// not wait for the answer. It is never sent.
const clientGone = 499

// problemOf is the one table from errors to what the client sees. Whatever is
// not listed in kv/goal means that the store could not do its work.
func problemOf(err error) *goal.Problem {
	var p *goal.Problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, goal.ErrNotFound):
		return goal.NewProblem(goal.NotFound, "")
	case errors.Is(err, goal.ErrTooLarge):
		return goal.NewProblem(goal.PayloadTooLarge, "The goal does not fit into one message of the store.")
	case errors.Is(err, goal.ErrFull):
		return retryLater(goal.NewProblem(goal.QueueFull, "The queue takes no more goals at the moment."), 5)
	default:
		return retryLater(goal.NewProblem(goal.StoreUnavailable, "The store did not answer in time; the same request may be repeated with the same key."), 1)
	}
}

// expected reports whether the error is one that needs no entry in the log.
func expected(err error) bool {
	var p *goal.Problem
	return errors.As(err, &p) || errors.Is(err, goal.ErrNotFound) || errors.Is(err, goal.ErrFull) || errors.Is(err, goal.ErrTooLarge)
}

func retryLater(p *goal.Problem, seconds int) *goal.Problem {
	p.RetryAfter = seconds
	return p
}

// plainProblem is a problem that says no more than its HTTP status does
// (RFC 9457 section 4.2.1).
func plainProblem(status int, detail string) *goal.Problem {
	return &goal.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// fail answers with the problem of err.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		noteStatus(w, clientGone)
		return
	}
	if !expected(err) {
		s.cfg.Log.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "request_id", requestID(r), "error", err)
	}
	s.answerProblem(w, r, problemOf(err))
}

func (s *Server) answerProblem(w http.ResponseWriter, r *http.Request, problem *goal.Problem) {
	p := *problem // shared ones are never changed
	p.Instance = "/requests/" + requestID(r)
	h := w.Header()
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Kind() == goal.KeyReused {
		h.Set("X-Should-Retry", "false")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="goalkeeper"`)
	}
	h.Set("Cache-Control", "no-store")
	s.respond(w, r, p.Status, "application/problem+json", p)
}

// panicked answers a request whose handler panicked, unless it has begun to
// answer already.
func (s *Server) panicked(w *statusWriter, r *http.Request) {
	if w.status != 0 {
		panic(http.ErrAbortHandler) // cut the answer off: half of it must not look whole
	}
	s.answerProblem(w, r, goal.NewProblem(goal.InternalError, ""))
}

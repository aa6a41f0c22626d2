package ingest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

type contextKey int

const (
	keyRequestID contextKey = iota
	keyPrincipal
)

// statusWriter remembers the status that was sent, for metrics and panics.
type statusWriter struct {
	http.ResponseWriter

	status int
	route  string // pattern that the request was routed to
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what is below.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// noteStatus remembers a status that is not sent.
func noteStatus(w http.ResponseWriter, status int) {
	if sw, ok := w.(*statusWriter); ok && sw.status == 0 {
		sw.status = status
	}
}

// noteRoute remembers the pattern, which is known only below the router.
func noteRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sw, ok := w.(*statusWriter); ok {
			sw.route = r.Pattern
		}
		next.ServeHTTP(w, r)
	})
}

// outermost gives every request an id, a time to be answered in, and an answer
// even when its handler panics.
func (s *Server) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := inboundID(r)
		if id == "" {
			id = newID()
		}
		r = r.WithContext(context.WithValue(r.Context(), keyRequestID, id))
		sw := &statusWriter{ResponseWriter: w}
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		began := time.Now()
		limitTime(w, r, began)
		defer func() { //nolint:contextcheck // the request carries it
			if v := recover(); v != nil {
				if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(v)
				}
				s.cfg.Log.ErrorContext(r.Context(), "handler panicked", "path", r.URL.Path, "request_id", id,
					"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				s.panicked(sw, r)
			}
			s.metrics.request(sw.route, r.Method, sw.status, time.Since(began))
		}()
		next.ServeHTTP(sw, r)
	})
}

// limitTime bounds the time to send the body, also the part that no handler
// reads, and to take the answer. A body's limit is lifted by who has read it
// whole; without a body there is none, because the server reads ahead and takes
// a passed limit for a client that is gone.
func limitTime(w http.ResponseWriter, r *http.Request, now time.Time) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(now.Add(answerTimeout)) // not every writer has one
	if r.ContentLength != 0 {
		_ = rc.SetReadDeadline(now.Add(bodyTimeout))
	}
}

func requestID(r *http.Request) string {
	id, _ := r.Context().Value(keyRequestID).(string) // absent is empty
	return id
}

// inboundID is the caller's own request id, if it can stand in a log and in a
// URI as it is.
func inboundID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if len(id) > 64 || strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	}) {
		return ""
	}
	return id
}

// newID is a random UUID, version 4 (RFC 9562).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its own word
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	id := make([]byte, 0, 36)
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			id = append(id, '-')
		}
		id = hex.AppendEncode(id, []byte{c})
	}
	return string(id)
}

// exposed are the headers that a page of another origin may read.
var exposed = strings.Join([]string{
	"Allow", "Content-Location", "ETag", "Idempotent-Replayed", "Location", "Preference-Applied", "Retry-After", "X-Request-Id", "X-Should-Retry",
}, ", ")

// cors answers the configured origins (Fetch standard). Credentials are never
// allowed: the API key is a header that the page itself must set.
func (s *Server) cors(next http.Handler) http.Handler {
	if len(s.cfg.CORSOrigins) == 0 {
		return next
	}
	every := slices.Contains(s.cfg.CORSOrigins, "*")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if origin == "" || !every && !slices.Contains(s.cfg.CORSOrigins, origin) {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", exposed)
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
			h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Prefer, Traceparent, X-Request-Id")
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses unsafe requests that a browser sends for a page of an
// origin that is not configured. It matters for a server without keys, where a
// request needs no header that a foreign page could not send.
func (s *Server) sameOrigin(next http.Handler) (http.Handler, error) {
	if slices.Contains(s.cfg.CORSOrigins, "*") {
		return next, nil
	}
	guard := http.NewCrossOriginProtection()
	for _, origin := range s.cfg.CORSOrigins {
		if err := guard.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("ingest: CORS origin: %w", err)
		}
	}
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.answerProblem(w, r, plainProblem(http.StatusForbidden, "A page of another origin may not do this."))
	}))
	return guard.Handler(next), nil
}

// withPrincipal asks who calls.
func (s *Server) withPrincipal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := s.cfg.Auth.Authenticate(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyPrincipal, p)))
	})
}

// PrincipalOf is the caller of a request that came through Server.Handler. It
// is for the handlers that Config passes in.
func PrincipalOf(r *http.Request) (Principal, bool) {
	p, ok := r.Context().Value(keyPrincipal).(Principal)
	return p, ok
}

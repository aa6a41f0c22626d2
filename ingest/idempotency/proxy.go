package idempotency

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// proxy forwards requests and tells the guard what became of them when the
// upstream gave no whole answer.
func (r Route) proxy(target *url.URL, cfg Config) (handler http.Handler, closeIdle func()) {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: r.ConnectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       r.TLS.Clone(), // nil stays nil
		TLSHandshakeTimeout:   r.ConnectTimeout,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,      // or it would ask for gzip and undo it behind our back
		ResponseHeaderTimeout: r.Timeout, // for what passes unprotected; a protected call's context ends then too
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
	p := &httputil.ReverseProxy{
		Transport: witness{transport},
		Rewrite: func(pr *httputil.ProxyRequest) {
			r.rewrite(pr, target)
		},
		ModifyResponse: func(res *http.Response) error {
			ctx := res.Request.Context()
			if f := fateOf(ctx); f != nil {
				res.Body = &watchedBody{res.Body, f, func(err error) int { return gatewayStatus(ctx, err) }}
			}
			return nil
		},
		ErrorHandler: failed,
		ErrorLog:     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return p, transport.CloseIdleConnections
}

func (r Route) rewrite(pr *httputil.ProxyRequest, target *url.URL) {
	if r.StripPath && r.Path != "" {
		pr.Out.URL.Path = strings.TrimPrefix(pr.Out.URL.Path, r.Path)
		pr.Out.URL.RawPath = strings.TrimPrefix(pr.Out.URL.RawPath, r.Path)
	}
	pr.SetURL(target)
	// The backend gets the query that was compared, unparsable parts included.
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	if r.PreserveHost {
		pr.Out.Host = pr.In.Host
	}
	pr.SetXForwarded()
	hideKey(pr.Out.Header)
}

// hideKey renames the fields that make http.Transport believe that it may send
// a POST again by itself when a reused connection dies, after the backend may
// have acted: two effects under one lease. The Transport looks for the
// canonical spelling; on the wire, case does not matter.
func hideKey(h http.Header) {
	for _, name := range []string{HeaderKey, "X-Idempotency-Key"} {
		if lines, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = lines
		}
	}
}

// witness notes whether a connection to the upstream was there before the
// exchange failed. Without one, nothing can have happened.
type witness struct{ next http.RoundTripper }

func (t witness) RoundTrip(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	res, err := t.next.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil && !connected.Load() {
		err = &connectError{err}
	}
	return res, err
}

type connectError struct{ err error }

func (e *connectError) Error() string { return "connect: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// failed is ReverseProxy's ErrorHandler.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	kind, reason := fateUnknown, "the upstream gave no answer"
	status := gatewayStatus(r.Context(), err)
	detail := "The upstream gave no whole answer: the call may have taken effect."
	var connect *connectError
	switch {
	case errors.As(err, &connect):
		kind, reason, status = fateNothing, "the upstream could not be reached", http.StatusBadGateway
		detail = "The upstream could not be reached: the call was not executed."
	case status == http.StatusGatewayTimeout:
		reason = "the upstream did not answer in time"
	}
	p := problem(goal.DependencyNotAvailable, status, detail, 0)
	f := fateOf(r.Context())
	if f == nil {
		writeProblem(w, p)
		return
	}
	f.set(kind, reason, p)
	w.WriteHeader(status)
}

func gatewayStatus(ctx context.Context, err error) int {
	var timeout net.Error
	if errors.Is(context.Cause(ctx), ErrMaxRun) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout() {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// watchedBody notes an answer that ends before its end. A prefix must never be
// taken for the answer.
type watchedBody struct {
	io.ReadCloser
	fate   *fate
	status func(error) int
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.fate.set(fateUnknown, "the upstream's answer was cut",
			problem(goal.DependencyNotAvailable, b.status(err), "The upstream's answer was cut: the call took effect at least in part.", 0))
	}
	return n, err
}

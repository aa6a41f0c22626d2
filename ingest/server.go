package ingest

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// Server is the HTTP API and the direct way in. Its methods may be called
// concurrently.
type Server struct {
	cfg      Config
	mux      chi.Routes
	handler  http.Handler
	limits   *limits
	metrics  *metrics
	hub      *hub
	lists    *projection
	finished finished
	slots    chan struct{} // one per submission that is worked on

	draining  atomic.Bool
	drained   chan struct{} // closed when streams and waits must end
	drainOnce sync.Once
}

// New checks the settings and makes a Server. Nothing runs yet: Handler answers
// at once, Run keeps the views live and takes direct submissions.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     cfg,
		limits:  newLimits(cfg.Limit, cfg.Limits),
		metrics: m,
		hub:     newHub(cfg.MaxWatchers, m),
		lists:   newProjection(cfg.Tenants, cfg.ListSize),
		slots:   make(chan struct{}, cfg.MaxInFlight),
		drained: make(chan struct{}),
	}
	if s.handler, err = s.routes(); err != nil {
		return nil, err
	}
	return s, nil
}

// Handler is the whole HTTP API.
func (s *Server) Handler() http.Handler { return s.handler }

// Drain makes readyz turn, waits DrainGrace (at most until ctx ends) so that
// load balancers notice, and then ends event streams and waits, whose clients
// come back to another process. Submissions are answered until the HTTP server
// is shut down, which the caller does next. It may be called again.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	if s.cfg.DrainGrace > 0 {
		t := time.NewTimer(s.cfg.DrainGrace)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	s.drainOnce.Do(func() { close(s.drained) })
}

// NewHTTPServer is an http.Server with limits that fit the API: headers within
// 5 s and 32 KiB, idle connections for 2 minutes. There is no write limit for
// the whole server, because event streams have none; every other answer has one
// of its own.
func NewHTTPServer(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}

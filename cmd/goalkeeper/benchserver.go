package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
)

// benchServer says what a server for a benchmark must be able to do.
type benchServer struct {
	Mode       string // one of goalkeeper bench
	Via        string // nats: with a port for NATS clients
	Workers    int    // goals worked on at a time; 0: none is, goals stay queued
	Durability string // group or always
	Dir        string // of the temporary store; empty: the system's
	Fill       *benchFill
	Progress   func(format string, args ...any)
}

// runner is a part of the service that was opened.
type runner interface {
	run(ctx context.Context) error
	close()
	url() string
}

// startBenchServer starts a server on a free port with a store of its own. stop
// ends it and removes the store.
func startBenchServer(ctx context.Context, o benchServer) (server runner, stop func() error, err error) {
	dir, err := os.MkdirTemp(o.Dir, "goalkeeper-bench-")
	if err != nil {
		return nil, nil, fmt.Errorf("temporary folder: %w", err)
	}
	if err := o.fill(ctx, dir); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	opened := time.Now()
	r, endBackend, err := openBenchServer(ctx, o, dir)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	if o.Fill.wanted() {
		err = o.Fill.measure(dir, time.Since(opened))
	}
	if err != nil {
		r.close()
		return nil, nil, errors.Join(err, endBackend(), os.RemoveAll(dir))
	}
	end := start(ctx, r)
	return r, func() error {
		return errors.Join(end(), endBackend(), os.RemoveAll(dir))
	}, nil
}

// start runs r; stop ends it and waits for it.
func start(ctx context.Context, r runner) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }() // ends with cancel; stop reads it
	return func() error {
		cancel()
		err := <-ended
		r.close() // a gateway's connections to its backend too
		return err
	}
}

// fill fills the store in dir, with a server of its own.
func (o benchServer) fill(ctx context.Context, dir string) error {
	if !o.Fill.wanted() {
		return nil
	}
	filler := o
	filler.Mode, filler.Workers = "submit", 0
	r, _, err := openBenchServer(ctx, filler, dir)
	if err != nil {
		return err
	}
	defer r.close()
	s, ok := r.(*service)
	if !ok {
		return errors.New("only a server with a store can be filled")
	}
	o.Fill.empty = liveHeap()
	return o.Fill.fill(ctx, s.store, o.Progress)
}

func openBenchServer(ctx context.Context, o benchServer, dir string) (runner, func() error, error) {
	nothing := func() error { return nil }
	c := &config{Listen: anyPort, Data: dir, Durability: o.Durability, Worker: workerConfig{Concurrency: o.Workers}}
	c.Gateway.Listen = anyPort
	if o.Via == "nats" {
		c.NATS.Listen = anyPort
	}
	if o.Mode == "webhook" {
		c.Webhooks.Allow = []string{"127.0.0.0/8"}
	}
	c.defaults()
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.DiscardHandler)
	switch o.Mode {
	case "noop":
		r, err := openNoop(ctx)
		return r, nothing, err
	case "middleware":
		r, err := openMiddleware(ctx, c, log)
		return r, nothing, err
	case "gateway":
		backend, end, err := startBackend(ctx)
		if err != nil {
			return nil, nil, err
		}
		c.Gateway.Routes = []idempotency.Route{{Path: "/", Upstream: backend}}
		g, err := openGateway(ctx, c, log)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		return g, end, nil
	default:
		s, err := openService(ctx, c, roles{ingest: true, worker: o.Workers > 0, notifier: o.Mode == "webhook"}, log)
		return s, nothing, err
	}
}

// handlerRunner serves one handler.
type handlerRunner struct {
	listener net.Listener
	handler  http.Handler
	after    func()
}

func openHandler(ctx context.Context, h http.Handler, after func()) (*handlerRunner, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", anyPort)
	if err != nil {
		after()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &handlerRunner{listener: l, handler: h, after: after}, nil
}

func (r *handlerRunner) url() string { return "http://" + r.listener.Addr().String() }

func (r *handlerRunner) run(ctx context.Context) error {
	return serveListener(ctx, ingest.NewHTTPServer("", r.handler), r.listener)
}

func (r *handlerRunner) close() { r.after() }

// openNoop is the yardstick: the router and the HTTP server of the API before a
// handler that does nothing.
func openNoop(ctx context.Context) (runner, error) {
	mux := chi.NewRouter()
	mux.Post("/v1/tasks", answerAtOnce)
	return openHandler(ctx, mux, func() {})
}

// openMiddleware protects that handler by the idempotency middleware.
func openMiddleware(ctx context.Context, c *config, log *slog.Logger) (runner, error) {
	b, err := openBroker(c, log)
	if err != nil {
		return nil, err
	}
	guard, err := openGuard(ctx, c, b, log)
	if err != nil {
		b.close()
		return nil, err
	}
	mux := chi.NewRouter()
	mux.Handle("/*", guard.Wrap(http.HandlerFunc(answerAtOnce)))
	return openHandler(ctx, mux, func() { guard.Close(); b.close() })
}

func openGuard(ctx context.Context, c *config, b *broker, log *slog.Logger) (*idempotency.Guard, error) {
	store, err := openStore(ctx, c, b, log)
	if err != nil {
		return nil, err
	}
	calls, err := store.Calls(ctx)
	if err != nil {
		return nil, err
	}
	guard, err := idempotency.New(idempotency.Config{Store: calls, Log: log})
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	return guard, nil
}

func answerAtOnce(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a client that is gone needs no answer
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"done"}`)
}

const anyPort = "127.0.0.1:0"

// startBackend starts a backend that answers at once.
func startBackend(ctx context.Context) (url string, stop func() error, err error) {
	r, err := openHandler(ctx, http.HandlerFunc(answerAtOnce), func() {})
	if err != nil {
		return "", nil, err
	}
	return r.url(), start(ctx, r), nil
}

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

	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
)

// benchServer says what a server for a benchmark must be able to do.
type benchServer struct {
	Workers    int    // goals worked on at a time; 0: none is, goals stay queued
	Durability string // group or always
	Gateway    bool   // the URL is that of a gateway before a backend that answers at once
	Webhooks   bool   // receivers on loopback are allowed
	Dir        string // of the temporary store; empty: the system's
}

// runner is a part of the service that was opened.
type runner interface {
	run(ctx context.Context) error
	close()
	url() string
}

// startBenchServer starts a server on a free port with a store of its own, and
// returns its URL. stop ends it and removes the store.
func startBenchServer(ctx context.Context, o benchServer) (url string, stop func() error, err error) {
	dir, err := os.MkdirTemp(o.Dir, "goalkeeper-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("temporary folder: %w", err)
	}
	r, endBackend, err := openBenchServer(ctx, o, dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }() // ends with cancel; stop reads it
	return r.url(), func() error {
		cancel()
		err := <-ended
		r.close() // and with it the gateway's connections to the backend
		return errors.Join(err, endBackend(), os.RemoveAll(dir))
	}, nil
}

func openBenchServer(ctx context.Context, o benchServer, dir string) (runner, func() error, error) {
	c := &config{Listen: anyPort, Data: dir, Durability: o.Durability, Worker: workerConfig{Concurrency: o.Workers}}
	c.Gateway.Listen = anyPort
	if o.Webhooks {
		c.Webhooks.Allow = []string{"127.0.0.0/8"}
	}
	c.defaults()
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if !o.Gateway {
		s, err := openService(ctx, c, roles{ingest: true, worker: o.Workers > 0, notifier: o.Webhooks}, log)
		return s, func() error { return nil }, err
	}
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
}

const anyPort = "127.0.0.1:0"

// startBackend starts a backend that answers at once.
func startBackend(ctx context.Context) (url string, stop func() error, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", anyPort)
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the gateway is gone; there is nobody to tell
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"done"}`)
	})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- serveListener(ctx, s, l) }() // ends with cancel; stop reads it
	return "http://" + l.Addr().String(), func() error { cancel(); return <-ended }, nil
}

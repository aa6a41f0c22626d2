package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// roles are the stages that a process runs.
type roles struct{ ingest, worker, notifier bool }

var allRoles = roles{ingest: true, worker: true, notifier: true}

// service is the stages of one process on one store.
type service struct {
	cfg    *config
	log    *slog.Logger
	broker *broker
	store  *kv.Store
	envs   *environments
	reg    *prometheus.Registry
	tracer trace.Tracer
	times  storeTimes

	metrics *metrics // of the worker; nil: not this role

	ingest   *ingest.Server // nil: not this role
	worker   *worker.Worker
	notifier *notifier.Notifier
	keys     *ingest.Keys // nil: no API keys are configured
	listener net.Listener // of ingest
	admin    net.Listener // nil: none
	certs    *certificates

	flush func() // traces
}

const (
	openTimeout  = time.Minute      // of provisioning the streams
	drainTimeout = 30 * time.Second // of the requests in flight
	readyTimeout = 2 * time.Second  // of NATS to answer a probe
)

// openService binds and checks everything, and fails when something is wrong.
// Nothing works yet: call run, and close in any case.
func openService(ctx context.Context, c *config, r roles, log *slog.Logger) (_ *service, err error) {
	s := &service{cfg: c, log: log, reg: newRegistry(), flush: func() {}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if r.ingest {
		if err := c.checkListen(c.Listen); err != nil {
			return nil, err
		}
		if s.certs, err = openCertificates(c.TLS); err != nil {
			return nil, err
		}
		if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	if c.AdminListen != "" {
		if s.admin, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.AdminListen); err != nil {
			return nil, fmt.Errorf("admin_listen: %w", err)
		}
	}
	if s.broker, err = openBroker(c, log); err != nil {
		return nil, err
	}
	if err := s.broker.checkMarks(ctx, log); err != nil {
		return nil, fmt.Errorf("look at the streams: %w", err)
	}
	if s.store, err = openStore(ctx, c, s.broker, log); err != nil {
		return nil, err
	}
	if s.tracer, s.flush, err = openTracer(ctx, c.Telemetry, r.name(), log); err != nil {
		s.flush = func() {}
		return nil, err
	}
	m := newMetrics(s.reg)
	s.times = newStoreTimes(s.reg)
	if r.ingest || r.worker {
		if s.envs, err = openEnvironments(ctx, c, s.store, m, s.tracer, log); err != nil {
			return nil, err
		}
		s.reg.MustRegister(newQueueCollector(s.store, c.tenantNames()))
	}
	if r.worker {
		s.metrics = m
	}
	if r.ingest {
		if err := s.openIngest(ctx); err != nil {
			return nil, err
		}
	}
	if r.worker {
		if err := s.openWorker(ctx, m); err != nil {
			return nil, err
		}
	}
	if r.notifier {
		if err := s.openNotifier(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (r roles) name() string {
	switch r {
	case roles{ingest: true}:
		return "ingest"
	case roles{worker: true}:
		return "worker"
	case roles{notifier: true}:
		return "notifier"
	default:
		return "serve"
	}
}

func openStore(ctx context.Context, c *config, b *broker, log *slog.Logger) (*kv.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s, err := kv.Open(ctx, storeConfig(c, b, log))
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	return s, nil
}

func storeConfig(c *config, b *broker, log *slog.Logger) kv.Config {
	kc := kv.Config{
		Conn: b.conn, Replicas: c.NATS.Replicas, Retention: time.Duration(c.Retention), Tenants: c.tenantNames(),
		LocksInMemory: true, Log: log, // a lease that dies with the server is an expired lease
		MaxQueued: c.maxQueued(),
	}
	if b.barrier != nil {
		kc.Barrier = b.barrier
	}
	return kc
}

func (s *service) openWorker(ctx context.Context, m *metrics) error {
	queues := map[string]worker.Queue{}
	wait := s.cfg.Worker.AckWait.or(worker.DefaultAckWait)
	for _, t := range s.cfg.Tenants {
		q, err := s.store.Queue(ctx, t.Name, kv.QueueConfig{AckWait: wait, MaxAckPending: t.MaxRunning})
		if err != nil {
			return fmt.Errorf("queue of tenant %s: %w", t.Name, err)
		}
		queues[t.Name] = workerQueue{q}
	}
	cfg := worker.Config{
		Queues: queues, Store: taskStore{workerStore{s.store}, s.times}, Environments: s.envs, Balance: s.envs.agentBalance(),
		Concurrency: s.cfg.Worker.Concurrency, AckWait: wait, Grace: time.Duration(s.cfg.Worker.Grace),
		Log: s.log, Observer: m, Hook: crashHook(),
	}
	if s.traces() {
		cfg.Trace = traceAttempt(s.tracer)
	}
	var err error
	s.worker, err = worker.New(cfg)
	return err
}

func (s *service) openIngest(ctx context.Context) error {
	auth, err := s.authenticator()
	if err != nil {
		return err
	}
	guard, err := notifier.NewGuard(s.cfg.Webhooks.Allow...)
	if err != nil {
		return fmt.Errorf("webhooks.allow: %w", err)
	}
	pages, err := s.openDashboard(auth)
	if err != nil {
		return err
	}
	calls, err := s.store.Calls(ctx)
	if err != nil {
		return err
	}
	var intake ingest.Intake = s.store
	if s.traces() {
		intake = tracedIntake{s.store, s.tracer}
	}
	var store ingest.Store = submitStore{s.store, s.times}
	preflight := s.envs.preflight
	if crash := crashHook(); crash != nil {
		store, intake = crashingStore{submitStore{s.store, s.times}, crash}, crashingIntake{intake, crash}
		preflight = func(ctx context.Context, p ingest.Principal, g goal.Goal, dry bool) (ingest.Report, error) {
			crash(crashParsed)
			return s.envs.preflight(ctx, p, g, dry)
		}
	}
	s.ingest, err = ingest.New(ingest.Config{
		Store: store, Auth: auth, Preflight: preflight, CheckWebhook: guard.CheckURL,
		Tenants: s.cfg.tenantNames(), Alone: s.broker.server != nil && s.cfg.NATS.Listen == "", Tail: s.store, Catalog: s.envs, Intake: intake, Deliveries: deliveries{s.store},
		Ready: s.ready, Limits: s.cfg.limits(), CORSOrigins: s.cfg.CORS,
		Metrics: promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{}), Registerer: s.reg, Log: s.log, Pages: pages,
		Admin: adminRoutes(callsHandler(calls), webhookAdmin(s.store, guard.CheckURL)), DirectRoles: s.cfg.directRoles,
	})
	return err
}

// authenticator knows the configured keys. Without any, everybody is the first
// tenant and has every role: on loopback, or wherever --insecure says so.
func (s *service) authenticator() (ingest.Authenticator, error) {
	if !s.cfg.hasKeys() {
		anonymous := ingest.Anonymous
		if s.cfg.Insecure {
			anonymous = ingest.AnonymousEverywhere
		}
		return anonymous(s.cfg.Tenants[0].Name, s.cfg.everyRole()...), nil
	}
	var err error
	s.keys, err = ingest.NewKeys(s.cfg.apiKeys())
	return s.keys, err
}

func (s *service) ready(ctx context.Context) error {
	if !s.broker.conn.IsConnected() {
		return errors.New("not connected to NATS")
	}
	if err := s.broker.fault(); err != nil {
		return err
	}
	return s.broker.conn.FlushWithContext(ctx)
}

// reopen provisions what the embedded server kept in memory.
func (s *service) reopen(ctx context.Context) error {
	_, err := openStore(ctx, s.cfg, s.broker, s.log)
	return err
}

// traces reports whether spans go anywhere.
func (s *service) traces() bool { return s.cfg.Telemetry.OTLPEndpoint != "" }

// url is where ingest can be reached.
func (s *service) url() string {
	scheme := "http"
	if s.certs != nil {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String()
}

// run works until ctx ends and then drains: ingest first, so that nothing new
// comes in; the worker and the notifier finish what they hold.
func (s *service) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.broker.mend(ctx, s.reopen, s.log) })
	g.Go(func() error { return s.broker.keepMarks(ctx, s.log) })
	if s.ingest != nil {
		g.Go(func() error { return s.ingest.Run(ctx) })
		g.Go(func() error { return s.serveHTTP(ctx) })
	}
	if s.worker != nil {
		g.Go(func() error { return s.worker.Run(ctx) })
	}
	if s.notifier != nil {
		g.Go(func() error { return s.notifier.Run(ctx) })
	}
	if s.admin != nil {
		g.Go(func() error {
			return serveListener(ctx, ingest.NewHTTPServer("", s.adminHandler()), s.admin)
		})
	}
	return g.Wait()
}

func (s *service) serveHTTP(ctx context.Context) error {
	h := s.ingest.Handler()
	if s.traces() {
		h = traceHTTP(s.tracer, h)
	}
	srv := ingest.NewHTTPServer("", h)
	ln := s.listener
	if s.certs != nil {
		ln = tls.NewListener(ln, &tls.Config{GetCertificate: s.certs.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	}
	return serveListener(ctx, srv, ln, s.ingest.Drain)
}

// serveListener serves until ctx ends, drains, and waits for requests in
// flight.
func serveListener(ctx context.Context, srv *http.Server, ln net.Listener, drain ...func(context.Context)) error {
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }() // ends with Shutdown or an error; read below
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	for _, f := range drain {
		f(end)
	}
	if err := srv.Shutdown(end); err != nil {
		_ = srv.Close() // the requests had their time
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	}
	return nil
}

// adminHandler has the profiles, the metrics and, for roles without an API, the
// probes. It has no authentication: its
// listener belongs on loopback or behind a firewall.
func (s *service) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if s.ready(ctx) != nil {
			http.Error(w, "no connection to NATS", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n") // who asked may be gone
	})
	mux.Handle("/metrics", promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{}))
	return mux
}

// close releases what openService took, last things first. It may follow a
// half-done open.
func (s *service) close() {
	if s.envs != nil {
		s.envs.Close()
	}
	s.flush()
	if s.broker != nil {
		s.broker.close()
	}
	for _, ln := range []net.Listener{s.listener, s.admin} {
		if ln != nil {
			_ = ln.Close() // closed already after run
		}
	}
}

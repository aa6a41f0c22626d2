package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
)

type gatewayCmd struct {
	common
	Listen   string `env:"GOALKEEPER_GATEWAY_LISTEN" help:"Address of the gateway (default 127.0.0.1:8090)."`
	Upstream string `env:"GOALKEEPER_UPSTREAM" help:"URL of the one backend; several are configured as gateway.routes."`
	Data     string `env:"GOALKEEPER_DATA" type:"path" help:"Folder of the embedded store (default ./data)."`
	Hold     bool   `help:"With --upstream: keep a call whose outcome is unknown until an operator decides."`
}

// Run implements the verb.
func (g *gatewayCmd) Run(ctx context.Context, io streams) error {
	c, err := g.load()
	if err != nil {
		return err
	}
	override(&c.Gateway.Listen, g.Listen)
	override(&c.Data, g.Data)
	if g.Upstream != "" {
		r := idempotency.Route{Path: "/", Upstream: g.Upstream}
		if g.Hold {
			r.OnAmbiguous = idempotency.Hold
		}
		c.Gateway.Routes = []idempotency.Route{r}
	}
	if len(c.Gateway.Routes) == 0 {
		return usageError("no backend: give --upstream or gateway.routes")
	}
	log := newLogger(c.Log, io.err)
	gw, err := openGateway(ctx, c, log)
	if err != nil {
		return err
	}
	defer gw.close()
	fmt.Fprintf(io.err, "durability: %s\nlistening on %s\n", gw.broker.how, gw.url())
	return gw.run(ctx)
}

// gateway is the reverse proxy on its store.
type gateway struct {
	log      *slog.Logger
	broker   *broker
	handler  *idempotency.Gateway
	listener net.Listener
	admin    net.Listener // nil: none
	adminMux http.Handler
}

// openGateway binds and checks everything. Call run, and close in any case.
func openGateway(ctx context.Context, c *config, log *slog.Logger) (_ *gateway, err error) {
	g := &gateway{log: log}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if g.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Gateway.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if c.AdminListen != "" {
		if g.admin, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.AdminListen); err != nil {
			return nil, fmt.Errorf("admin_listen: %w", err)
		}
	}
	if g.broker, err = openBroker(c, log); err != nil {
		return nil, err
	}
	store, err := openStore(ctx, c, g.broker, log)
	if err != nil {
		return nil, err
	}
	calls, err := store.Calls(ctx)
	if err != nil {
		return nil, err
	}
	reg := newRegistry()
	tenant := c.Gateway.Tenant
	setDefault(&tenant, c.Tenants[0].Name)
	g.handler, err = idempotency.NewGateway(idempotency.GatewayConfig{
		Guard: idempotency.Config{
			Store: calls, Registerer: reg, Log: log, Tenant: func(*http.Request) (string, error) { return tenant, nil },
		},
		Routes: c.Gateway.Routes,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.Handle("/v1/admin/", http.StripPrefix("/v1/admin", callsHandler(calls)))
	g.adminMux = mux
	return g, nil
}

// url is where the gateway can be reached.
func (g *gateway) url() string { return "http://" + g.listener.Addr().String() }

// run serves until ctx ends, and waits for the calls in flight.
func (g *gateway) run(ctx context.Context) error {
	if g.admin != nil {
		admin := ingest.NewHTTPServer("", g.adminMux)
		done := make(chan error, 1)
		go func() { done <- serveListener(ctx, admin, g.admin) }()
		defer func() {
			if err := <-done; err != nil {
				g.log.WarnContext(ctx, "the operator's view failed", "error", err)
			}
		}()
	}
	srv := &http.Server{Handler: g.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	return serveListener(ctx, srv, g.listener)
}

func (g *gateway) close() {
	if g.handler != nil {
		g.handler.Close()
	}
	if g.broker != nil {
		g.broker.close()
	}
	for _, ln := range []net.Listener{g.listener, g.admin} {
		if ln != nil {
			_ = ln.Close() // closed already after run
		}
	}
}

// callsHandler is the operator's view of protected calls. It authenticates
// nobody itself; where ingest did, it records who decided.
func callsHandler(calls callStore) http.Handler {
	op := &idempotency.Operator{Store: calls}
	return idempotency.AdminHandler(op, func(r *http.Request) string {
		if who, ok := ingest.PrincipalOf(r); ok {
			return who.Name
		}
		return "operator at " + r.RemoteAddr
	})
}

type callStore interface {
	idempotency.Store
	idempotency.Lister
}

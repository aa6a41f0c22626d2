package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
)

// common are the flags of every verb that runs a part of the service. A flag
// that is given wins over the configuration file.
type common struct {
	Config string `short:"c" env:"GOALKEEPER_CONFIG" type:"path" help:"Configuration file (YAML)."`
	NATS   string `name:"nats" env:"GOALKEEPER_NATS" help:"URL of external NATS servers; without it the store is embedded."`
	Inbox  string `name:"nats-inbox" env:"GOALKEEPER_NATS_INBOX" help:"Prefix of the subjects on which NATS answers, where the user's permissions demand one."`
	Admin  string `name:"admin-listen" env:"GOALKEEPER_ADMIN_LISTEN" help:"Address for profiles and metrics."`
}

func (f common) load() (*config, error) {
	c, err := loadConfig(f.Config)
	if err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	if f.NATS != "" {
		if c.NATS.URL == "" && c.NATS.Replicas == 1 {
			c.NATS.Replicas = 0 // was the embedded default
		}
		c.NATS.URL = f.NATS
		c.defaults()
	}
	override(&c.NATS.InboxPrefix, f.Inbox)
	override(&c.AdminListen, f.Admin)
	return c, nil
}

func override[T comparable](p *T, v T) {
	var zero T
	if v != zero {
		*p = v
	}
}

type listenFlags struct {
	Listen   string `env:"GOALKEEPER_LISTEN" help:"Address of the HTTP API (default 127.0.0.1:8080)."`
	Insecure bool   `help:"Listen beyond loopback although no API key is configured."`
}

type serveCmd struct {
	common
	listenFlags
	Data       string `env:"GOALKEEPER_DATA" type:"path" help:"Folder of the embedded store (default ./data)."`
	Durability string `env:"GOALKEEPER_DURABILITY" help:"group: writes share file system syncs (default); always: one sync a message."`
	NATSListen string `name:"nats-listen" env:"GOALKEEPER_NATS_LISTEN" help:"Let the embedded NATS listen here for direct clients."`
}

// Run implements the verb.
func (s *serveCmd) Run(ctx context.Context, io streams) error {
	c, err := s.load()
	if err != nil {
		return err
	}
	override(&c.Listen, s.Listen)
	override(&c.Data, s.Data)
	override(&c.Durability, s.Durability)
	override(&c.NATS.Listen, s.NATSListen)
	c.Insecure = c.Insecure || s.Insecure
	return serveRoles(ctx, c, s.Config, allRoles, io)
}

type ingestCmd struct {
	common
	listenFlags
}

// Run implements the verb.
func (s *ingestCmd) Run(ctx context.Context, io streams) error {
	c, err := s.load()
	if err != nil {
		return err
	}
	override(&c.Listen, s.Listen)
	c.Insecure = c.Insecure || s.Insecure
	return serveOne(ctx, c, s.Config, roles{ingest: true}, io)
}

type workerCmd struct {
	common
	Concurrency int `env:"GOALKEEPER_CONCURRENCY" help:"Goals at a time (default 64)."`
}

// Run implements the verb.
func (s *workerCmd) Run(ctx context.Context, io streams) error {
	c, err := s.load()
	if err != nil {
		return err
	}
	override(&c.Worker.Concurrency, s.Concurrency)
	return serveOne(ctx, c, s.Config, roles{worker: true}, io)
}

type notifierCmd struct{ common }

// Run implements the verb.
func (s *notifierCmd) Run(ctx context.Context, io streams) error {
	c, err := s.load()
	if err != nil {
		return err
	}
	return serveOne(ctx, c, s.Config, roles{notifier: true}, io)
}

// serveOne runs one role alone, which needs a store that others can reach.
func serveOne(ctx context.Context, c *config, path string, r roles, io streams) error {
	if c.NATS.URL == "" {
		return usageError("a role alone needs an external NATS: give --nats or nats.url")
	}
	return serveRoles(ctx, c, path, r, io)
}

// serveRoles runs the roles until ctx ends. SIGHUP reads the configuration
// again.
func serveRoles(ctx context.Context, c *config, path string, r roles, io streams) error {
	if err := c.check(); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	log := newLogger(c.Log, io.err)
	log.InfoContext(ctx, "settings in force", "settings", c.String())
	s, err := openService(ctx, c, r, log)
	if err != nil {
		return err
	}
	defer s.close()
	fmt.Fprintf(io.err, "durability: %s\n", s.broker.how)
	if s.ingest != nil {
		fmt.Fprintf(io.err, "listening on %s\n", s.url())
	}
	if s.broker.server != nil && c.NATS.Listen != "" {
		fmt.Fprintf(io.err, "NATS on %s\n", s.broker.server.ClientURL())
	}
	stop := s.reloadOnSignal(ctx, path, log)
	defer stop()
	if err := s.run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.InfoContext(ctx, "stopped")
	return nil
}

// reloadOnSignal replaces API keys and certificates on SIGHUP. A file that is
// not valid changes nothing and says why.
func (s *service) reloadOnSignal(ctx context.Context, path string, log *slog.Logger) (stop func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hup {
			if err := s.reload(path); err != nil {
				log.ErrorContext(ctx, "reload failed, nothing has changed", "error", err)
				continue
			}
			log.InfoContext(ctx, "reloaded API keys and certificates")
		}
	}()
	return func() {
		signal.Stop(hup)
		close(hup)
		<-done
	}
}

// reload looks at everything first, so that what fails changes nothing.
func (s *service) reload(path string) error {
	c, err := loadConfig(path)
	if err != nil {
		return err
	}
	if s.ingest == nil {
		return nil
	}
	if c.hasKeys() != (s.keys != nil) {
		return errors.New("the first key cannot be added, nor the last one removed, without a restart")
	}
	keys := c.apiKeys()
	for _, k := range keys {
		if !slices.Contains(s.cfg.tenantNames(), k.Tenant) {
			return fmt.Errorf("tenant %s is new: it needs a restart", k.Tenant)
		}
	}
	if (c.TLS == tlsConfig{}) != (s.certs == nil) {
		return errors.New("TLS can be turned on or off only by a restart")
	}
	var cert *tls.Certificate
	if s.certs != nil {
		if cert, err = c.TLS.load(); err != nil {
			return err
		}
	}
	if s.keys != nil {
		if err := s.keys.Replace(keys); err != nil {
			return err
		}
	}
	if cert != nil {
		s.certs.current.Store(cert)
	}
	return nil
}

// tenantNames are the configured tenants.
func (c *config) tenantNames() []string {
	out := make([]string, 0, len(c.Tenants))
	for _, t := range c.Tenants {
		out = append(out, t.Name)
	}
	return out
}

// maxQueued are the bounds of the tenants' unfinished goals.
func (c *config) maxQueued() map[string]int {
	out := map[string]int{}
	for _, t := range c.Tenants {
		out[t.Name] = t.MaxQueued
	}
	return out
}

// everyRole are the roles that the configuration names, and the operators'.
func (c *config) everyRole() []string {
	out := []string{"admin"}
	for _, e := range c.Environments {
		out = append(out, e.Roles...)
		for _, t := range e.Tools {
			out = append(out, t.Roles...)
		}
		for _, m := range e.MCP {
			out = append(out, m.Roles...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *config) apiKeys() []ingest.Key {
	var out []ingest.Key
	for _, t := range c.Tenants {
		for _, k := range t.Keys {
			out = append(out, ingest.Key{SHA256: k.SHA256, Tenant: t.Name, Name: k.Name, Roles: k.Roles})
		}
	}
	return out
}

// directRoles are the roles of a tenant's submissions over NATS.
func (c *config) directRoles(tenant string) []string {
	for _, t := range c.Tenants {
		if t.Name == tenant {
			return t.DirectRoles
		}
	}
	return nil
}

func (c *config) limits() map[string]ingest.Limit {
	out := map[string]ingest.Limit{}
	for _, t := range c.Tenants {
		out[t.Name] = ingest.Limit{PerSecond: t.Rate, Burst: t.Burst}
	}
	return out
}

// crashHook ends the process as a crash would, at the point that the
// environment variable names: the crash tests' way in. It is nil otherwise.
func crashHook() func(string) {
	at := os.Getenv("GOALKEEPER_TEST_CRASH_AT")
	if at == "" {
		return nil
	}
	return func(point string) {
		if point == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

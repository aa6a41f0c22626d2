package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// probe checks a third party before a goal is accepted and before it starts.
type probe struct {
	name    string
	timeout time.Duration
	check   func(ctx context.Context) error
}

// Name implements agent.Probe.
func (p probe) Name() string { return p.name }

// Check implements agent.Probe.
func (p probe) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.check(ctx)
}

const probeTimeout = 3 * time.Second

func newProbe(c probeConfig) (agent.Probe, error) {
	p := probe{name: c.Name, timeout: c.Timeout.or(probeTimeout)}
	switch {
	case c.HTTP != "" && c.TCP == "":
		setDefault(&p.name, goal.RedactURL(c.HTTP))
		p.check = func(ctx context.Context) error { return probeHTTP(ctx, c.HTTP) }
	case c.TCP != "" && c.HTTP == "":
		setDefault(&p.name, c.TCP)
		p.check = func(ctx context.Context) error { return probeTCP(ctx, c.TCP) }
	default:
		return nil, errors.New("want exactly one of http and tcp")
	}
	return p, nil
}

// probeClient has a connection of its own per probe: a pooled one would hide
// that the dependency is gone.
var probeClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func probeHTTP(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return unwrapURL(err)
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		return unwrapURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("answered %d", resp.StatusCode)
	}
	return nil
}

func probeTCP(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

package planner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Defaults and limits of planners behind HTTP.
const (
	DefaultTimeout = 60 * time.Second // of one answer
	maxAnswer      = 4 << 20          // bytes
	maxWait        = 60 * time.Second // that a Retry-After is honoured for
	maxCause       = 300              // bytes of a server's message that an error shows
)

// client posts JSON to one address. It neither follows redirects nor repeats:
// the loop asks again, since deciding has no side effect.
type client struct {
	url       string
	headers   map[string]string // secrets among them; never shown
	timeout   time.Duration
	transport *http.Transport
}

func newClient(rawURL string, headers map[string]string, timeout time.Duration) (*client, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("planner: not an absolute http or https URL")
	}
	for name, value := range headers {
		if name == "" || strings.ContainsAny(name, " \t\r\n:") || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("planner: header %q is malformed", name)
		}
	}
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &client{url: u.String(), headers: headers, timeout: timeout, transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
	}}, nil
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// post sends a body. Its errors are *agent.PlannerError of kind unavailable.
func (c *client) post(ctx context.Context, body []byte) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return reply{}, &agent.PlannerError{Kind: agent.PlannerConfig, Err: errors.New("the request could not be made")}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "goalkeeper")
	for name, value := range c.headers {
		req.Header.Set(name, value)
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := (&http.Client{Transport: c.transport, CheckRedirect: noRedirect}).Do(req)
	if err != nil {
		return reply{}, unavailable(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return reply{}, unavailable(err)
	case len(raw) > maxAnswer:
		return reply{}, unavailable(fmt.Errorf("the answer is larger than %d bytes", maxAnswer))
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: raw}, nil
}

// unavailable classifies a failure that says nothing about the question. A
// URL in it is dropped, since its query may hold secrets.
func unavailable(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	return &agent.PlannerError{Kind: agent.PlannerUnavailable, Err: err}
}

// failure classifies an answer that is an error by its status. The cause is
// what the server said.
func failure(r reply, cause string) *agent.PlannerError {
	e := &agent.PlannerError{Kind: agent.PlannerConfig, Err: fmt.Errorf("status %d: %s", r.status, clip(cause))}
	switch {
	case r.status == http.StatusPaymentRequired:
		e.Kind = agent.PlannerQuota
	case r.status == http.StatusRequestEntityTooLarge:
		e.Kind = agent.PlannerContext
	case r.status >= 500, r.status == http.StatusTooManyRequests, r.status == http.StatusRequestTimeout,
		r.status == http.StatusConflict, r.status == http.StatusTooEarly:
		e.Kind, e.Retry = agent.PlannerUnavailable, wait(r.header, time.Now())
	}
	return e
}

// clip cuts a server's text and makes one line of it.
func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxCause {
		s = s[:maxCause] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// wait reads how long the server asks to wait: retry-after-ms, else
// Retry-After as seconds, fractions too, or as a date.
func wait(h http.Header, now time.Time) time.Duration {
	d := time.Duration(0)
	after := strings.TrimSpace(h.Get("Retry-After"))
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil {
		d = seconds(ms / 1000)
	} else if s, err := strconv.ParseFloat(after, 64); err == nil {
		d = seconds(s)
	} else if at, err := http.ParseTime(after); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxWait)
}

// seconds converts without overflow; what is no number is none.
func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, maxWait.Seconds()) * float64(time.Second))
}

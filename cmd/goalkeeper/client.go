package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits of the HTTP client.
const (
	answerTime    = 30 * time.Second // for one whole answer, beyond what it was asked to be held
	maxAnswer     = 64 << 20         // bytes of one answer: a whole trace is the largest
	maxTries      = 5                // of a request that may be repeated
	firstPause    = 250 * time.Millisecond
	longestPause  = 10 * time.Second
	longestBidden = 30 * time.Second // a longer Retry-After is left to the user
)

// client talks to one server. Its methods may be called concurrently.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
	notef func(format string, args ...any)
}

// newClient checks the server's URL. notef is told about repetitions.
func newClient(server, token string, notef func(string, ...any)) (*client, error) {
	base, err := url.Parse(strings.TrimRight(server, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") || base.User != nil || base.RawQuery != "" {
		return nil, usageError("server %q is not of the form http://host:port or https://host", goal.RedactURL(server))
	}
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default HTTP transport was replaced")
	}
	transport = transport.Clone()
	transport.MaxIdleConnsPerHost = 1024 // bench: as many as it has in flight
	return &client{
		base: base, token: token, notef: notef,
		// The API never redirects; following one would carry the key elsewhere.
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}, nil
}

// close lets go of idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// request is one call of the API.
type request struct {
	method string
	path   string
	query  url.Values
	header map[string]string
	body   []byte
	repeat bool          // it may be sent again: it is idempotent
	hold   time.Duration // how long the server was asked to hold the answer
}

// response is a whole answer with a status below 400.
type response struct {
	status int
	header http.Header
	body   []byte
}

// decode reads the answer's JSON into v.
func (r *response) decode(v any) error {
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return nil
}

// get reads the resource into v.
func (c *client) get(ctx context.Context, path string, query url.Values, v any) error {
	r, err := c.do(ctx, request{method: http.MethodGet, path: path, query: query, repeat: true})
	if err != nil {
		return err
	}
	return r.decode(v)
}

// do sends a request. A status of 400 or more is a *goal.Problem. A request
// that may be repeated is sent again, at most maxTries times in all, after 429,
// 503 and a lost answer; when no connection could be made it is not.
func (c *client) do(ctx context.Context, q request) (*response, error) {
	for try := 1; ; try++ {
		r, err := c.once(ctx, q)
		if err == nil {
			return r, nil
		}
		pause, worth := again(err, try)
		if !worth || !q.repeat || try == maxTries || ctx.Err() != nil {
			return nil, err
		}
		c.notef("%v; trying again in %s", err, short(pause))
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// again says whether an error may pass, and when to try again.
func again(err error, try int) (time.Duration, bool) {
	pause := backOff(try)
	if p, ok := errors.AsType[*goal.Problem](err); ok {
		if p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
			return 0, false
		}
		bidden := time.Duration(p.RetryAfter) * time.Second
		return max(pause, bidden), bidden <= longestBidden
	}
	return pause, !errors.Is(err, errNoConnection) && !errors.Is(err, context.Canceled)
}

// backOff is the pause after the n-th try: doubled each time, capped, and
// shortened by up to half, so that clients do not come back together.
func backOff(n int) time.Duration {
	d := min(firstPause<<min(max(n-1, 0), 10), longestPause)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter needs no secrecy
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errNoConnection says that nothing was sent.
var errNoConnection = errors.New("no connection to the server")

// once sends a request once.
func (c *client) once(ctx context.Context, q request) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime+q.hold)
	defer cancel()
	res, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the server's answer is larger than %d bytes", maxAnswer)
	}
	if res.StatusCode >= http.StatusMultipleChoices && res.StatusCode != http.StatusNotModified {
		return nil, problemOf(res, body)
	}
	return &response{status: res.StatusCode, header: res.Header, body: body}, nil
}

// open sends a request and returns the answer with its body unread.
func (c *client) open(ctx context.Context, q request) (*http.Response, error) {
	u := *c.base
	u.Path += q.path
	u.RawQuery = q.query.Encode()
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/problem+json")
	req.Header.Set("User-Agent", "goalkeeper/"+version())
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, v := range q.header {
		req.Header.Set(name, v)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	return res, nil
}

// transportError says what happened without Go's request prefix, and tells a
// connection that could not be made from an answer that was lost. Where the
// context's own cause (an interrupt, --timeout) is behind it, that is the error.
func (c *client) transportError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	server := c.base.Redacted()
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("%w at %s: %w", errNoConnection, server, op.Err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer in time", server)
	}
	return fmt.Errorf("%s: %w", server, err)
}

// problemOf makes the error of a refused request, also where the answer comes
// from something in between that knows no problem details.
func problemOf(res *http.Response, body []byte) *goal.Problem {
	p := &goal.Problem{}
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil || media != "application/problem+json" || json.Unmarshal(body, p) != nil || p.Title == "" {
		p = &goal.Problem{Type: "about:blank", Title: http.StatusText(res.StatusCode), Detail: oneLine(string(body), 200)}
	}
	p.Status = res.StatusCode
	if bidden := retryAfter(res.Header.Get("Retry-After"), time.Now()); bidden > 0 {
		p.RetryAfter = bidden
	}
	return p
}

// retryAfter reads a Retry-After field, in whole seconds: a number or a date.
// 0 means none.
func retryAfter(field string, now time.Time) int {
	if n, err := strconv.Atoi(field); err == nil {
		return max(n, 0)
	}
	at, err := http.ParseTime(field)
	if err != nil {
		return 0
	}
	return max(int(at.Sub(now).Seconds()+0.999), 0)
}

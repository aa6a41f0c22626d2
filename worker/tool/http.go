package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Defaults and limits of an HTTP tool.
const (
	DefaultTimeout     = 10 * time.Second // of one attempt
	DefaultRetries     = 2                // after the first attempt
	DefaultMaxResponse = 8 << 20          // bytes that are read of an answer
	maxIdleConns       = 64               // per host
	maxHeaderBytes     = 64 << 10
	maxRedirects       = 3
)

// HTTPTool configures one HTTP endpoint as a tool.
type HTTPTool struct {
	Name        string
	Description string
	Method      string // GET, HEAD, POST, PUT, PATCH or DELETE; empty: POST
	URL         string // template, see ParseTemplate
	InputSchema json.RawMessage
	Roles       []string          // empty: everybody
	Timeout     time.Duration     // of one attempt; 0: DefaultTimeout
	Retries     int               // after the first attempt; 0: DefaultRetries, negative: none
	Replay      goal.Replay       // empty: read for GET and HEAD, else unsafe
	Headers     map[string]string // may hold secrets; never logged
	MaxResponse int64             // bytes; 0: DefaultMaxResponse
}

// Objects stores results that are too large for the journal. PutObject may be
// repeated and called concurrently.
type Objects interface {
	PutObject(ctx context.Context, data []byte) (name string, err error)
}

// HTTPConfig configures a group of HTTP tools.
type HTTPConfig struct {
	Tools   []HTTPTool
	Objects Objects      // nil: what is too large is cut
	Log     *slog.Logger // nil: slog.Default
}

// HTTP is tools that are HTTP endpoints. The arguments that the URL names go
// there; the others are the JSON body, or the query for GET and HEAD.
type HTTP struct {
	tools   map[string]*endpoint
	results results
	log     *slog.Logger
	pooled  *http.Transport
	single  *http.Transport // for unsafe tools: every call has its own connection
}

// endpoint is a checked HTTPTool.
type endpoint struct {
	HTTPTool
	url       *Template
	inURL     []string
	schema    schema
	transport *http.Transport
}

// NewHTTP checks the tools. Close it at the end.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	h := &HTTP{
		tools: map[string]*endpoint{}, results: results{objects: cfg.Objects, log: cfg.Log}, log: cfg.Log,
		pooled: newTransport(false), single: newTransport(true),
	}
	if h.log == nil {
		h.log = slog.Default()
		h.results.log = h.log
	}
	for _, t := range cfg.Tools {
		e, err := newEndpoint(t)
		if err != nil {
			return nil, fmt.Errorf("tool %q: %w", t.Name, err)
		}
		if h.tools[t.Name] != nil {
			return nil, fmt.Errorf("tool %q is defined twice", t.Name)
		}
		e.transport = h.pooled
		if e.Replay == goal.ReplayUnsafe {
			e.transport = h.single
		}
		h.tools[t.Name] = e
	}
	return h, nil
}

// newTransport makes a transport. One without keep-alives never meets a dead
// idle connection, so net/http has no reason to send a request again by itself.
func newTransport(single bool) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
		ForceAttemptHTTP2:      !single,
		DisableKeepAlives:      single,
	}
}

var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func newEndpoint(t HTTPTool) (*endpoint, error) {
	if !validName(t.Name) {
		return nil, errors.New("a name is 1 to 128 of [A-Za-z0-9._~-]")
	}
	if t.Method == "" {
		t.Method = http.MethodPost
	}
	if !slices.Contains(methods, t.Method) {
		return nil, fmt.Errorf("method %q is not one of %s", t.Method, strings.Join(methods, ", "))
	}
	if t.Replay == "" {
		t.Replay = goal.ReplayUnsafe
		if bodiless(t.Method) {
			t.Replay = goal.ReplayRead
		}
	}
	if !slices.Contains(goal.Replays(), t.Replay) {
		return nil, fmt.Errorf("replay %q is not one of read, keyed, idempotent, unsafe", t.Replay)
	}
	for name, value := range t.Headers {
		if !validHeader(name, value) {
			return nil, fmt.Errorf("header %q is malformed or not for configuration", name)
		}
	}
	if t.Timeout == 0 {
		t.Timeout = DefaultTimeout
	}
	if t.Retries == 0 {
		t.Retries = DefaultRetries
	}
	if t.MaxResponse == 0 {
		t.MaxResponse = DefaultMaxResponse
	}
	e := &endpoint{HTTPTool: t}
	var err error
	if e.url, err = ParseTemplate(t.URL); err != nil {
		return nil, err
	}
	if e.schema, err = compile(t.InputSchema); err != nil {
		return nil, err
	}
	e.inURL = e.url.Arguments()
	return e, nil
}

// validName reports whether a name can be part of an Idempotency-Key (public
// contract section 3).
func validName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("._~-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// ours are the header fields that each call sets itself.
var ours = []string{
	"Idempotency-Key", "Goalkeeper-Session", "Goalkeeper-Step", "Goalkeeper-Tool", "Goalkeeper-Attempt", "Traceparent",
	"Content-Length", "Transfer-Encoding", "Connection", "Host",
}

func validHeader(name, value string) bool {
	return name != "" && !strings.ContainsAny(name, " \t\r\n:") && !strings.ContainsAny(value, "\r\n\x00") &&
		!slices.Contains(ours, textproto.CanonicalMIMEHeaderKey(name))
}

func bodiless(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// Close closes idle connections. Calls in flight go on.
func (h *HTTP) Close() {
	h.pooled.CloseIdleConnections()
	h.single.CloseIdleConnections()
}

// Names lists the tools, sorted.
func (h *HTTP) Names() []string { return slices.Sorted(maps.Keys(h.tools)) }

// Has implements Source.
func (h *HTTP) Has(name string) bool { return h.tools[name] != nil }

// List implements agent.Toolbox.
func (h *HTTP) List(context.Context) ([]agent.ToolSpec, error) {
	out := make([]agent.ToolSpec, 0, len(h.tools))
	for _, name := range h.Names() {
		t := h.tools[name]
		out = append(out, agent.ToolSpec{
			Name: name, Description: t.Description, InputSchema: t.InputSchema, Replay: t.Replay, Roles: t.Roles,
		})
	}
	return out, nil
}

// Call implements agent.Toolbox. It repeats a call with the same key on
// transport errors, 5xx, 408, 425, 429 and 409 with Retry-After, within the
// tool's retries and the deadline of ctx; an unsafe call only while nothing
// was sent.
func (h *HTTP) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	e := h.tools[c.Tool]
	if e == nil {
		return goal.Outcome{}, fmt.Errorf("%w %q", agent.ErrUnknownTool, c.Tool)
	}
	args, err := e.schema.check(c.Arguments)
	if err != nil {
		return goal.Outcome{}, err
	}
	target, body, err := e.request(args, c.Arguments)
	if err != nil {
		return goal.Outcome{}, err
	}
	started := time.Now()
	out := h.attempts(ctx, c, e, target, body)
	out.Repeated, out.Took = c.Repeated, goal.Millis(time.Since(started))
	return out, nil
}

// request lays the arguments out: the URL with those it names, the body with
// the others. The body keeps the arguments' own bytes, so that numbers stay
// exact.
func (e *endpoint) request(args map[string]any, raw json.RawMessage) (*url.URL, []byte, error) {
	target, err := e.url.Expand(args)
	if err != nil {
		return nil, nil, err
	}
	rest := map[string]json.RawMessage{}
	if len(args) > 0 {
		if err := json.Unmarshal(raw, &rest); err != nil {
			return nil, nil, &agent.ArgumentsError{Detail: err.Error()}
		}
	}
	for _, name := range e.inURL {
		delete(rest, name)
	}
	if bodiless(e.Method) {
		return target, nil, appendQuery(target, rest, args)
	}
	if len(rest) == 0 && e.Method == http.MethodDelete {
		return target, nil, nil
	}
	body, err := goal.Marshal(rest)
	return target, body, err
}

// appendQuery adds the arguments that the URL does not name to its query.
func appendQuery(target *url.URL, rest map[string]json.RawMessage, args map[string]any) error {
	parts := make([]string, 0, len(rest)+1)
	if target.RawQuery != "" {
		parts = append(parts, target.RawQuery)
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		if args[name] == nil {
			continue
		}
		v, ok := scalar(args[name])
		if !ok {
			return &agent.ArgumentsError{Detail: fmt.Sprintf("%q must be a string, a number or a boolean", name)}
		}
		parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(v))
	}
	target.RawQuery = strings.Join(parts, "&")
	return nil
}

// attempts sends the request until there is an outcome.
func (h *HTTP) attempts(ctx context.Context, c agent.Call, e *endpoint, target *url.URL, body []byte) goal.Outcome {
	for n := 1; ; n++ {
		out, again, wait := h.attempt(ctx, c, e, target, body)
		out.Attempts = n
		if !again || n > max(e.Retries, 0) {
			return out
		}
		h.log.InfoContext(ctx, "tool call is repeated", "tool", e.Name, "task", c.TaskID, "step", c.Step,
			"attempt", n, "kind", out.Kind, "status", out.Status, "cause", out.Message)
		if err := pause(ctx, n, wait); err != nil {
			return out
		}
	}
}

// attempt sends the request once. Again says that a repeat is allowed and may
// help, after wait.
func (h *HTTP) attempt(ctx context.Context, c agent.Call, e *endpoint, target *url.URL, body []byte) (out goal.Outcome, again bool, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
	req, err := e.newRequest(httptrace.WithClientTrace(ctx, trace), c, target, body)
	if err != nil {
		return goal.Outcome{Kind: goal.CallUnavailable, Message: "the request could not be made"}, false, 0
	}
	client := http.Client{Transport: e.transport, CheckRedirect: e.redirect}
	resp, err := client.Do(req)
	if err != nil {
		out, again = e.lost(ctx, err, sent.Load())
		return out, again, 0
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, e.MaxResponse+1))
	if err != nil {
		out, again = e.lost(ctx, err, true)
		out.Status = resp.StatusCode
		return out, again, 0
	}
	out, again, wait = e.answered(resp)
	h.results.attach(ctx, &out, data, e.MaxResponse)
	return out, again, wait
}

// newRequest makes the request of one attempt. The key goes under its
// lower-case name: net/http looks for the canonical one to decide that it may
// send a POST again by itself, unseen by us. On the wire the two are the same.
func (e *endpoint) newRequest(ctx context.Context, c agent.Call, target *url.URL, body []byte) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, e.Method, target.String(), r)
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // and so does it with this
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "goalkeeper")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range e.Headers {
		req.Header.Set(name, value)
	}
	req.Header["idempotency-key"] = []string{c.Key}
	if len(e.inURL) == 0 && !bodiless(e.Method) {
		// What the key was derived from, for a receiver that recomputes it: it
		// can only where all arguments are in the body.
		req.Header.Set("Goalkeeper-Session", c.TaskID)
		req.Header.Set("Goalkeeper-Step", strconv.Itoa(c.Step))
		req.Header.Set("Goalkeeper-Tool", c.Tool)
	}
	if c.Traceparent != "" {
		req.Header.Set("Traceparent", c.Traceparent)
	}
	return req, nil
}

// redirect follows only what reads, and only on the same origin, so that
// neither an effect nor a configured secret goes elsewhere.
func (e *endpoint) redirect(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if e.Replay != goal.ReplayRead || !bodiless(e.Method) || len(via) > maxRedirects ||
		req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

// lost is the outcome of an attempt without a whole answer.
func (e *endpoint) lost(ctx context.Context, err error, sent bool) (out goal.Outcome, again bool) {
	message, timeout := classify(ctx, err)
	switch {
	case !sent:
		return goal.Outcome{Kind: goal.CallUnavailable, Message: message + "; nothing was sent"}, true
	case timeout:
		out = goal.Outcome{Kind: goal.CallTimeout, Message: message}
	case e.Replay == goal.ReplayUnsafe:
		out = goal.Outcome{Kind: goal.CallUnknown, Message: message}
	default:
		out = goal.Outcome{Kind: goal.CallUnavailable, Message: message}
	}
	return out, e.Replay != goal.ReplayUnsafe
}

// classify names a transport error in words that hold no address and no URL,
// since clients see them.
func classify(ctx context.Context, err error) (message string, timeout bool) {
	var (
		dns *net.DNSError
		ne  net.Error
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "no answer in time", true
	case errors.As(err, &ne) && ne.Timeout():
		return "no answer in time", true
	case errors.Is(err, context.Canceled):
		return "cancelled", false
	case errors.As(err, &dns):
		return "the host name does not resolve", false
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", false
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke before the answer was complete", false
	default:
		return "transport error", false
	}
}

// answered classifies a whole answer by its status.
func (e *endpoint) answered(resp *http.Response) (out goal.Outcome, again bool, wait time.Duration) {
	status := resp.StatusCode
	wait, asked := retryAfter(resp.Header, time.Now())
	out = goal.Outcome{Status: status, Message: strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))}
	safe := e.Replay != goal.ReplayUnsafe
	switch {
	case status < 300:
		out.Kind, out.Message = goal.CallOK, ""
		out.Replayed = strings.EqualFold(resp.Header.Get("Idempotent-Replayed"), "true")
	case status < 400:
		out.Kind, out.Message = goal.CallToolError, out.Message+": redirect not followed"
	case status == http.StatusPreconditionFailed:
		out.Kind = goal.CallPrecondition
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusTooEarly,
		status == http.StatusConflict && asked:
		out.Kind, again = goal.CallUnavailable, safe
	case status < 500:
		out.Kind = goal.CallToolError
	case safe:
		out.Kind, again = goal.CallUnavailable, true
	default: // a server error says nothing about the effect
		out.Kind = goal.CallUnknown
	}
	return out, again, wait
}

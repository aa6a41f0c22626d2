package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// otlpStub is a collector that keeps what it is sent over OTLP/HTTP.
type otlpStub struct {
	url string

	mu      sync.Mutex
	spans   []*otlp.Span
	service map[string]string // by span id
	raw     strings.Builder
}

func newOTLPStub(t *testing.T) *otlpStub {
	t.Helper()
	c := &otlpStub{service: map[string]string{}}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

// ServeHTTP takes one export.
func (c *otlpStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "not an export", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.WriteString(req.String())
	for _, rs := range req.GetResourceSpans() {
		name := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				name = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, s)
				c.service[string(s.GetSpanId())] = name
			}
		}
	}
}

// tree is the spans of a trace, one line each: services, the names from the
// root, kinds. Siblings are in the order of their names.
func (c *otlpStub) tree(trace string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	byID := map[string]*otlp.Span{}
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			byID[string(s.GetSpanId())] = s
		}
	}
	var lines []string
	for _, s := range byID {
		path := s.GetName()
		for p := s; ; {
			parent, ok := byID[string(p.GetParentSpanId())]
			if !ok {
				path = hex.EncodeToString(p.GetParentSpanId()) + " > " + path
				break
			}
			path, p = parent.GetName()+" > "+path, parent
		}
		lines = append(lines, strings.TrimPrefix(c.service[string(s.GetSpanId())], "goalkeeper-")+": "+path)
	}
	slices.Sort(lines)
	return slices.Compact(lines) // looks at the state are several
}

const (
	callerTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerSpan   = "00f067aa0ba902b7"
	callerHeader = "00-" + callerTrace + "-" + callerSpan + "-01"
)

// headerLog is an endpoint that keeps the traceparent of every request.
type headerLog struct {
	mu  sync.Mutex
	got []string
}

func (l *headerLog) note(r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, r.Header.Get("Traceparent"))
}

func (l *headerLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

// tracedShop completes a configuration with an environment whose script calls
// an HTTP tool and then reaches the target with a built-in one.
func tracedShop(c *config, toolURL, collectorURL string) {
	c.Telemetry.OTLPEndpoint = collectorURL
	c.Environments = []environmentConfig{{
		Name:  "shop",
		Tools: []toolConfig{{Name: "payments.refund", URL: toolURL + "/refund?token=queryword", Replay: goal.ReplayKeyed}},
		Planner: plannerConfig{Type: "script", Script: []scriptAction{
			{Tool: "payments.refund", JSON: `{"order":"argumentword"}`},
			{Tool: "state.set", JSON: `{"collection":"orders","id":"A1","value":{"status":"refunded"}}`},
		}},
	}}
}

func tracedGoal(hook string) map[string]any {
	return map[string]any{
		"goal":        map[string]any{"intent": "Refund order A1", "target_state": map[string]any{"orders": map[string]any{"A1": map[string]any{"status": "refunded"}}}},
		"guardrails":  map[string]any{"max_steps": 4, "timeout_seconds": 60},
		"environment": "shop", "webhook_url": hook,
	}
}

// wantTree is the trace of tracedGoal, with the service of every span.
func wantTree(ingest, worker, notifier, root string) []string {
	at := callerSpan + " > " + root
	run := at + " > invoke_agent shop"
	want := []string{
		ingest + ": " + at,
		worker + ": " + run, worker + ": " + run + " > goalkeeper.observe", worker + ": " + run + " > plan shop",
		worker + ": " + run + " > execute_tool payments.refund", worker + ": " + run + " > execute_tool state.set",
		notifier + ": " + at + " > POST webhook",
	}
	slices.Sort(want)
	return want
}

// checkTraced checks the exported tree, and that tools and receivers were told
// their span in it.
func checkTraced(t *testing.T, c *otlpStub, want, headers []string, key string) {
	t.Helper()
	if got := c.tree(callerTrace); !slices.Equal(got, want) {
		t.Errorf("trace:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	spans := map[string]string{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		spans[fmt.Sprintf("00-%x-%x-01", s.GetTraceId(), s.GetSpanId())] = s.GetName()
	}
	var named []string
	for _, h := range headers {
		named = append(named, spans[h])
	}
	if got := strings.Join(named, ", "); got != "execute_tool payments.refund, POST webhook" {
		t.Errorf("tool and receiver were told the spans %q by %q", got, headers)
	}
	for _, secret := range []string{key, "queryword", "argumentword", "hookword", "refunded"} {
		if strings.Contains(c.raw.String(), secret) {
			t.Errorf("the export names %q", secret)
		}
	}
}

// submitTraced posts tracedGoal for a caller that has a span of its own, and
// waits until both headers were seen.
func submitTraced(t *testing.T, url, hook, key string, seen func() int) {
	t.Helper()
	body, err := goal.Marshal(tracedGoal(hook))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/tasks", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Traceparent", callerHeader)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusAccepted {
		t.Fatalf("submit: %d %s", resp.StatusCode, answer)
	}
	eventually(t, func() bool { return seen() >= 2 })
}

// eventually polls what tells nobody when it changes.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not happen within a minute")
		}
	}
}

// newEndpoint is a tool and a webhook receiver.
func newEndpoint(t *testing.T) (*headerLog, string) {
	t.Helper()
	l := &headerLog{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
		l.note(r)
	}))
	t.Cleanup(srv.Close)
	return l, srv.URL
}

func TestTraceOneProcess(t *testing.T) {
	t.Parallel()
	c := newOTLPStub(t)
	log, url := newEndpoint(t)
	t.Run("run", func(t *testing.T) { // the site's end flushes the spans
		s := newSite(t, true, func(cfg *config) { tracedShop(cfg, url, c.url) })
		submitTraced(t, s.url, url+"/hookword", "keyword-1", func() int { return len(log.all()) })
	})
	checkTraced(t, c, wantTree("serve", "serve", "serve", "POST /v1/tasks"), log.all(), "keyword-1")
}

func TestTraceThreeServices(t *testing.T) {
	t.Parallel()
	c := newOTLPStub(t)
	log, url := newEndpoint(t)
	t.Run("run", func(t *testing.T) {
		b := openTestBroker(t)
		var ingestURL string
		for _, r := range []roles{{ingest: true}, {worker: true}, {notifier: true}} {
			cfg := roleConfig(b.server.ClientURL())
			tracedShop(cfg, url, c.url)
			if s := startRole(t, cfg, r); r.ingest {
				ingestURL = s.url()
			}
		}
		submitTraced(t, ingestURL, url+"/hookword", "keyword-2", func() int { return len(log.all()) })
	})
	checkTraced(t, c, wantTree("ingest", "worker", "notifier", "POST /v1/tasks"), log.all(), "keyword-2")
}

// TestTraceOverNATS publishes the goal: the trace goes on from the message's
// header.
func TestTraceOverNATS(t *testing.T) {
	t.Parallel()
	c := newOTLPStub(t)
	log, url := newEndpoint(t)
	t.Run("run", func(t *testing.T) {
		s := newSite(t, true, func(cfg *config) { tracedShop(cfg, url, c.url) })
		publishGoal(t, s.service.broker.conn, defaultTenant, "keyword-3", tracedGoal(url+"/hookword"), callerHeader)
		eventually(t, func() bool { return len(log.all()) >= 2 })
	})
	checkTraced(t, c, wantTree("serve", "serve", "serve", "process goals.submit.default"), log.all(), "keyword-3")
}

// TestTracesAreOptional: without a collector the caller's own trace context
// still reaches tools and receivers.
func TestTracesAreOptional(t *testing.T) {
	t.Parallel()
	log, url := newEndpoint(t)
	s := newSite(t, true, func(cfg *config) { tracedShop(cfg, url, "") })
	submitTraced(t, s.url, url+"/hook", "keyword-4", func() int { return len(log.all()) })
	if got := log.all(); got[0] != callerHeader || got[1] != callerHeader {
		t.Errorf("tool and receiver got %q, want the caller's %s", got, callerHeader)
	}
}

// openTestBroker starts the embedded server with a port.
func openTestBroker(t *testing.T) *broker {
	t.Helper()
	c := &config{Data: filepath.Join(t.TempDir(), "data"), NATS: natsConfig{Listen: "127.0.0.1:0"}}
	c.defaults()
	b, err := openBroker(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// roleConfig is the configuration of one role on external NATS.
func roleConfig(natsURL string) *config {
	return &config{
		Listen: anyPort, NATS: natsConfig{URL: natsURL, Replicas: 1}, Webhooks: webhooksConfig{Allow: []string{"127.0.0.1/32"}},
		Tenants: []tenantConfig{{Name: defaultTenant, WebhookSecrets: []hookSecret{{Key: secret(notifier.NewSecret())}}}},
	}
}

// startRole runs roles on a configuration until the test ends.
func startRole(t *testing.T, c *config, r roles) *service {
	t.Helper()
	c.defaults()
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := openService(ctx, c, r, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", r.name(), err)
		}
		s.close()
	})
	return s
}

// testLog writes to the test's log.
type testLog struct{ t testing.TB }

// Write implements io.Writer.
func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

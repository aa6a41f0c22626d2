package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// natsUsers are the users of deploy/nats/accounts.conf.
var natsUsers = []string{"ingest", "worker", "notifier", "calls", "operator", "acme", "globex"}

func natsPassword(user string) string { return "word-of-" + user }

// startSecured starts a NATS server with the accounts of
// deploy/nats/accounts.conf.
func startSecured(t *testing.T) *server.Server {
	t.Helper()
	for _, u := range natsUsers {
		t.Setenv("GOALKEEPER_NATS_"+strings.ToUpper(u)+"_PASSWORD", natsPassword(u))
	}
	opts, err := server.ProcessConfigFile(deployFile(t, "nats/accounts.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	opts.JetStream, opts.StoreDir = true, t.TempDir()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { stopServer(s) })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("NATS is not ready")
	}
	return s
}

func securedURL(s *server.Server, user string) string {
	return fmt.Sprintf("nats://%s:%s@%s", user, natsPassword(user), s.Addr())
}

// natsClient is a connection of a user that keeps the server's refusals.
type natsClient struct {
	*nats.Conn

	refused chan error
}

func connectAs(t *testing.T, s *server.Server, user string) natsClient {
	t.Helper()
	c := natsClient{refused: make(chan error, 100)}
	nc, err := nats.Connect(securedURL(s, user), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.refused <- err }))
	if err != nil {
		t.Fatalf("connect as %s: %v", user, err)
	}
	t.Cleanup(nc.Close)
	c.Conn = nc
	return c
}

// wasRefused makes the server answer everything sent so far, and reports
// whether it refused any of it.
func (c natsClient) wasRefused(t *testing.T) bool {
	t.Helper()
	if err := c.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-c.refused:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Fatalf("NATS reports %v", err)
		}
		return true
	case <-time.After(50 * time.Millisecond): // the report comes by another goroutine
		return false
	}
}

// auditLog is a log that fails the test when NATS refuses a role anything.
type auditLog struct {
	mu      sync.Mutex
	refused []string
	all     strings.Builder
}

// Write implements io.Writer.
func (a *auditLog) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.Write(p)
	if line := string(p); strings.Contains(line, "ermissions") {
		a.refused = append(a.refused, line)
	}
	return len(p), nil
}

// securedRole runs a role with its user.
func securedRole(t *testing.T, srv *server.Server, r roles, secret hookSecret) *service {
	t.Helper()
	c := &config{
		Listen: anyPort, Webhooks: webhooksConfig{Allow: []string{"127.0.0.1/32"}},
		NATS: natsConfig{URL: securedURL(srv, r.name()), InboxPrefix: "_INBOX_" + r.name(), Replicas: 1},
	}
	for _, tenant := range []string{"acme", "globex"} {
		c.Tenants = append(c.Tenants, tenantConfig{
			Name: tenant, WebhookSecrets: []hookSecret{secret}, TokenBalance: new(int64(1_000_000)),
			Keys: []keyConfig{{Name: "k", SHA256: ingest.HashKey("key-of-" + tenant), Roles: []string{"admin"}}},
		})
	}
	c.Environments = []environmentConfig{{Name: goal.DefaultEnvironment}}
	c.defaults()
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	audit := &auditLog{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := openService(ctx, c, r, slog.New(slog.NewTextHandler(audit, nil)))
	if err != nil {
		cancel()
		t.Fatalf("%s: %v\n%s", r.name(), err, audit.all.String())
	}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", r.name(), err)
		}
		s.close()
		if len(audit.refused) > 0 {
			t.Errorf("%s was refused:\n%s", r.name(), strings.Join(audit.refused, ""))
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", r.name(), audit.all.String())
		}
	})
	return s
}

// TestNATSPermissions runs every role with its user of deploy/nats, and shows
// what the users may not do.
func TestNATSPermissions(t *testing.T) { //nolint:paralleltest // the configuration reads the environment
	srv := startSecured(t)
	hooks := newHookReceiver(t)
	hook := hookSecret{Key: secret(notifier.NewSecret())}
	hooks.setSecret(string(hook.Key))
	t.Run("roles work", func(t *testing.T) {
		api := securedRole(t, srv, roles{ingest: true}, hook)
		cancelQueued(t, api.url(), hooks)
		securedRole(t, srv, roles{worker: true}, hook)
		securedRole(t, srv, roles{notifier: true}, hook)
		rolesWork(t, srv, api.url(), hooks)
	})
	t.Run("calls work", func(t *testing.T) {
		callsWork(t, srv)
	})
	t.Run("tenants are apart", func(t *testing.T) { tenantsApart(t, srv) })
	t.Run("roles are apart", func(t *testing.T) { rolesApart(t, srv) })
}

// securedGoal sets one entity of the state.
func securedGoal(name, hook string) map[string]any {
	g := map[string]any{
		"goal":       map[string]any{"intent": "Set " + name, "target_state": map[string]any{"things": map[string]any{name: map[string]any{"done": true}}}},
		"guardrails": map[string]any{"max_steps": 3, "timeout_seconds": 60},
	}
	if hook != "" {
		g["webhook_url"] = hook
	}
	return g
}

// cancelQueued cancels a goal before any worker runs: ingest settles it.
func cancelQueued(t *testing.T, url string, hooks *hookReceiver) {
	t.Helper()
	id := goal.TaskID("acme", "cancelled")
	if status, body := callAPI(t, url, "acme", http.MethodPost, "/v1/tasks", "cancelled", securedGoal("cancelled", hooks.url)); status != http.StatusAccepted {
		t.Fatalf("POST: %d %s", status, body)
	}
	if status, body := callAPI(t, url, "acme", http.MethodPost, "/v1/tasks/"+id+"/cancel", "", nil); status != http.StatusAccepted {
		t.Fatalf("cancel: %d %s", status, body)
	}
	wantStatus(t, url, "acme", id, goal.Cancelled)
}

func wantStatus(t *testing.T, url, tenant, id string, want goal.State) {
	t.Helper()
	status, body := callAPI(t, url, tenant, http.MethodGet, "/v1/tasks/"+id, "", nil)
	var task goal.Task
	if err := json.Unmarshal(body, &task); err != nil || task.Status != want {
		t.Errorf("task %s of %s: %d %s, want %s", id, tenant, status, body, want)
	}
}

// rolesWork takes one goal each way to its end, one to its webhook, which is
// then sent again.
func rolesWork(t *testing.T, srv *server.Server, url string, hooks *hookReceiver) {
	t.Helper()
	for _, tenant := range []string{"acme", "globex"} {
		nc := connectAs(t, srv, tenant)
		events, err := nc.SubscribeSync("goals.events." + tenant + ".>")
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		ack := publishGoal(t, nc.Conn, tenant, "direct", securedGoal("direct", ""), "")
		if ack.Stream != goal.IntakeStream(tenant) {
			t.Errorf("%s: the ack comes from %s", tenant, ack.Stream)
		}
		if again := publishGoal(t, nc.Conn, tenant, "direct", securedGoal("direct", ""), ""); !again.Duplicate {
			t.Errorf("%s: the second ack is not marked as a duplicate", tenant)
		}
		awaitEndEvent(t, events, goal.EndSubject(tenant, goal.TaskID(tenant, "direct")))

		m := nats.NewMsg(goal.RequestSubject(tenant))
		m.Header.Set("Idempotency-Key", "asked")
		m.Data, _ = goal.Marshal(securedGoal("asked", ""))
		answer, err := nc.RequestMsg(m, 20*time.Second)
		if err != nil {
			t.Fatalf("%s: request: %v", tenant, err)
		}
		if answer.Header.Get("Status") != "202" {
			t.Fatalf("%s: request: %s", tenant, answer.Data)
		}
		awaitEndEvent(t, events, goal.EndSubject(tenant, goal.TaskID(tenant, "asked")))

		if status, body := callAPI(t, url, tenant, http.MethodPost, "/v1/tasks", "over-http", securedGoal("over-http", hooks.url)); status != http.StatusAccepted {
			t.Fatalf("%s: POST: %d %s", tenant, status, body)
		}
		id := goal.TaskID(tenant, "over-http")
		awaitEndEvent(t, events, goal.EndSubject(tenant, id))
		eventually(t, func() bool {
			status, _ := callAPI(t, url, tenant, http.MethodPost, "/v1/tasks/"+id+"/deliveries", "", nil)
			return status < 300
		})
		eventually(t, func() bool { hooks.mu.Lock(); defer hooks.mu.Unlock(); return len(hooks.got[id]) >= 2 })
		for _, key := range []string{"direct", "asked", "over-http"} {
			wantStatus(t, url, tenant, goal.TaskID(tenant, key), goal.Succeeded)
		}
		for _, path := range []string{"/v1/tasks/" + id + "/trace", "/v1/tasks?limit=5", "/v1/tasks/" + id + "/deliveries", "/metrics"} {
			if status, body := callAPI(t, url, tenant, http.MethodGet, path, "", nil); status != http.StatusOK {
				t.Errorf("%s: GET %s: %d %s", tenant, path, status, body)
			}
		}
		if nc.wasRefused(t) {
			t.Errorf("%s was refused something", tenant)
		}
	}
	hooks.mu.Lock()
	defer hooks.mu.Unlock()
	if len(hooks.bad) > 0 {
		t.Errorf("webhooks: %v", errors.Join(hooks.bad...))
	}
}

func awaitEndEvent(t *testing.T, events *nats.Subscription, subject string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		m, err := events.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatalf("waiting for %s: %v", subject, err)
		}
		if m.Subject == subject {
			return
		}
	}
}

func callAPI(t *testing.T, url, tenant, method, path, key string, body any) (int, []byte) {
	t.Helper()
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		content = strings.NewReader(string(raw))
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer key-of-"+tenant)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, raw
}

// callsWork keeps a protected call with the user of backends and gateways.
func callsWork(t *testing.T, srv *server.Server) {
	t.Helper()
	nc := connectAs(t, srv, "calls")
	store, err := kv.Open(t.Context(), kv.Config{Conn: nc.Conn, Tenants: []string{"acme", "globex"}, LocksInMemory: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := store.Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Repeat("ab", 32)
	rev, err := calls.Create(t.Context(), key, []byte("1"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if rev, err = calls.Update(t.Context(), key, []byte("2"), rev, time.Minute); err != nil {
		t.Fatal(err)
	}
	if data, got, err := calls.Get(t.Context(), key); err != nil || string(data) != "2" || got != rev {
		t.Errorf("Get = %q, %d, %v", data, got, err)
	}
	n := 0
	if err := calls.Each(t.Context(), func(string, []byte, uint64) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("Each: %d, %v", n, err)
	}
	if nc.wasRefused(t) {
		t.Error("the user calls was refused something")
	}
}

// tenantsApart: a tenant's user reaches the subjects of its tenant alone. In its
// account the others do not exist: nothing is refused, nothing arrives.
func tenantsApart(t *testing.T, srv *server.Server) {
	t.Helper()
	acme, globex := connectAs(t, srv, "acme"), connectAs(t, srv, "globex")
	spied := make(chan *nats.Msg, 1000)
	for _, subject := range []string{">", "goals.events.globex.>", "goals.>", "$KV.>", "_INBOX.>", "_INBOX_globex.>", "_INBOX_ingest.>"} {
		if _, err := acme.ChanSubscribe(subject, spied); err != nil {
			t.Fatal(err)
		}
	}
	if err := acme.Flush(); err != nil {
		t.Fatal(err)
	}
	own, err := globex.SubscribeSync("goals.events.globex.>")
	if err != nil {
		t.Fatal(err)
	}
	publishGoal(t, globex.Conn, "globex", "spied-on", securedGoal("spied-on", ""), "")
	// Without workers the goal stays queued; its events are written as a worker would.
	worker := connectAs(t, srv, "worker")
	if err := worker.Publish("goals.events.globex.tsk_x.log", []byte("event of globex")); err != nil {
		t.Fatal(err)
	}
	if m, err := own.NextMsg(10 * time.Second); err != nil || string(m.Data) != "event of globex" {
		t.Fatalf("globex sees of its own event: %v, %v", m, err)
	}
	if err := worker.Publish("goals.events.acme.tsk_y.log", []byte("event of acme")); err != nil {
		t.Fatal(err)
	}
	for m := range receive(t, spied, "event of acme") {
		if m.Subject != "goals.events.acme.tsk_y.log" {
			t.Errorf("acme received %s", m.Subject)
		}
	}
	for _, subject := range []string{
		"goals.submit.globex", "goals.request.globex", "goals.queue.acme.tsk_z", "goals.queue.globex.tsk_z", "goals.events.acme.tsk_z.log",
		"$JS.API.STREAM.INFO.GOALS_globex", "$JS.API.DIRECT.GET.EVENTS.goals.events.globex.tsk_x.log", "$JS.API.STREAM.NAMES", "$KV.STATE.x",
	} {
		m, err := acme.Request(subject, []byte("{}"), 300*time.Millisecond)
		if err == nil && !strings.Contains(string(m.Data), "JetStream not enabled") {
			t.Errorf("acme got an answer on %s: %s", subject, m.Data)
		}
	}
	// An answer cannot be sent where it would be stored as a goal.
	before := streamMessages(t, srv, goal.GoalsStream("acme"))
	m := nats.NewMsg(goal.SubmitSubject("acme"))
	m.Reply, m.Data = "goals.queue.acme.tsk_forged", []byte("{}")
	m.Header.Set(nats.MsgIdHdr, "forged-reply")
	if err := acme.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	publishGoal(t, acme.Conn, "acme", "after-forged", securedGoal("after-forged", ""), "") // the server has worked off what came before
	if after := streamMessages(t, srv, goal.GoalsStream("acme")); after != before {
		t.Errorf("the queue of acme grew from %d to %d", before, after)
	}
}

// receive hands out what was received up to a message with that text.
func receive(t *testing.T, from <-chan *nats.Msg, last string) func(func(*nats.Msg) bool) {
	t.Helper()
	return func(yield func(*nats.Msg) bool) {
		for {
			select {
			case m := <-from:
				if !yield(m) || string(m.Data) == last {
					return
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%q was not received", last)
				return
			}
		}
	}
}

func streamMessages(t *testing.T, srv *server.Server, stream string) uint64 {
	t.Helper()
	js, err := jetstream.New(connectAs(t, srv, "operator").Conn)
	if err != nil {
		t.Fatal(err)
	}
	info, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return info.CachedInfo().State.Msgs
}

// rolesApart: what each role may not do is refused by the server.
func rolesApart(t *testing.T, srv *server.Server) {
	t.Helper()
	publish := map[string][]string{
		"worker": {
			"goals.queue.acme.tsk_1", "goals.submit.acme", "goals.request.acme", "deliveries.due.acme.msg_1.auto", "goals.cancel.acme.tsk_1",
			"$KV.CALLS.x", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.UPDATE.EVENTS", "$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.PURGE.EVENTS",
			"$JS.API.CONSUMER.CREATE.EVENTS.mine", "$JS.API.CONSUMER.DELETE.GOALS_acme.workers", "$JS.API.STREAM.MSG.DELETE.EVENTS",
		},
		"notifier": {
			"goals.queue.acme.tsk_1", "goals.submit.acme", "goals.events.acme.tsk_1.end", "$KV.RESULTS.x", "$KV.STATE.x",
			"$JS.API.DIRECT.GET.KV_STATE.$KV.STATE.x", "$JS.API.STREAM.MSG.GET.EVENTS", "$JS.API.CONSUMER.MSG.NEXT.GOALS_acme.workers",
			"$JS.API.STREAM.DELETE.DELIVERIES",
		},
		"ingest": {
			"$KV.STATE.x", "$KV.LOCKS.x", "goals.events.acme.tsk_1.log", "$O.OBJECTS.C.x",
			"$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.MSG.DELETE.EVENTS",
		},
		"calls": {
			"goals.submit.acme", "goals.queue.acme.tsk_1", "$KV.STATE.x", "deliveries.due.acme.msg_1.auto", "$JS.API.STREAM.MSG.GET.EVENTS",
			"$JS.API.DIRECT.GET.EVENTS.goals.events.acme.tsk_1.log", "$JS.API.STREAM.DELETE.KV_CALLS",
		},
	}
	for user, subjects := range publish {
		c := connectAs(t, srv, user)
		for _, subject := range subjects {
			if err := c.Publish(subject, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if !c.wasRefused(t) {
				t.Errorf("%s may publish to %s", user, subject)
			}
		}
		for _, subject := range []string{">", "_INBOX.>", "goals.>", "goals.events.acme.>", "$KV.>", "$JS.>"} {
			if _, err := c.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			if !c.wasRefused(t) {
				t.Errorf("%s may subscribe to %s", user, subject)
			}
		}
		for _, other := range natsUsers {
			if other == user {
				continue
			}
			if _, err := c.SubscribeSync("_INBOX_" + other + ".>"); err != nil {
				t.Fatal(err)
			}
			if !c.wasRefused(t) {
				t.Errorf("%s may read the answers of %s", user, other)
			}
		}
	}
	if _, err := nats.Connect("nats://" + srv.Addr().String()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("connecting without a user: %v", err)
	}
}

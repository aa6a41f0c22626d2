package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

type demoCmd struct {
	Keep bool `help:"Keep the temporary folder and say where it is."`
}

const demoTime = 60 * time.Second // for everything; a fast machine needs two

// demoCase is one goal of the demo and how it must end.
type demoCase struct {
	name    string
	about   string
	body    string
	copies  int // submitted so many times at once
	status  goal.State
	reason  goal.Reason
	refused goal.ProblemType // the submission itself is refused
	steps   int
}

var demoCases = []demoCase{
	{
		name: "refund", about: "four HTTP tool calls", status: goal.Succeeded, reason: goal.TargetStateReached, steps: 4,
		body: `{"goal": {"intent": "Refund order W1001 and tell the customer", "target_state": {
			"orders": {"W1001": {"status": "refunded"}}, "customers": {"c42": {"credit": 120}}, "mails": {"W1001": {"sent": true}}}},
			"guardrails": {"max_steps": 8, "timeout_seconds": 60}, "environment": "shop"}`,
	},
	{
		name: "satisfied", about: "the target holds already", status: goal.Succeeded, reason: goal.TargetStateReached, steps: 0,
		body: `{"goal": {"intent": "Keep the price of the blue mug", "target_state": {"catalog": {"mug-blue": {"price": 19.90}}}},
			"guardrails": {"max_steps": 3, "timeout_seconds": 60}}`,
	},
	{
		name: "guardrail", about: "needs three steps, may take two", status: goal.Failed, reason: goal.GuardrailMaxSteps, steps: 2,
		body: `{"goal": {"intent": "Refund order W1002 in two steps", "target_state": {
			"orders": {"W1002": {"status": "refunded"}}, "mails": {"W1002": {"sent": true}}}},
			"guardrails": {"max_steps": 2, "timeout_seconds": 60}, "environment": "shop-slow"}`,
	},
	{
		name: "pre-condition", about: "expects a gold customer", refused: goal.PreconditionMismatch,
		body: `{"goal": {"intent": "Give the gold customer a credit", "target_state": {"customers": {"c42": {"credit": 500}}}},
			"guardrails": {"max_steps": 3, "timeout_seconds": 60}, "pre_conditions": {"customers": {"c42": {"tier": "gold"}}},
			"environment": "shop"}`,
	},
	{
		name: "three times", about: "one key, three submissions at once", copies: 3, status: goal.Succeeded, reason: goal.TargetStateReached, steps: 1,
		body: `{"goal": {"intent": "Move user u7 to the pro plan", "target_state": {"profiles": {"u7": {"plan": "pro", "seats": 5}}}},
			"guardrails": {"max_steps": 5, "timeout_seconds": 60}}`,
	},
}

// Run implements the verb: it exits 0 only if everything went as promised.
func (d *demoCmd) Run(ctx context.Context, std streams, t *terminal) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoTime, errors.New("the demo took too long"))
	defer cancel()
	dir, err := os.MkdirTemp("", "goalkeeper-demo-")
	if err != nil {
		return fmt.Errorf("temporary folder: %w", err)
	}
	defer func() {
		if d.Keep {
			fmt.Fprintln(std.err, "kept", dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	w := &demoWorld{dir: dir, term: t, out: std.out}
	defer w.close()
	if err := w.start(ctx); err != nil {
		return err
	}
	if err := w.submitAll(ctx); err != nil {
		return err
	}
	if err := w.await(ctx); err != nil {
		return err
	}
	return w.report(ctx)
}

// demoWorld is everything that the demo starts.
type demoWorld struct {
	dir  string
	term *terminal
	out  io.Writer

	shop     *demoShop
	shopURL  string
	servers  []*http.Server
	receiver *demoReceiver
	service  *service
	api      *client
	stop     func() error

	mu   sync.Mutex // guards what is printed and runs
	runs []*demoRun
	from time.Time
}

// demoRun is what became of one case.
type demoRun struct {
	demoCase
	id       string
	answers  []*response
	accepted time.Duration // from the submission to its answer
	problem  *goal.Problem
	task     goal.Task
}

func (w *demoWorld) start(ctx context.Context) error {
	began := time.Now()
	var g errgroup.Group
	w.shop = &demoShop{}
	var err error
	if w.shopURL, err = w.serve(ctx, &g, w.shop); err != nil {
		return err
	}
	w.receiver = &demoReceiver{got: map[string]*demoHook{}, arrived: make(chan struct{}, 64)}
	if w.receiver.url, err = w.serve(ctx, &g, w.receiver); err != nil {
		return err
	}
	w.receiver.url += "/hooks"
	cfg := demoConfig(w.dir, w.shopURL)
	if err := cfg.check(); err != nil {
		return err
	}
	logs, err := os.Create(filepath.Join(w.dir, "log"))
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	log := slog.New(slog.NewTextHandler(logs, nil))
	if w.service, err = openService(ctx, cfg, allRoles, log); err != nil {
		return err
	}
	w.shop.docs = w.service.store.Documents()
	if err := w.shop.load(ctx); err != nil {
		return err
	}
	if w.receiver.secret, err = generatedSecret(w.dir); err != nil {
		return err
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return w.service.run(runCtx) })
	w.stop = func() error {
		cancel()
		end, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		var err error
		for _, s := range w.servers {
			err = errors.Join(err, s.Shutdown(end))
		}
		return errors.Join(err, g.Wait(), logs.Close())
	}
	if w.api, err = newClient(w.service.url(), "", func(string, ...any) {}); err != nil {
		return err
	}
	w.from = time.Now()
	w.say("%s  %s", w.term.paint("1", "Goalkeeper"), w.service.broker.how)
	w.say("API %s, tool backend %s, webhook receiver %s; ready after %s\n", w.service.url(), w.shopURL, w.receiver.url, short(time.Since(began)))
	return nil
}

// demoConfig has the shop's tools on the backend at that URL, and two scripts.
func demoConfig(dir, backend string) *config {
	tools := []toolConfig{
		{Name: "orders.get", Method: http.MethodGet, URL: backend + "/orders/{id}"},
		{Name: "payments.refund", URL: backend + "/refunds", Replay: goal.ReplayKeyed},
		{Name: "orders.set_status", URL: backend + "/orders/{id}/status", Replay: goal.ReplayKeyed},
		{Name: "mail.send", URL: backend + "/mails", Replay: goal.ReplayKeyed},
	}
	call := func(tool, args string) scriptAction { return scriptAction{Tool: tool, JSON: args} }
	shop := stateConfig{Namespace: "shop"}
	c := &config{
		Listen: "127.0.0.1:0", Data: dir, Webhooks: webhooksConfig{Allow: []string{"127.0.0.1/32"}},
		Environments: []environmentConfig{
			{Name: "default"},
			{Name: "shop", State: shop, Tools: tools, Planner: plannerConfig{Type: "script", Script: []scriptAction{
				call("orders.get", `{"id": "W1001"}`),
				call("payments.refund", `{"order": "W1001", "customer": "c42", "amount": 80}`),
				call("orders.set_status", `{"id": "W1001", "status": "refunded"}`),
				call("mail.send", `{"order": "W1001", "text": "Your refund of 80 is on its way."}`),
			}}},
			{Name: "shop-slow", State: shop, Tools: tools, Planner: plannerConfig{Type: "script", Script: []scriptAction{
				call("orders.get", `{"id": "W1002"}`),
				call("orders.set_status", `{"id": "W1002", "status": "refunded"}`),
				call("mail.send", `{"order": "W1002", "text": "Refunded."}`),
			}}},
		},
	}
	c.defaults()
	return c
}

func (w *demoWorld) submitAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range demoCases {
		r := &demoRun{demoCase: c}
		w.runs = append(w.runs, r)
		g.Go(func() error { return w.submit(ctx, r) })
	}
	return g.Wait()
}

// submit sends a case, as often as it says, and follows its task's events.
func (w *demoWorld) submit(ctx context.Context, r *demoRun) error {
	body := []byte(strings.TrimSuffix(strings.TrimSpace(r.body), "}") + `, "webhook_url": "` + w.receiver.url + `"}`)
	began := time.Now()
	var g errgroup.Group
	for range max(r.copies, 1) {
		g.Go(func() error {
			res, err := w.api.do(ctx, request{
				method: http.MethodPost, path: "/v1/tasks", body: body, repeat: true,
				header: map[string]string{"Idempotency-Key": "demo-" + strings.ReplaceAll(r.name, " ", "-"), "Content-Type": "application/json"},
			})
			w.mu.Lock()
			defer w.mu.Unlock()
			if p, ok := errors.AsType[*goal.Problem](err); ok {
				r.problem, err = p, nil
			} else if err == nil {
				r.answers = append(r.answers, res)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("submit %s: %w", r.name, err)
	}
	r.accepted = time.Since(began)
	if r.problem != nil {
		w.line(r.name, "refused with %d %s: no task, nothing queued, no token spent", r.problem.Status, r.problem.Kind())
		return nil //nolint:nilerr // a refusal is what the case wants; check looks whether it is the right one
	}
	var task goal.Task
	if err := r.answers[0].decode(&task); err != nil {
		return err
	}
	r.id = task.ID
	return follow(ctx, w.api, w.term, r.id, func(e goal.Event) error {
		w.event(r.name, e)
		return nil
	})
}

// event prints what is worth a line.
func (w *demoWorld) event(name string, e goal.Event) {
	switch {
	case e.Type == goal.TaskStarted:
		w.line(name, "started")
	case e.Outcome != nil:
		w.line(name, "step %d %s in %s", e.Step, e.Outcome.Kind, short(time.Duration(e.Outcome.Took)))
	case e.Decision != nil:
		w.line(name, "step %d %s, key %s…", e.Step, e.Decision.Tool, e.Decision.Key[:8])
	case e.Ended != nil:
		w.line(name, "%s %s", w.term.paintState(e.Ended.Status), e.Ended.Reason)
	}
}

// await waits for the webhook of every accepted task and reads the tasks.
func (w *demoWorld) await(ctx context.Context) error {
	for {
		missing := slices.ContainsFunc(w.runs, func(r *demoRun) bool { return r.id != "" && w.receiver.hook(r.id) == nil })
		if !missing {
			break
		}
		select {
		case <-w.receiver.arrived:
		case <-ctx.Done():
			return fmt.Errorf("waiting for webhooks: %w", context.Cause(ctx))
		}
	}
	for _, r := range w.runs {
		if r.id == "" {
			continue
		}
		if err := w.api.get(ctx, taskPath(r.id), nil, &r.task); err != nil {
			return err
		}
	}
	return nil
}

// report prints the table and every promise that was not kept.
func (w *demoWorld) report(ctx context.Context) error {
	rows := [][]string{{"GOAL", "WHAT", "END", "STEPS", "ACCEPTED", "QUEUED", "WORKED", "WEBHOOK AFTER", "SIGNATURE"}}
	var broken []string
	for _, r := range w.runs {
		rows = append(rows, w.row(r))
		broken = append(broken, r.check(w.receiver)...)
	}
	credit, calls, err := w.shop.count(ctx)
	if err != nil {
		return err
	}
	if credit != "120" {
		broken = append(broken, "the customer's credit is "+credit+", want 120: the refund must take effect once")
	}
	w.say("")
	if err := w.term.table(rows); err != nil {
		return err
	}
	w.say("\n%d tool calls reached the backend; the customer's credit is %s (40 before, one refund of 80)", calls, credit)
	for _, b := range broken {
		w.say("%s %s", w.term.paint("31", "broken:"), b)
	}
	if len(broken) > 0 {
		return exit(exitGeneral)
	}
	w.say("%s everything went as promised in %s", w.term.paint("32", "ok:"), short(time.Since(w.from)))
	return nil
}

func (w *demoWorld) row(r *demoRun) []string {
	if r.problem != nil {
		return []string{r.name, r.about, fmt.Sprint(r.problem.Status, " ", r.problem.Kind()), "-", short(r.accepted), "-", "-", "-", "-"}
	}
	h, t := w.receiver.hook(r.id), r.task
	queued, worked := "-", "-"
	if t.StartedAt != nil && t.EndedAt != nil {
		queued, worked = short(t.StartedAt.Sub(t.AcceptedAt)), short(t.EndedAt.Sub(*t.StartedAt))
	}
	signed := "verified"
	if h.err != nil {
		signed = h.err.Error()
	}
	return []string{
		r.name, r.about, string(t.Status) + " " + string(t.Reason), strconv.Itoa(t.Usage.Steps), short(r.accepted), queued, worked,
		short(h.at.Sub(*t.EndedAt)), signed,
	}
}

// check lists the promises that were not kept.
func (r *demoRun) check(rec *demoReceiver) []string {
	var broken []string
	fail := func(format string, a ...any) { broken = append(broken, r.name+": "+fmt.Sprintf(format, a...)) }
	if r.refused != "" {
		if r.problem == nil || r.problem.Kind() != r.refused {
			fail("want the refusal %s, got %v", r.refused, r.problem)
		}
		return broken
	}
	if r.problem != nil {
		fail("refused: %v", r.problem)
		return broken
	}
	h, t := rec.hook(r.id), r.task
	if t.Status != r.status || t.Reason != r.reason || t.Usage.Steps != r.steps {
		fail("want %s %s after %d steps, got %s %s after %d", r.status, r.reason, r.steps, t.Status, t.Reason, t.Usage.Steps)
	}
	if h.err != nil {
		fail("the webhook's signature: %v", h.err)
	}
	if h.kind != goal.HookType(r.status, r.reason) {
		fail("the webhook is %s", h.kind)
	}
	if h.times != 1 {
		fail("%d webhooks arrived", h.times)
	}
	fresh := 0
	for _, a := range r.answers {
		var task goal.Task
		if err := a.decode(&task); err != nil || task.ID != r.id {
			fail("an answer names task %s, not %s", task.ID, r.id)
		}
		if a.header.Get("Idempotent-Replayed") == "" {
			fresh++
		}
	}
	if fresh != 1 {
		fail("%d of %d submissions were taken as new", fresh, len(r.answers))
	}
	return broken
}

func (w *demoWorld) line(name, format string, a ...any) {
	w.say("%8s  %-14s %s", short(time.Since(w.from)), name, fmt.Sprintf(format, a...))
}

func (w *demoWorld) say(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format+"\n", a...)
}

func (w *demoWorld) close() {
	if w.api != nil {
		w.api.close()
	}
	if w.stop != nil {
		if err := w.stop(); err != nil {
			w.say("stopping: %v", err)
		}
	}
	if w.service != nil {
		w.service.close()
	}
}

// serve starts a server on a free port and returns its URL.
func (w *demoWorld) serve(ctx context.Context, g *errgroup.Group, h http.Handler) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	w.servers = append(w.servers, s)
	g.Go(func() error {
		if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return "http://" + ln.Addr().String(), nil
}

// demoHook is a webhook that arrived.
type demoHook struct {
	kind  string
	at    time.Time
	times int
	err   error // of its signature
}

// demoReceiver is a webhook receiver that verifies signatures.
type demoReceiver struct {
	secret, url string
	arrived     chan struct{}

	mu  sync.Mutex
	got map[string]*demoHook // by task; guarded by mu
}

// ServeHTTP takes a webhook.
func (r *demoReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(io.LimitReader(req.Body, goal.MaxWebhookBody+1))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var event struct {
		Type string `json:"type"`
		Data struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	verr := notifier.Verify(r.secret, req.Header, body, now, 5*time.Minute)
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&event); err != nil {
		verr = errors.Join(verr, err)
	}
	r.mu.Lock()
	h := r.got[event.Data.ID]
	if h == nil {
		h = &demoHook{kind: event.Type, at: now, err: verr}
		r.got[event.Data.ID] = h
	}
	h.times++
	r.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	r.arrived <- struct{}{}
}

func (r *demoReceiver) hook(task string) *demoHook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[task]
}

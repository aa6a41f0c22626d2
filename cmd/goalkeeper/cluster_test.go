package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// site is a whole Goalkeeper for one test: the store, ingest and the notifier
// in this process, workers here or as child processes.
type site struct {
	t       testing.TB
	dir     string
	cfg     *config
	service *service
	url     string
	hooks   *hookReceiver
}

// newSite starts a site. edit completes the configuration; the worker runs in
// this process only when inProcess says so.
func newSite(tb testing.TB, inProcess bool, edit func(*config)) *site {
	tb.Helper()
	s := &site{t: tb, dir: tb.TempDir(), hooks: newHookReceiver(tb)}
	s.cfg = &config{
		Listen: "127.0.0.1:0", Data: filepath.Join(s.dir, "data"), NATS: natsConfig{Listen: "127.0.0.1:0"},
		Webhooks: webhooksConfig{Allow: []string{"127.0.0.1/32"}},
	}
	edit(s.cfg)
	s.cfg.defaults()
	if err := s.cfg.check(); err != nil {
		tb.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(s.dir, "service.log"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	s.service, err = openService(ctx, s.cfg, roles{ingest: true, notifier: true, worker: inProcess}, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		cancel()
		tb.Fatal(err)
	}
	s.url = s.service.url()
	secret, err := generatedSecret(s.cfg.Data)
	if err != nil {
		tb.Fatal(err)
	}
	s.hooks.setSecret(secret)
	done := make(chan error, 1)
	go func() { done <- s.service.run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("service: %v", err)
		}
		s.service.close()
		_ = logs.Close()
		if tb.Failed() {
			if raw, err := os.ReadFile(filepath.Join(s.dir, "service.log")); err == nil {
				tb.Logf("service log (end):\n%s", raw[max(0, len(raw)-6000):])
			}
		}
	})
	return s
}

// workerConfig writes the configuration of a worker process that joins the
// site, and returns its path.
func (s *site) workerConfig() string {
	s.t.Helper()
	c := *s.cfg
	c.NATS = natsConfig{URL: s.service.broker.server.ClientURL(), Replicas: 1}
	c.Log = logConfig{Format: "text", Level: "warn"}
	path := filepath.Join(s.dir, "worker.yaml")
	if err := os.WriteFile(path, []byte(c.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// child is a worker process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	end  error         // how it ended; read after done
	err  *bytes.Buffer // its standard error; read after done
}

// startWorker starts a worker process; crashAt names the point at which it
// kills itself, or is empty.
func (s *site) startWorker(config, crashAt string) *child {
	s.t.Helper()
	c := &child{cmd: exec.CommandContext(context.WithoutCancel(s.t.Context()), "goalkeeper", "worker", "--config", config), done: make(chan struct{}), err: &bytes.Buffer{}}
	c.cmd.Env = append(os.Environ(), "GOALKEEPER_TEST_CRASH_AT="+crashAt)
	c.cmd.Stderr = c.err
	if err := c.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.end = c.cmd.Wait()
	}()
	return c
}

// kill ends the process as power loss would, and waits for it.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may be dead already
	<-c.done
}

// submit posts a goal and returns the task's id.
func (s *site) submit(key string, g any) string {
	s.t.Helper()
	body, err := goal.Marshal(g)
	if err != nil {
		s.t.Fatal(err)
	}
	status, header, raw := s.post("/v1/tasks", key, body)
	if status != http.StatusAccepted {
		s.t.Fatalf("submit %s: %d %s", key, status, raw)
	}
	return filepath.Base(header.Get("Location"))
}

func (s *site) post(path, key string, body []byte) (int, http.Header, []byte) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return s.do(req)
}

func (s *site) do(req *http.Request) (int, http.Header, []byte) {
	s.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, raw
}

// task reads a task.
func (s *site) task(id string) goal.Task {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/v1/tasks/"+id, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	status, _, raw := s.do(req)
	if status != http.StatusOK {
		s.t.Fatalf("get %s: %d %s", id, status, raw)
	}
	var task goal.Task
	if err := json.Unmarshal(raw, &task); err != nil {
		s.t.Fatal(err)
	}
	return task
}

// hookReceiver takes webhooks and verifies them.
type hookReceiver struct {
	t      testing.TB
	url    string
	secret string

	mu   sync.Mutex
	got  map[string][]string // webhook-ids by task; guarded by mu
	bad  []error
	wake chan struct{} // closed and replaced at every arrival; guarded by mu
}

func newHookReceiver(tb testing.TB) *hookReceiver {
	tb.Helper()
	h := &hookReceiver{t: tb, got: map[string][]string{}, wake: make(chan struct{})}
	srv := httptest.NewServer(h)
	h.url = srv.URL + "/hook"
	tb.Cleanup(srv.Close)
	return h
}

func (h *hookReceiver) setSecret(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secret = s
}

// ServeHTTP takes one webhook.
func (h *hookReceiver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var event struct {
		Type string
		Data goal.Task
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	err = errors.Join(err, notifier.Verify(h.secret, r.Header, body, time.Now(), time.Minute), json.Unmarshal(body, &event))
	if err == nil && event.Type != goal.HookType(event.Data.Status, event.Data.Reason) {
		err = fmt.Errorf("type %s for %s %s", event.Type, event.Data.Status, event.Data.Reason)
	}
	if err != nil {
		h.bad = append(h.bad, err)
	}
	h.got[event.Data.ID] = append(h.got[event.Data.ID], r.Header.Get("Webhook-Id"))
	close(h.wake)
	h.wake = make(chan struct{})
}

// await waits until every task has its webhook, and checks that all deliveries
// of one task carry one id.
func (h *hookReceiver) await(ctx context.Context, tasks ...string) error {
	for _, id := range tasks {
		for {
			h.mu.Lock()
			ids, wake, bad := h.got[id], h.wake, h.bad
			h.mu.Unlock()
			if len(bad) > 0 {
				return errors.Join(bad...)
			}
			if len(ids) > 0 {
				for _, other := range ids {
					if other != goal.WebhookID(defaultTenant, id) {
						return fmt.Errorf("task %s: webhook-id %s", id, other)
					}
				}
				break
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return fmt.Errorf("no webhook for task %s", id)
			}
		}
	}
	return nil
}

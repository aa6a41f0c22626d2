package main

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestMigrate moves a service from its embedded store to external NATS: what
// had ended stays so, what waited is done there, and nothing is done twice.
func TestMigrate(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	hooks := newHookReceiver(t)
	submitMoved := func(s *site, key string) string { return s.submit(key, securedGoal(key, hooks.url)) }
	var done, queued []string
	t.Run("ends some", func(t *testing.T) {
		s := newSite(t, true, func(c *config) { c.Data = data })
		hooks.setSecret(s.hooks.secret)
		for i := range 3 {
			done = append(done, submitMoved(s, fmt.Sprintf("done-%d", i)))
		}
		if err := hooks.await(t.Context(), done...); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("takes more", func(t *testing.T) {
		s := newSite(t, false, func(c *config) { c.Data = data })
		for i := range 3 {
			queued = append(queued, submitMoved(s, fmt.Sprintf("queued-%d", i)))
		}
	})
	cluster := kvtest.Server(t, kvtest.Options{Listen: true})
	var out, errs bytes.Buffer
	args := []string{"migrate", "--data", data, "--nats", cluster.URL(), "--replicas", "1"}
	if code := run(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &errs}); code != 0 {
		t.Fatalf("migrate: exit %d\n%s%s", code, out.String(), errs.String())
	}
	for _, want := range []string{"GOALS_default", "EVENTS", "KV_RESULTS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("migrate does not name %s:\n%s", want, out.String())
		}
	}
	if !strings.Contains(errs.String(), "webhook.secret") {
		t.Errorf("migrate does not speak of the webhook secret:\n%s", errs.String())
	}
	cfg := roleConfig(cluster.URL())
	cfg.Tenants[0].WebhookSecrets = []hookSecret{{Key: secret(hooks.secret)}}
	target := &site{t: t, url: startRole(t, cfg, allRoles).url()}
	if err := hooks.await(t.Context(), queued...); err != nil {
		t.Fatal(err)
	}
	for i, id := range append(done, queued...) {
		if task := target.task(id); task.Status != goal.Succeeded {
			t.Errorf("task %s is %s %s", id, task.Status, task.Reason)
		}
		hooks.mu.Lock()
		n := len(hooks.got[id])
		hooks.mu.Unlock()
		if n != 1 {
			t.Errorf("task %s: %d webhooks", id, n)
		}
		key := fmt.Sprintf("done-%d", i)
		if i >= len(done) {
			key = fmt.Sprintf("queued-%d", i-len(done))
		}
		body, err := goal.Marshal(securedGoal(key, hooks.url))
		if err != nil {
			t.Fatal(err)
		}
		if status, header, raw := target.post("/v1/tasks", key, body); status != http.StatusOK || header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s again: %d %s", key, status, raw)
		}
	}
	if code := run(t.Context(), []string{"serve", "--data", data, "--listen", anyPort}, streams{in: strings.NewReader(""), out: &out, err: &errs}); code == 0 || !strings.Contains(errs.String(), "was moved to a cluster") {
		t.Errorf("serve on the old folder: exit %d\n%s", code, errs.String())
	}
}

// TestMigrateUsage: what cannot be meant is refused before anything starts.
func TestMigrateUsage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no cluster": {[]string{"migrate", "--data", t.TempDir()}, "name the cluster"},
		"no store":   {[]string{"migrate", "--data", t.TempDir(), "--nats", "nats://127.0.0.1:1"}, "no embedded store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs bytes.Buffer
			code := run(t.Context(), test.args, streams{in: strings.NewReader(""), out: &errs, err: &errs})
			if code != exitUsage || !strings.Contains(errs.String(), test.want) {
				t.Errorf("exit %d: %s", code, errs.String())
			}
		})
	}
}

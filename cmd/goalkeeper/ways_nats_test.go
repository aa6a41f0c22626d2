package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// serveWithNATS starts the whole service with a NATS port.
func serveWithNATS(t *testing.T, dir string) *instance {
	t.Helper()
	return launch(t, nil, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0")
}

// TestNATSCommand goes the ways over NATS with the nats command line.
func TestNATSCommand(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nats"); err != nil {
		t.Skip("the nats command line is not on this machine")
	}
	p := serveWithNATS(t, t.TempDir())
	env := []string{"HOME=" + t.TempDir(), "XDG_CONFIG_HOME=" + t.TempDir()}
	run := func(args ...string) string {
		t.Helper()
		out, err := outputOf(t, env, "nats", append([]string{"--server", p.nats, "--timeout", "30s"}, args...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	body, other := string(encodedJSON(t, writeGoal("a", 1))), string(encodedJSON(t, writeGoal("a", 2)))
	id := goal.TaskID(defaultTenant, "cli")

	ctx, cancel := context.WithTimeout(t.Context(), wayLimit)
	defer cancel()
	watch := exec.CommandContext(ctx, "nats", "--server", p.nats, "sub", "goals.events.default."+id+".>", "--stream", goal.EventsStream, "--all")
	watch.Env = append(os.Environ(), env...)
	seen, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()

	first := run("request", "--raw", goal.SubmitSubject(defaultTenant), body, "-H", "Nats-Msg-Id:cli")
	if !strings.Contains(first, `"stream"`) || strings.Contains(first, "duplicate") {
		t.Errorf("acknowledgement = %s", first)
	}
	if twice := run("request", "--raw", goal.SubmitSubject(defaultTenant), body, "-H", "Nats-Msg-Id:cli"); !strings.Contains(strings.ReplaceAll(twice, " ", ""), `"duplicate":true`) {
		t.Errorf("acknowledgement of the duplicate = %s", twice)
	}
	if out := run("publish", "--jetstream", goal.SubmitSubject(defaultTenant), body, "-H", "Nats-Msg-Id:cli"); !strings.Contains(strings.ToLower(out), "duplicate") {
		t.Errorf("nats publish --jetstream says %s", out)
	}
	var events strings.Builder
	for in := bufio.NewScanner(seen); in.Scan(); {
		events.WriteString(in.Text() + "\n")
		if strings.Contains(in.Text(), string(goal.TaskEnded)) {
			break
		}
	}
	for _, want := range []goal.EventType{goal.TaskStarted, goal.StepDecided, goal.StepCompleted, goal.TaskEnded} {
		if !strings.Contains(events.String(), string(want)) {
			t.Errorf("nats sub does not show %s:\n%s", want, events.String())
		}
	}
	answer := run("request", goal.RequestSubject(defaultTenant), body, "-H", "Idempotency-Key:cli")
	for _, want := range []string{"Status: 200", "Location: /v1/tasks/" + id, "Idempotent-Replayed: true", `"succeeded"`} {
		if !strings.Contains(answer, want) {
			t.Errorf("answer to the request without %q:\n%s", want, answer)
		}
	}
	conflict := run("request", goal.RequestSubject(defaultTenant), other, "-H", "Idempotency-Key:cli")
	for _, want := range []string{"Status: 409", "idempotency-key-reused", "X-Should-Retry: false"} {
		if !strings.Contains(conflict, want) {
			t.Errorf("answer to the conflict without %q:\n%s", want, conflict)
		}
	}
	if r := p.post("cli", writeGoal("a", 1)); r.status != http.StatusOK || r.task().ID != id {
		t.Errorf("the same over HTTP: %d %s", r.status, r.body)
	}
}

// TestNATSFromJavaScript goes the same ways with the JavaScript client.
func TestNATSFromJavaScript(t *testing.T) {
	t.Parallel()
	modules := os.Getenv("GOALKEEPER_NODE_MODULES")
	if modules == "" {
		t.Skip("GOALKEEPER_NODE_MODULES names no folder of npm packages")
	}
	if _, err := os.Stat(filepath.Join(modules, "@nats-io", "jetstream")); err != nil { //nolint:gosec // the developer's own directory
		t.Skipf("the JavaScript client is not installed: %v", err)
	}
	script, err := os.ReadFile(filepath.Join(kvtest.Root(t), "cmd", "goalkeeper", "testdata", "js", "ways.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeConfig(t, filepath.Join(dir, "ways.mjs"), string(script))
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	p := serveWithNATS(t, t.TempDir())
	id := goal.TaskID(defaultTenant, "js")
	ctx, cancel := context.WithTimeout(t.Context(), wayLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "ways.mjs"))
	cmd.Env = append(os.Environ(), "NATS_URL="+p.nats, "KEY=js", "TASK="+id, "TENANT="+defaultTenant,
		"GOAL="+string(encodedJSON(t, writeGoal("b", 1))), "OTHER="+string(encodedJSON(t, writeGoal("b", 2))))
	var failed strings.Builder
	cmd.Stderr = &failed
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, raw, failed.String())
	}
	var got struct {
		First, Twice struct{ Duplicate bool }
		Seen         []string // the types of the task's events
		Request      struct {
			Status, Location, Replayed string
			Body                       goal.Task
		}
		Conflict struct {
			Status string
			Body   goal.Problem
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	if got.First.Duplicate || !got.Twice.Duplicate {
		t.Errorf("duplicate: first %v, second %v", got.First.Duplicate, got.Twice.Duplicate)
	}
	if types := strings.Join(got.Seen, " "); !strings.HasPrefix(types, string(goal.TaskStarted)) || !strings.HasSuffix(types, string(goal.TaskEnded)) {
		t.Errorf("events = %s", types)
	}
	if r := got.Request; r.Status != "200" || r.Location != "/v1/tasks/"+id || r.Replayed != "true" || r.Body.Status != goal.Succeeded {
		t.Errorf("request = %+v", r)
	}
	if c := got.Conflict; c.Status != "409" || c.Body.Kind() != goal.KeyReused {
		t.Errorf("conflict = %+v", c)
	}
	if task := p.settled(id); task.Status != goal.Succeeded {
		t.Errorf("task = %s", task.Status)
	}
}

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// TestMCPEnvironment runs a goal in an environment whose tools and whose state
// are a published MCP server: the file system server writes a file, and the
// state is what it reads there.
func TestMCPEnvironment(t *testing.T) {
	t.Parallel()
	modules := os.Getenv("GOALKEEPER_NODE_MODULES")
	if modules == "" {
		t.Skip("GOALKEEPER_NODE_MODULES is not set: no published MCP servers to talk to")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node: ", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "state.json")
	if err := os.WriteFile(file, []byte(`{"orders": {"W1": {"status": "paid", "total": 9007199254740993}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	write, err := goal.Marshal(map[string]string{
		"path": file, "content": `{"orders": {"W1": {"status": "refunded", "total": 9007199254740993}}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(modules, "@modelcontextprotocol", "server-filesystem", "dist", "index.js")
	s := newSite(t, true, func(c *config) {
		c.Environments = []environmentConfig{{
			Name:    "files",
			MCP:     []mcpConfig{{Name: "fs", Command: []string{node, server, dir}, Replay: map[string]goal.Replay{"write_file": goal.ReplayIdempotent}}},
			State:   stateConfig{Type: "mcp", Server: "fs", Tool: "read_text_file", Arguments: map[string]any{"path": file}, Pointer: "/structured/content", JSONText: true},
			Planner: plannerConfig{Type: "script", Script: []scriptAction{{Tool: "fs.write_file", JSON: string(write)}}},
		}}
	})
	id := s.submit("k", map[string]any{
		"goal":        json.RawMessage(`{"intent": "Refund the order in the file", "target_state": {"orders": {"W1": {"status": "refunded", "total": 9007199254740993}}}}`),
		"guardrails":  map[string]any{"max_steps": 3, "timeout_seconds": 60, "allowed_tools": []string{"fs.write_file"}},
		"environment": "files", "webhook_url": s.hooks.url,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.hooks.await(ctx, id); err != nil {
		t.Fatal(err)
	}
	if task := s.task(id); task.Status != goal.Succeeded || task.Usage.Steps != 1 {
		t.Errorf("%s %s %s after %d steps\n%s", task.Status, task.Reason, task.Detail, task.Usage.Steps, s.trace(id))
	}
}

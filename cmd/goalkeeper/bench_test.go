package main

import (
	"encoding/json"
	"strconv"
	"testing"
)

// TestBench runs every mode for some operations against a server of its own:
// none fails, and what was asked for is reported.
func TestBench(t *testing.T) {
	t.Parallel()
	const n = 40
	for name, args := range map[string][]string{
		"submit": {"submit"}, "submit over NATS": {"submit", "--via", "nats"}, "replay": {"replay"},
		"replay of a waiting goal": {"replay", "--workers", "0"}, "list of a filled store": {"list", "--finished", "50", "--queued", "20"},
		"e2e": {"e2e"}, "e2e over NATS": {"e2e", "--via", "nats"}, "trivial": {"trivial"}, "trivial over NATS": {"trivial", "--via", "nats"},
		"gateway": {"gateway", "--repeat", "2"}, "middleware": {"middleware"}, "webhook": {"webhook"}, "noop": {"noop"},
		"each synced": {"submit", "--durability", "always"}, "at a rate": {"trivial", "--rate", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"bench", "-o", "json", "-c", "4", "-d", "30s", "-n", strconv.Itoa(n), "--warmup", "0s", "--dir", t.TempDir()}, args...)
			code, stdout, stderr := session(t, t.Context(), "", args...)
			if code != 0 {
				t.Fatalf("exit %d\n%s", code, stderr)
			}
			var r benchResult
			if err := json.Unmarshal([]byte(stdout), &r); err != nil {
				t.Fatalf("%v in %s", err, stdout)
			}
			if r.Operations != n || r.Errors != 0 || r.PerSecond <= 0 || r.Latency["p50"] <= 0 || r.Latency["max"] < r.Latency["p50"] {
				t.Errorf("measured %+v", r)
			}
		})
	}
}

// TestBenchRefusals: what makes no sense is said before anything is started.
func TestBenchRefusals(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"submit", "-c", "0"},
		{"submit", "-d", "0s"},
		{"submit", "--server", "http://127.0.0.1:1", "--ratio"},
		{"submit", "--server", "http://127.0.0.1:1", "--via", "nats"},
		{"gateway", "--via", "nats"},
		{"walk"},
	} {
		if code, _, stderr := session(t, t.Context(), "", append([]string{"bench"}, args...)...); code != 2 {
			t.Errorf("bench %v: exit %d, want 2\n%s", args, code, stderr)
		}
	}
}

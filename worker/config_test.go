package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// TestConfig: what cannot work is refused, and the message names the setting.
func TestConfig(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name   string
		change func(*worker.Config)
		want   string // in the error; empty: none
	}{
		{"as little as possible", func(*worker.Config) {}, ""},
		{"everything", func(c *worker.Config) { c.Name, c.Concurrency, c.AckWait, c.Grace = "x", 1, time.Second, 1 }, ""},
		{"no store", func(c *worker.Config) { c.Store = nil }, "Config.Store"},
		{"no environments", func(c *worker.Config) { c.Environments = nil }, "Config.Environments"},
		{"no queues", func(c *worker.Config) { c.Queues = nil }, "Config.Queues"},
		{"no queue for a tenant", func(c *worker.Config) { c.Queues["beta"] = nil }, `"beta"`},
		{"negative concurrency", func(c *worker.Config) { c.Concurrency = -1 }, "Config.Concurrency is -1"},
		{"negative AckWait", func(c *worker.Config) { c.AckWait = -time.Second }, "Config.AckWait is -1s"},
		{"AckWait below a lease", func(c *worker.Config) { c.AckWait = 999 * time.Millisecond }, "Config.AckWait is 999ms"},
		{"negative grace", func(c *worker.Config) { c.Grace = -1 }, "Config.Grace is -1ns"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := worker.Config{Queues: map[string]worker.Queue{acme: taker{}}, Store: &node{}, Environments: environments{}}
			row.change(&c)
			w, err := worker.New(c)
			switch {
			case row.want == "" && (err != nil || w == nil):
				t.Errorf("New() = %v, %v", w, err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("New() error %v, want one with %s", err, row.want)
			}
		})
	}
}

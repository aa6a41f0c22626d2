package main

import (
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// acks stands for the queue's acknowledgements: each is one write to the state of
// its consumer.
const acks = "acks"

// writes counts the messages that each stream has ever stored.
type writes map[string]uint64

// countWrites asks the server.
func countWrites(t *testing.T, js jetstream.JetStream) writes {
	t.Helper()
	w := writes{}
	streams := js.ListStreams(t.Context())
	for info := range streams.Info() {
		w[info.Config.Name] = info.State.LastSeq
	}
	if err := streams.Err(); err != nil {
		t.Fatal(err)
	}
	w[acks] = acked(t, js)
	return w
}

// acked is how many goals were taken out of the queue for good.
func acked(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	c, err := js.Consumer(t.Context(), goal.GoalsStream(defaultTenant), "workers")
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo().AckFloor.Consumer
}

// since is what was written after before, without the streams that were left
// alone.
func (w writes) since(before writes) writes {
	d := writes{}
	for name, n := range w {
		if n != before[name] {
			d[name] = n - before[name]
		}
	}
	return d
}

// TestWritesPerGoal pins what a goal costs the store. Durable are one
// submission, one start, two for each step (decision and outcome), one result,
// one end and one ack. The lease is taken and given back in memory. A change of
// the built-in state is a write of its own, as it would be in any other tool's
// backend, and so is the delivery of a webhook: its record, and its outcome.
func TestWritesPerGoal(t *testing.T) {
	t.Parallel()
	if f := scaling; f.queueWrites != 1 || f.toEvents() != 2+2*f.steps || f.resultWrites != 1 || f.deliveryWrites != 2 {
		t.Error("SCALING.md reckons with other numbers than these")
	}
	world := newSoakWorld(t)
	s := newSite(t, true, func(c *config) {
		file, err := loadConfig(world.config(t, t.TempDir(), ""))
		if err != nil {
			t.Fatal(err)
		}
		c.Environments = file.Environments
		c.Worker.AckWait = duration(time.Minute) // no lease needs renewing
	})
	nc, err := nats.Connect(s.service.broker.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	reads := countReads(t, nc)
	const (
		queue, events, results, locks = "GOALS_default", "EVENTS", "KV_RESULTS", "KV_LOCKS"
		state, hooks                  = "KV_STATE", "DELIVERIES"
	)
	for i, tc := range []struct {
		name, environment string
		target            func(steps int) map[string]any
		steps             int
		hook              bool
		want              writes
		reads             int64 // at most: twice what it takes
	}{
		{"built-in state, reached already", "default", things, 0, false, writes{queue: 1, events: 2, results: 1, locks: 2, acks: 1}, 2},
		{"built-in state, 1 step", "default", things, 1, false, writes{queue: 1, events: 2 + 2, results: 1, locks: 2, acks: 1, state: 1}, 16},
		{"built-in state, 3 steps", "default", things, 3, false, writes{queue: 1, events: 2 + 6, results: 1, locks: 2, acks: 1, state: 3}, 60},
		{"HTTP tool, reached already", "counters", counter, 0, false, writes{queue: 1, events: 2, results: 1, locks: 2, acks: 1}, 0},
		{"HTTP tool, 1 step", "counters", counter, 1, false, writes{queue: 1, events: 2 + 2, results: 1, locks: 2, acks: 1}, 4},
		{"HTTP tool, 3 steps", "counters", counter, 3, false, writes{queue: 1, events: 2 + 6, results: 1, locks: 2, acks: 1}, 12},
		{"webhook", "counters", counter, 0, true, writes{queue: 1, events: 2, results: 1, locks: 2, acks: 1, hooks: 2}, 0},
	} {
		g := map[string]any{
			"goal":       map[string]any{"intent": "Make it so: " + tc.name, "target_state": tc.target(tc.steps)},
			"guardrails": map[string]any{"max_steps": 8, "timeout_seconds": 60}, "environment": tc.environment,
		}
		if tc.steps == 0 { // make it so before
			before := countWrites(t, js)
			s.submit(fmt.Sprintf("before-%d", i), g)
			before.await(t, js, writes{acks: 1})
		}
		if tc.hook {
			g["webhook_url"] = s.hooks.url
		}
		before, read := countWrites(t, js), reads.Load()
		id := s.submit(fmt.Sprintf("goal-%d", i), g)
		before.await(t, js, writes{acks: 1, hooks: tc.want[hooks]}) // the ack is last
		if n := reads.Load() - read; n > tc.reads {
			t.Errorf("%s: %d reads, want at most %d", tc.name, n, tc.reads)
		} else {
			t.Logf("%s: %d reads", tc.name, n)
		}
		if task := s.task(id); task.Status != goal.Succeeded || task.Usage.Steps != tc.steps {
			t.Errorf("%s: %s %s after %d steps", tc.name, task.Status, task.Reason, task.Usage.Steps)
		}
		if got := countWrites(t, js).since(before); !maps.Equal(got, tc.want) {
			t.Errorf("%s: wrote %v, want %v", tc.name, got, tc.want)
		}
	}
}

// await waits until at least so much was written after w.
func (w writes) await(t *testing.T, js jetstream.JetStream, want writes) {
	t.Helper()
	for began := time.Now(); ; waitABit(t.Context(), 10*time.Millisecond) {
		got, enough := countWrites(t, js).since(w), true
		for name, n := range want {
			enough = enough && got[name] >= n
		}
		if enough {
			return
		}
		if time.Since(began) > wayLimit {
			t.Fatalf("wrote %v, want at least %v", got, want)
		}
	}
}

// things is a target of as many steps of the built-in planner.
func things(steps int) map[string]any {
	all := map[string]any{}
	for i := range max(steps, 1) {
		all[fmt.Sprintf("w%d-%d", steps, i)] = map[string]any{"done": true}
	}
	return map[string]any{"things": all}
}

// counter is a target of as many additions.
func counter(steps int) map[string]any {
	return map[string]any{"counters": map[string]any{fmt.Sprintf("w%d", steps): map[string]any{"value": max(steps, 1)}}}
}

// countReads counts requests for stored messages.
func countReads(t *testing.T, nc *nats.Conn) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	for _, subject := range []string{"$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.>"} {
		if _, err := nc.Subscribe(subject, func(*nats.Msg) { n.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return &n
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// soakCluster is Goalkeeper as it is operated at scale, on one machine: three
// NATS servers and two of each role, every one a process.
type soakCluster struct {
	t       *testing.T
	nats    *natsCluster
	ingest  []*member
	workers []*member
	notify  []*member
	admin   *nats.Conn // in everybody's account
	system  *nats.Conn // in the system account
	rand    *rand.Rand
	ill     []string // servers that did not get well by themselves
}

func newSoakCluster(t *testing.T, w *soakWorld, seed uint64) (c *soakCluster, urls []string) {
	t.Helper()
	dir := t.TempDir()
	c = &soakCluster{t: t, nats: newNATSCluster(t, dir), rand: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // to be repeated
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.nats.healthy(ctx); err != nil {
		t.Fatal(err)
	}
	config := w.config(t, dir, "")
	role := func(name, verb string, more ...string) *member {
		m := program(t, dir, name, append([]string{"goalkeeper", verb, "--config", config, "--nats", c.nats.url}, more...)...)
		m.start()
		return m
	}
	for i, port := range freePorts(t, 2) {
		urls = append(urls, "http://127.0.0.1:"+port)
		c.ingest = append(c.ingest, role(fmt.Sprintf("ingest-%d", i+1), "ingest", "--listen", "127.0.0.1:"+port))
		c.workers = append(c.workers, role(fmt.Sprintf("worker-%d", i+1), "worker", "--concurrency", "16"))
		c.notify = append(c.notify, role(fmt.Sprintf("notifier-%d", i+1), "notifier"))
	}
	for _, url := range urls {
		if err := answers(ctx, url+"/readyz"); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
	}
	c.admin, c.system = dial(c.t, c.nats.url), dial(c.t, c.nats.system)
	return c, urls
}

// fault is one thing that goes wrong, and is made good again.
type fault struct {
	name string
	do   func(*soakCluster, context.Context) error
}

// faults is every fault; the soak shuffles it again and again.
var faults = []fault{
	{"kill a NATS server", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, c.any(c.nats.nodes), 3*time.Second)
	}},
	{"kill all NATS servers", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, c.nats.nodes, time.Second)
	}},
	{"freeze a NATS server", func(c *soakCluster, ctx context.Context) error {
		return c.freeze(ctx, c.any(c.nats.nodes), 2*time.Second, 4*time.Second)
	}},
	{"cut a NATS server off from the others", func(c *soakCluster, ctx context.Context) error {
		i := c.rand.IntN(len(c.nats.nodes))
		return c.partition(ctx, func(from, to int) bool { return from == i || to == i })
	}},
	{"cut two NATS servers off from each other", func(c *soakCluster, ctx context.Context) error {
		i := c.rand.IntN(len(c.nats.nodes)) // sees both
		return c.partition(ctx, func(from, to int) bool { return from != i && to != i })
	}},
	{"leaders step down", (*soakCluster).stepDown},
	{"the meta leader steps down", (*soakCluster).stepDownMeta},
	{"kill a worker", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, c.any(c.workers), time.Second)
	}},
	{"freeze a worker beyond its lease", func(c *soakCluster, ctx context.Context) error {
		return c.freeze(ctx, c.any(c.workers), soakAckWait+time.Second, 2*time.Second)
	}},
	{"kill an ingest", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, c.any(c.ingest), time.Second)
	}},
	{"kill a notifier", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, c.any(c.notify), time.Second)
	}},
	{"freeze a notifier", func(c *soakCluster, ctx context.Context) error {
		return c.freeze(ctx, c.any(c.notify), 2*time.Second, 2*time.Second)
	}},
	{"kill one of each", func(c *soakCluster, ctx context.Context) error {
		return c.crash(ctx, slices.Concat(c.any(c.nats.nodes), c.any(c.workers), c.any(c.ingest), c.any(c.notify)), time.Second)
	}},
	{"restart everything, one after the other", (*soakCluster).roll},
}

func (c *soakCluster) any(of []*member) []*member { return of[c.rand.IntN(len(of)):][:1] }

// about is a random time around d.
func (c *soakCluster) about(d time.Duration) time.Duration {
	return d/2 + time.Duration(c.rand.Int64N(int64(d)))
}

// crash kills the processes and starts them again about a time later.
func (c *soakCluster) crash(ctx context.Context, them []*member, down time.Duration) error {
	for _, m := range them {
		m.kill()
	}
	waitABit(ctx, c.about(down))
	for _, m := range them {
		m.start() //nolint:contextcheck // the process outlives the fault
	}
	return c.nats.healthy(ctx)
}

// freeze stops the processes' clocks for at least a time.
func (c *soakCluster) freeze(ctx context.Context, them []*member, least, more time.Duration) error {
	for _, m := range them {
		m.signal(syscall.SIGSTOP)
	}
	waitABit(ctx, least+time.Duration(c.rand.Int64N(int64(more))))
	for _, m := range them {
		m.signal(syscall.SIGCONT)
	}
	return c.nats.healthy(ctx)
}

// partition cuts the links of the servers for a time that is sometimes longer
// than a leader keeps its office without a majority. Clients still reach them.
func (c *soakCluster) partition(ctx context.Context, cut func(from, to int) bool) error {
	var links []*link
	for i, row := range c.nats.links {
		for j, l := range row {
			if l != nil && cut(i, j) {
				links = append(links, l)
				l.cut()
			}
		}
	}
	waitABit(ctx, 2*time.Second+time.Duration(c.rand.Int64N(int64(12*time.Second))))
	lose := c.rand.IntN(2) == 0
	for _, l := range links {
		l.heal(lose)
	}
	return c.recovered(ctx)
}

// recovered waits until every server has its streams up to date. A server may
// not get there: NATS 2.15.3 can repeat the catch-up of a replica that was cut
// off for as long as the leader stays ("Expected first catchup entry to be a
// snapshot and peerstate, will retry"). Its health check says so, and whoever
// watches that restarts it.
func (c *soakCluster) recovered(ctx context.Context) error {
	for i, node := range c.nats.nodes {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			return answers(ctx, c.nats.monitors[i])
		}()
		if err == nil {
			continue
		}
		c.ill = append(c.ill, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), node.name, err))
		if err := node.stop(); err != nil {
			return err
		}
		node.start() //nolint:contextcheck // the process outlives the fault
	}
	return c.nats.healthy(ctx)
}

// stepDownMeta has the servers choose another leader of them all.
func (c *soakCluster) stepDownMeta(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply, err := c.system.RequestWithContext(ctx, "$JS.API.META.LEADER.STEPDOWN", nil)
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return nil // there is none just now, which is what was wanted
	case err != nil:
		return err
	case !strings.Contains(string(reply.Data), `"success":true`):
		return fmt.Errorf("the meta leader does not step down: %s", reply.Data)
	}
	return c.nats.healthy(ctx)
}

// stepDown has every stream and consumer that matters choose another leader.
func (c *soakCluster) stepDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, stream := range []string{
		goal.GoalsStream(defaultTenant), goal.EventsStream, "KV_" + goal.ResultsBucket, goal.DeliveriesStream, "KV_" + goal.LocksBucket, "KV_" + goal.StateBucket,
	} {
		// It may have no leader just now, which is what was wanted.
		_, _ = c.admin.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil)
	}
	return nil
}

// roll restarts one process after the other, as an upgrade does.
func (c *soakCluster) roll(ctx context.Context) error {
	for _, m := range slices.Concat(c.nats.nodes, c.ingest, c.workers, c.notify) {
		began := time.Now()
		if err := m.stop(); err != nil {
			return err
		}
		stopped := time.Since(began)
		m.start() //nolint:contextcheck // the process outlives the fault
		if err := c.nats.healthy(ctx); err != nil {
			return fmt.Errorf("after the restart of %s: %w", m.name, err)
		}
		c.t.Logf("restarted %s: stopped after %s, well again after %s", m.name, stopped.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// TestSoakCluster keeps up a load on a cluster in which one thing after the
// other fails, and wants every acknowledged goal settled once, with its webhook
// and its effects. GOALKEEPER_SOAK makes it as long as wanted, and
// GOALKEEPER_SEED repeats the order of the faults.
func TestSoakCluster(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	seed := soakSeed(t)
	w := newSoakWorld(t)
	c, urls := newSoakCluster(t, w, seed)
	rate := 20
	if os.Getenv("GOALKEEPER_SOAK") == "" {
		rate = 8 // with the race detector on a small machine
	}
	l := newLoad(t, w, rate, urls...)
	l.mixed = true
	l.direct = dial(t, c.nats.url)
	var err error
	if l.intake, err = jetstream.New(l.direct); err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithTimeout(t.Context(), soakDuration(t, 90*time.Second))
	defer enough()
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx) }()
	counts := map[string]int{}
	for ctx.Err() == nil {
		for _, i := range c.rand.Perm(len(faults)) {
			waitABit(ctx, c.about(time.Second))
			if ctx.Err() != nil {
				break
			}
			began := time.Now()
			heal, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := faults[i].do(c, heal)
			cancel()
			counts[faults[i].name]++
			t.Logf("%s %s: well again after %s", began.Format(time.TimeOnly), faults[i].name, time.Since(began).Round(time.Millisecond))
			if err != nil {
				t.Errorf("%s: %v", faults[i].name, err)
			}
		}
	}
	<-done
	l.finish(t)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%3d × %s", counts[name], name))
	}
	t.Logf("GOALKEEPER_SEED=%d\n%s", seed, strings.Join(list, "\n"))
	if len(c.ill) > 0 {
		t.Logf("not healthy after a partition, and restarted: %q", c.ill)
	}
	for _, m := range slices.Concat(c.nats.nodes, c.ingest, c.workers, c.notify) {
		if len(m.crashes) > 0 {
			t.Logf("ended by itself and was started again: %q", m.crashes)
		}
	}
}

package kvtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options of a test server. The zero value is one node in a directory of the
// test's own that listens nowhere.
type Options struct {
	// Nodes is 1 or 3; 0 means 1. Three nodes talk over loopback and cannot
	// run in a synctest bubble.
	Nodes int
	// Dir is the store directory; empty means one of the test's own.
	Dir string
	// Listen opens a port on loopback; Conn then uses it.
	Listen bool
	// SyncAlways syncs every message.
	SyncAlways bool
	// SyncInterval is the server's own; 0 means its default.
	SyncInterval time.Duration
}

// Cluster is one server, or three.
type Cluster struct {
	opts    []*server.Options
	servers []*server.Server
}

const ready = 30 * time.Second

// Server starts the servers and stops them when the test ends.
func Server(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	c := &Cluster{}
	for i := range o.Nodes {
		c.opts = append(c.opts, nodeOptions(o, i))
	}
	if o.Nodes > 1 {
		c.route(tb)
	}
	c.servers = make([]*server.Server, o.Nodes)
	tb.Cleanup(c.stop)
	for i := range c.servers {
		c.start(tb, i)
	}
	c.await(tb)
	return c
}

func nodeOptions(o Options, i int) *server.Options {
	opts := &server.Options{
		ServerName: "node" + strconv.Itoa(i), DontListen: !o.Listen && o.Nodes == 1, Host: "127.0.0.1", Port: -1,
		JetStream: true, StoreDir: filepath.Join(o.Dir, "node"+strconv.Itoa(i)),
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 8 << 30,
		NoSigs: true, NoLog: true, SyncAlways: o.SyncAlways, SyncInterval: o.SyncInterval, DisableJetStreamBanner: true,
	}
	opts.JetStreamLimits.DefaultMaxConsumers = 10_000
	return opts
}

// route joins the nodes; JetStream wants to know all routes at the start.
func (c *Cluster) route(tb testing.TB) {
	tb.Helper()
	var routes []string
	for _, o := range c.opts {
		port := freePort(tb)
		o.Cluster = server.ClusterOpts{Name: "kvtest", Host: "127.0.0.1", Port: port}
		routes = append(routes, "nats-route://127.0.0.1:"+strconv.Itoa(port))
	}
	for _, o := range c.opts {
		for _, r := range routes {
			o.Routes = append(o.Routes, server.RoutesFromStr(r)...)
		}
	}
}

// freePort is a port on loopback that nobody uses, from below the range that
// systems give out by themselves: nothing else takes it before the server does.
func freePort(tb testing.TB) int {
	tb.Helper()
	const from, to = 10_000, 32_000
	for range 100 {
		port := from + rand.IntN(to-from) //nolint:gosec // any free one
		l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			tb.Fatalf("release port %d: %v", port, err)
		}
		return port
	}
	tb.Fatal("no free port on loopback")
	return 0
}

func (c *Cluster) start(tb testing.TB, i int) {
	tb.Helper()
	s, err := server.NewServer(c.opts[i].Clone())
	if err != nil {
		tb.Fatalf("node %d: %v", i, err)
	}
	s.Start()
	c.servers[i] = s
}

// await waits until every node serves, and a cluster has a leader.
func (c *Cluster) await(tb testing.TB) {
	tb.Helper()
	for i, s := range c.servers {
		if !s.ReadyForConnections(ready) {
			tb.Fatalf("node %d is not ready", i)
		}
	}
	if len(c.servers) == 1 {
		return
	}
	for end := time.Now().Add(ready); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if c.settled() {
			return
		}
	}
	tb.Fatal("the cluster has no leader")
}

func (c *Cluster) settled() bool {
	leader := false
	for _, s := range c.servers {
		if s == nil || !s.JetStreamIsCurrent() {
			return false
		}
		leader = leader || s.JetStreamIsLeader()
	}
	return leader
}

// Conn is a new connection, closed when the test ends.
func (c *Cluster) Conn(tb testing.TB) *nats.Conn {
	tb.Helper()
	return c.connect(tb, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
}

func (c *Cluster) connect(tb testing.TB, opts ...nats.Option) *nats.Conn {
	tb.Helper()
	url := ""
	for _, s := range c.servers {
		switch {
		case c.opts[0].DontListen:
			opts = append(opts, nats.InProcessServer(s))
		case url == "":
			url = s.ClientURL()
		default:
			url += "," + s.ClientURL()
		}
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// Servers are the nodes.
func (c *Cluster) Servers() []*server.Server { return c.servers }

// URL is the first node's address; it needs Options.Listen or three nodes.
func (c *Cluster) URL() string { return c.servers[0].ClientURL() }

// Stop shuts node i down. Its directory stays.
func (c *Cluster) Stop(i int) {
	if s := c.servers[i]; s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// Restart shuts node i down and starts it again on its directory. Connections
// to a node that listens nowhere end with it: make new ones.
func (c *Cluster) Restart(tb testing.TB, i int) {
	tb.Helper()
	c.Stop(i)
	c.start(tb, i)
	c.await(tb)
}

func (c *Cluster) stop() {
	for i := range c.servers {
		c.Stop(i)
	}
}

// String names the topology, for subtests.
func (c *Cluster) String() string { return fmt.Sprintf("R%d", len(c.servers)) }

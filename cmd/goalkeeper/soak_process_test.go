package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsNode is one NATS server as a process: the program nats-node of the
// tests. It reads a configuration file as nats-server does; flags give what
// must differ between servers on one machine.
func natsNode() {
	config := flag.String("config", "", "")
	name := flag.String("name", "", "")
	store := flag.String("store", "", "")
	port := flag.Int("port", 0, "")
	monitor := flag.Int("monitor", 0, "")
	cluster := flag.Int("cluster", 0, "")
	routes := flag.String("routes", "", "")
	flag.Parse()
	opts, err := server.ProcessConfigFile(*config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	opts.ServerName, opts.StoreDir = *name, *store
	opts.Host, opts.Port, opts.HTTPHost, opts.HTTPPort = "127.0.0.1", *port, "127.0.0.1", *monitor
	opts.Cluster.Host, opts.Cluster.Port, opts.Routes = "127.0.0.1", *cluster, server.RoutesFromStr(*routes)
	opts.Cluster.Advertise = "127.0.0.1:1" // nobody: every route takes its link
	s, err := server.NewServer(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
}

// unsynced serves a configuration file, as goalkeeper does, on a store that
// answers before anything is durable: the program goalkeeper-unsynced of the
// tests.
func unsynced() {
	config := flag.String("config", "", "")
	flag.Parse()
	c, err := loadConfig(*config)
	if err == nil {
		c.Durability = "none" // which no user can say
		var s *service
		ctx := context.Background()
		if s, err = openService(ctx, c, allRoles, newLogger(c.Log, os.Stderr)); err == nil {
			err = s.run(ctx)
			s.close()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// member is one process of a site. One that ends by itself is started again,
// as its supervisor would.
type member struct {
	name string
	args []string
	log  string // file that takes its output

	mu      sync.Mutex
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	wanted  bool          // it should run
	crashes []string      // ends that nobody asked for
}

// program prepares a process; it does not start it. Its output goes to a file
// in dir, or in GOALKEEPER_ARTIFACTS, where it stays.
func program(tb testing.TB, dir, name string, args ...string) *member {
	tb.Helper()
	if kept := os.Getenv("GOALKEEPER_ARTIFACTS"); kept != "" {
		dir = filepath.Join(kept, tb.Name())
		if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // whoever runs the tests names it
			tb.Fatal(err)
		}
	}
	m := &member{name: name, args: args, log: filepath.Join(dir, name+".log")}
	tb.Cleanup(func() {
		m.kill()
		if tb.Failed() {
			if raw, err := os.ReadFile(m.log); err == nil {
				tb.Logf("log of %s (end):\n%s", name, raw[max(0, len(raw)-3000):])
			}
		}
	})
	return m
}

// start runs the process until stop or kill.
func (m *member) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	m.run()
}

// run starts the process once. The caller holds mu.
func (m *member) run() {
	out, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer out.Close()
	cmd := exec.CommandContext(context.Background(), m.args[0], m.args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	m.cmd, m.ended = cmd, ended
	go func() {
		err := cmd.Wait()
		close(ended)
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.wanted || m.cmd != cmd {
			return
		}
		m.crashes = append(m.crashes, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), m.name, err))
		m.run()
	}()
}

// signal is sent to the process, if there is one.
func (m *member) signal(s syscall.Signal) (ended <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		m.wanted = false
	}
	_ = m.cmd.Process.Signal(s) // it may have ended
	return m.ended
}

// kill ends the process at once, and waits.
func (m *member) kill() { <-m.signal(syscall.SIGKILL) }

// stop asks the process to end, and waits.
func (m *member) stop() error {
	select {
	case <-m.signal(syscall.SIGTERM):
		return nil
	case <-time.After(time.Minute):
		m.kill()
		return errors.New(m.name + " does not stop")
	}
}

// natsCluster is three NATS servers as processes, configured by
// deploy/nats/cluster.conf. The routes between them take links.
type natsCluster struct {
	nodes    []*member
	monitors []string
	url      string
	system   string      // url for the system account
	links    [3][3]*link // by the server that dials and the one that it dials
}

// soakUsers lets everybody into the global account, and one into the system's.
const soakUsers = `
authorization {users: [{user: everybody, password: none}]}
no_auth_user: everybody
accounts {$SYS {users: [{user: system, password: none}]}}
`

func newNATSCluster(tb testing.TB, dir string) *natsCluster {
	tb.Helper()
	conf, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", "cluster.conf"))
	if err != nil {
		tb.Fatal(err)
	}
	config := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(config, append(conf, soakUsers...), 0o600); err != nil { //nolint:gosec // in a folder of the test's
		tb.Fatal(err)
	}
	c := &natsCluster{}
	const size = len(c.links)
	ports := freePorts(tb, 3*size)
	var urls, system []string
	for i := range size {
		urls = append(urls, "nats://127.0.0.1:"+ports[i])
		system = append(system, "nats://system:none@127.0.0.1:"+ports[i])
	}
	c.url, c.system = strings.Join(urls, ","), strings.Join(system, ",")
	for i := range size {
		var routes []string
		for j := range size {
			if i != j {
				c.links[i][j] = newLink(tb, "127.0.0.1:"+ports[size+j])
				routes = append(routes, "nats://"+c.links[i][j].address())
			}
		}
		name := "nats-" + strconv.Itoa(i+1)
		c.nodes = append(c.nodes, program(tb, dir, name, "nats-node", "-config", config, "-name", name, "-store", filepath.Join(dir, name),
			"-port", ports[i], "-cluster", ports[size+i], "-monitor", ports[2*size+i], "-routes", strings.Join(routes, ",")))
		c.monitors = append(c.monitors, "http://127.0.0.1:"+ports[2*size+i]+"/healthz")
		c.nodes[i].start()
	}
	return c
}

// dial is a connection to whatever server is there.
func dial(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // it loses its server again and again
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(5*time.Second),
		nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2), quiet)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// healthy waits until every server has its streams up to date.
func (c *natsCluster) healthy(ctx context.Context) error {
	for i, url := range c.monitors {
		if err := answers(ctx, url); err != nil {
			return fmt.Errorf("%s: %w", c.nodes[i].name, err)
		}
	}
	return nil
}

// answers waits until the URL answers 200.
func answers(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if ctx.Err() != nil {
			return err
		}
		waitABit(ctx, 50*time.Millisecond)
	}
}

// freePorts are ports on loopback that nobody uses, from below the range that
// systems give out by themselves: nothing else takes them while their process
// is being started again.
func freePorts(tb testing.TB, n int) (ports []string) {
	tb.Helper()
	const from, to = 10_000, 32_000
	for tries := 0; len(ports) < n; tries++ {
		if tries > 100*n {
			tb.Fatal("no free ports on loopback")
		}
		port := strconv.Itoa(from + rand.IntN(to-from)) //nolint:gosec // any free one
		l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		defer l.Close() // all are held until the last is found
		ports = append(ports, port)
	}
	return ports
}

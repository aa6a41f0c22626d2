package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// link carries the connections that one server opens to another. It can be cut:
// nothing passes any more, in either direction, and neither end is told, as when
// a switch between them fails.
type link struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu    sync.Mutex
	open  chan struct{}     // closed while the link is whole; guarded by mu
	conns map[net.Conn]bool // of both ends; nil after close; guarded by mu
}

// newLink makes a whole link to an address, until the test ends.
func newLink(tb testing.TB, target string) *link {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l := &link{listener: listener, target: target, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(l.open)
	l.running.Go(l.accept)
	tb.Cleanup(l.close)
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		if l.keep(near) {
			l.running.Go(func() { l.carry(near) })
		}
	}
}

// carry joins a connection to one of its own to the target.
func (l *link) carry(near net.Conn) {
	defer l.drop(near)
	l.whole()
	far, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", l.target)
	if err != nil || !l.keep(far) {
		return
	}
	defer l.drop(far)
	back := make(chan struct{})
	l.running.Go(func() {
		defer close(back)
		l.pass(near, far)
	})
	l.pass(far, near)
	<-back
}

// pass copies from one end to the other while the link is whole, until either
// ends; then it ends both.
func (l *link) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.whole()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// whole waits until the link is whole.
func (l *link) whole() {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	<-open
}

// keep notes a connection, unless the link is closed.
func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		_ = c.Close()
		return false
	}
	l.conns[c] = true
	return true
}

func (l *link) drop(c net.Conn) {
	_ = c.Close() // it may be closed
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// cut stops the link.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// heal makes a link whole that was cut. What was on its way arrives, or is lost
// with its connections.
func (l *link) heal(lose bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lose {
		for c := range l.conns {
			_ = c.Close()
		}
	}
	close(l.open)
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	for c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
	select {
	case <-l.open:
	default:
		close(l.open)
	}
	l.mu.Unlock()
	l.running.Wait()
}

// TestLink shows that a link that is cut passes nothing, and what was sent
// meanwhile once it is healed.
func TestLink(t *testing.T) {
	t.Parallel()
	echo, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	l := newLink(t, echo.Addr().String())
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	say := func(word string) { // what it says comes back
		t.Helper()
		if _, err := io.WriteString(c, word); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(want string, within time.Duration) error {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(within))
		buf := make([]byte, len(want))
		_, err := io.ReadFull(c, buf)
		if err == nil && string(buf) != want {
			t.Fatalf("heard %q, want %q", buf, want)
		}
		return err
	}
	say("one")
	if err := hear("one", wayLimit); err != nil {
		t.Fatal(err)
	}
	l.cut()
	say("two")
	if err := hear("two", 50*time.Millisecond); err == nil {
		t.Fatal("a link that is cut passes something")
	}
	l.heal(false)
	if err := hear("two", wayLimit); err != nil {
		t.Fatal(err)
	}
	l.cut()
	l.heal(true)
	if err := hear("x", wayLimit); err == nil {
		t.Fatal("the connection is still there")
	}
}

// TestReadsOfCutOffLeader cuts the leader of the queue off: it keeps its office
// for some seconds, does not know what the others accept meanwhile, and must not
// be believed that a task is unknown.
func TestReadsOfCutOffLeader(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	c := newNATSCluster(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.healthy(ctx); err != nil {
		t.Fatal(err)
	}
	stores, conns := make([]*kv.Store, len(c.nodes)), make([]*nats.Conn, len(c.nodes))
	for i, url := range strings.Split(c.url, ",") {
		conns[i] = dial(t, url)
		var err error
		if stores[i], err = kv.Open(ctx, kv.Config{Conn: conns[i], Replicas: len(c.nodes), Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
	}
	old := c.leader(t, conns[0], goal.GoalsStream(defaultTenant))
	for other, l := range c.links[old] {
		if l != nil {
			l.cut()
			c.links[other][old].cut()
		}
	}
	sub := goal.Submission{Tenant: defaultTenant, TaskID: goal.TaskID(defaultTenant, "k"), Key: "k", Fingerprint: "f"}
	for {
		_, _, err := stores[(old+1)%len(stores)].Submit(ctx, sub)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for range 6 { // until the old leader has given up, at least
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := stores[old].Load(short, defaultTenant, sub.TaskID)
		cancel()
		if !errors.Is(err, goal.ErrUnavailable) {
			t.Errorf("Load = %v, want %v", err, goal.ErrUnavailable)
		}
	}
	if _, err := stores[(old+1)%len(stores)].Load(ctx, defaultTenant, "tsk_unknown"); !errors.Is(err, goal.ErrNotFound) {
		t.Errorf("Load of nothing = %v, want %v", err, goal.ErrNotFound)
	}
}

// leader is the server that leads a stream.
func (c *natsCluster) leader(t *testing.T, nc *nats.Conn, stream string) int {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return slices.IndexFunc(c.nodes, func(m *member) bool { return m.name == s.CachedInfo().Cluster.Leader })
}

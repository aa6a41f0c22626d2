package kv_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestVersionOK(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"2.15.3": true, "2.12.0": true, "2.12.0-preview.1": true, "2.12": true, "3.0.0": true, "v2.14.2": true, "2.100.0": true,
		"2.11.9": false, "2.9.0": false, "1.99.0": false, "0.0.0": false, "": false, "2": false, "x.y.z": false, "2.x": false,
	} {
		err := kv.VersionOK(version)
		if (err == nil) != want {
			t.Errorf("VersionOK(%q) = %v", version, err)
		}
		if err != nil && !strings.Contains(err.Error(), "2.12") {
			t.Errorf("VersionOK(%q) does not name what is needed: %v", version, err)
		}
	}
}

// oldServer speaks just enough of the protocol to be connected to.
func oldServer(t *testing.T, version string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		fmt.Fprintf(c, "INFO {\"server_id\":\"old\",\"version\":%q,\"headers\":true,\"max_payload\":1048576,\"proto\":1}\r\n", version)
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if lines.Text() == "PING" {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestOpenRefusesOldServer(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(oldServer(t, "2.11.4"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	_, err = kv.Open(t.Context(), kv.Config{Conn: nc})
	if err == nil || !strings.Contains(err.Error(), "2.11.4 is too old") {
		t.Fatalf("Open: %v", err)
	}
}

func TestOpenChecksConfig(t *testing.T) {
	t.Parallel()
	nc := kvtest.Server(t, kvtest.Options{}).Conn(t)
	for name, c := range map[string]kv.Config{
		"Conn":      {},
		"Replicas":  {Conn: nc, Replicas: 2},
		"Retention": {Conn: nc, Retention: time.Millisecond},
		"MaxQueued": {Conn: nc, MaxQueued: map[string]int{"a": -1}},
		"tenant":    {Conn: nc, Tenants: []string{"a b"}},
	} {
		if _, err := kv.Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Open with a wrong %s: %v", name, err)
		}
	}
}

// TestOpenConcurrently: several processes start at once.
func TestOpenConcurrently(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	errs := make(chan error)
	for range 8 {
		conf := kv.Config{Conn: c.Conn(t)}
		go func() {
			_, err := kv.Open(context.Background(), conf)
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Errorf("Open: %v", err)
		}
	}
}

// TestStreams pins the settings that the promises rest on.
func TestStreams(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	c.Store(t, func(c *kv.Config) { c.LocksInMemory = true })
	js, err := jetstream.New(c.Conn(t))
	must(t, "jetstream", err, nil)
	conf := func(name string) jetstream.StreamConfig {
		st, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatalf("stream %s: %v", name, err)
		}
		return st.CachedInfo().Config
	}
	if q := conf("GOALS_default"); q.Retention != jetstream.LimitsPolicy || q.MaxMsgsPerSubject != 1 ||
		q.Discard != jetstream.DiscardNew || !q.DiscardNewPerSubject || q.MaxAge != kv.DefaultRetention || q.Duplicates > time.Minute {
		t.Errorf("queue: %+v", q)
	}
	if e := conf(goal.EventsStream); e.MaxAge <= kv.DefaultRetention || !e.AllowDirect || !e.AllowMsgTTL || e.MaxConsumers < 1000 {
		t.Errorf("events: %+v", e)
	}
	if d := conf(goal.DeliveriesStream); !d.AllowMsgSchedules || !d.AllowMsgTTL || !d.AllowDirect || d.Retention != jetstream.LimitsPolicy {
		t.Errorf("deliveries: %+v", d)
	}
	if i := conf("INTAKE_default"); i.Duplicates != 2*time.Minute || i.Subjects[0] != "goals.submit.default" {
		t.Errorf("intake: %+v", i)
	}
	for _, b := range []string{goal.LocksBucket, goal.ResultsBucket, goal.CancelsBucket, goal.CallsBucket, goal.StateBucket, goal.BalancesBucket} {
		if k := conf("KV_" + b); k.MaxMsgsPerSubject != 1 || !k.AllowMsgTTL || k.SubjectDeleteMarkerTTL != 0 || !k.AllowRollup {
			t.Errorf("bucket %s: %+v", b, k)
		}
		if _, err := js.KeyValue(t.Context(), b); err != nil {
			t.Errorf("bucket %s is not one for a key-value client: %v", b, err)
		}
	}
	if conf("KV_LOCKS").Storage != jetstream.MemoryStorage {
		t.Error("locks are not in memory")
	}
	if _, err := js.ObjectStore(t.Context(), goal.ObjectsBucket); err != nil {
		t.Errorf("objects: %v", err)
	}
}

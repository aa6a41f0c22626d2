package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// What records of calls must do is in the Exercise suite of
// ingest/idempotency, which runs on one node and on three. Here is the rest.

func TestOpenCallsAlone(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			cluster := kvtest.Server(t, kvtest.Options{Nodes: nodes, Listen: true})
			for range 2 { // it may be repeated
				calls, err := kv.OpenCalls(t.Context(), cluster.URL())
				if err != nil {
					t.Fatal(err)
				}
				defer calls.Close()
				key := strconv.FormatInt(time.Now().UnixNano(), 10)
				if _, err := calls.Create(t.Context(), key, []byte("x"), time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			js, err := jetstream.New(cluster.Conn(t))
			if err != nil {
				t.Fatal(err)
			}
			stream, err := js.Stream(t.Context(), "KV_"+goal.CallsBucket)
			if err != nil {
				t.Fatal(err)
			}
			if c := stream.CachedInfo().Config; c.Replicas != nodes || c.SubjectDeleteMarkerTTL != time.Hour || c.MaxAge != 0 {
				t.Errorf("bucket has %d replicas, traces for %s, age %s", c.Replicas, c.SubjectDeleteMarkerTTL, c.MaxAge)
			}
			// The whole store finds the bucket as it is and leaves the traces on.
			if _, err := cluster.Store(t).Calls(t.Context()); err != nil {
				t.Fatal(err)
			}
			if stream, err = js.Stream(t.Context(), "KV_"+goal.CallsBucket); err != nil || stream.CachedInfo().Config.SubjectDeleteMarkerTTL != time.Hour {
				t.Errorf("after Open: %v, traces for %s", err, stream.CachedInfo().Config.SubjectDeleteMarkerTTL)
			}
		})
	}
}

func TestOpenCallsRefused(t *testing.T) {
	t.Parallel()
	if calls, err := kv.OpenCalls(t.Context(), "nats://127.0.0.1:1"); err == nil {
		calls.Close()
		t.Fatal("opened without a server")
	}
}

func TestCallsWithoutServer(t *testing.T) {
	t.Parallel()
	cluster := kvtest.Server(t, kvtest.Options{Listen: true})
	calls, err := kv.OpenCalls(t.Context(), cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	rev, err := calls.Create(t.Context(), "k", []byte("x"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Stop(0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := calls.Update(ctx, "k", []byte("y"), rev, time.Minute); !errors.Is(err, goal.ErrUnavailable) {
		t.Errorf("Update = %v; want ErrUnavailable", err)
	}
	if _, _, err := calls.Get(ctx, "k"); !errors.Is(err, goal.ErrUnavailable) {
		t.Errorf("Get = %v; want ErrUnavailable", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %s; want the context's second", took)
	}
	cluster.Restart(t, 0) // on another port
	again, err := kv.OpenCalls(t.Context(), cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	data, got, err := again.Get(t.Context(), "k")
	if err != nil || string(data) != "x" || got != rev {
		t.Fatalf("Get after the restart = %q, %d, %v; want x, %d", data, got, err, rev)
	}
}

func TestCallsTooLarge(t *testing.T) {
	t.Parallel()
	calls, err := kvtest.Store(t, kvtest.Options{}).Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := calls.Create(t.Context(), "k", make([]byte, 1<<20), 0); !errors.Is(err, goal.ErrTooLarge) {
		t.Fatalf("Create of 1 MiB = %v; want ErrTooLarge", err)
	}
}

// countingBarrier counts who waited.
type countingBarrier struct{ waits chan struct{} }

func (b *countingBarrier) Wait(context.Context) error {
	b.waits <- struct{}{}
	return nil
}

// A write returns after the barrier; so does a read of something young, which
// may be acknowledged and not yet on the disk.
func TestCallsWaitForTheBarrier(t *testing.T) {
	t.Parallel()
	b := &countingBarrier{make(chan struct{}, 100)}
	server := kvtest.Server(t, kvtest.Options{})
	slow := func(c *kv.Config) { c.Barrier = b }
	calls, err := server.Store(t, slow).Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := len(b.waits)
	rev, err := calls.Create(t.Context(), "k", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := calls.Update(t.Context(), "k", []byte("y"), rev, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := calls.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := len(b.waits) - before; got != 2 {
		t.Fatalf("%d waits for the disk; want 2: its own writes are there", got)
	}
	other, err := server.Store(t, slow).Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a process that did not write it waits once
		if _, _, err := other.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(b.waits) - before; got != 3 {
		t.Fatalf("%d waits for the disk; want 3", got)
	}
	if _, err := calls.Create(t.Context(), "k", []byte("z"), 0); !errors.Is(err, goal.ErrExists) {
		t.Fatal(err)
	}
	if got := len(b.waits) - before; got != 3 {
		t.Fatalf("a refused write waited for the disk")
	}
}

package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

type taken struct {
	key  []string
	body string
	at   time.Time
	tp   string
}

func direct(t *testing.T, nc *nats.Conn, body string, headers ...string) *jetstream.PubAck {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg(goal.SubmitSubject("default"))
	m.Data = []byte(body)
	for pair := range slices.Chunk(headers, 2) {
		m.Header.Add(pair[0], pair[1])
	}
	ack, err := js.PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

func TestConsumeIntake(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	nc := c.Conn(t)
	s := c.Store(t, func(conf *kv.Config) { conf.Conn = nc })
	direct(t, nc, "one", "Nats-Msg-Id", "k1", "traceparent", "tp")
	if ack := direct(t, nc, "one", "Nats-Msg-Id", "k1"); !ack.Duplicate {
		t.Error("the server forgot a key that it just saw")
	}
	direct(t, nc, "no key")

	ctx, stop := context.WithCancel(t.Context())
	got, ended := make(chan taken, 16), make(chan error, 1)
	var mu sync.Mutex
	tries := map[string]int{}
	go func() {
		ended <- s.ConsumeIntake(ctx, "default", func(_ context.Context, key []string, body []byte, at time.Time, tp string) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			tries[string(body)]++
			got <- taken{key, string(body), at, tp}
			if string(body) == "later" && tries["later"] == 1 {
				return 10 * time.Millisecond
			}
			return 0
		})
	}()
	first, second := recv(t, got), recv(t, got)
	if first.body != "one" {
		first, second = second, first
	}
	if len(first.key) != 1 || first.key[0] != "k1" || first.tp != "tp" || time.Since(first.at) > time.Minute {
		t.Errorf("first = %+v", first)
	}
	if second.body != "no key" || len(second.key) != 0 {
		t.Errorf("second = %+v", second)
	}
	direct(t, nc, "later", "Nats-Msg-Id", "k2")
	recv(t, got)
	recv(t, got) // again
	stop()
	if err := recv(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ConsumeIntake = %v, want canceled", err)
	}
	if len(got) != 0 {
		t.Errorf("%d more were taken", len(got))
	}
}

// TestIntakeWaits: the end of ctx takes nothing more, and waits for what is in
// hand, whose context goes on.
func TestIntakeWaits(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	nc := c.Conn(t)
	s := c.Store(t, func(conf *kv.Config) { conf.Conn = nc })
	ctx, stop := context.WithCancel(t.Context())
	begun, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.ConsumeIntake(ctx, "default", func(ctx context.Context, _ []string, _ []byte, _ time.Time, _ string) time.Duration {
			close(begun)
			<-finish
			if ctx.Err() != nil {
				t.Error("the work's context ended with the consumer's")
			}
			return 0
		})
	}()
	direct(t, nc, "x", "Nats-Msg-Id", "k")
	recv(t, begun)
	stop()
	select {
	case err := <-ended:
		t.Fatalf("ConsumeIntake = %v with work in hand", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	_ = recv(t, ended) // canceled
}

func TestServeRequests(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	s := c.Store(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.ServeRequests(ctx, "default", func(_ context.Context, key []string, body []byte, _ string) (int, map[string]string, []byte) {
			return 202, map[string]string{"Location": "/v1/tasks/x"}, fmt.Appendf(nil, "%v %s", key, body)
		})
	}()
	nc := c.Conn(t)
	for _, row := range []struct{ name, header, want string }{
		{"msg id", "Nats-Msg-Id", "[k] hello"}, {"idempotency key", "Idempotency-Key", "[k] hello"}, {"none", "X", "[] hello"},
	} {
		m := nats.NewMsg(goal.RequestSubject("default"))
		m.Data = []byte("hello")
		m.Header.Set(row.header, "k")
		var r *nats.Msg
		var err error
		for range 100 { // until the subscription is there
			if r, err = nc.RequestMsg(m, 5*time.Second); !errors.Is(err, nats.ErrNoResponders) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil || string(r.Data) != row.want || r.Header.Get("Status") != "202" || r.Header.Get("Location") != "/v1/tasks/x" {
			t.Errorf("%s: %v, %v", row.name, r, err)
		}
	}
	stop()
	if err := recv(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ServeRequests = %v, want canceled", err)
	}
}

func TestDeadLetter(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	nc := c.Conn(t)
	s := c.Store(t, func(conf *kv.Config) { conf.Conn = nc })
	ctx, stop := context.WithCancel(t.Context())
	handled := make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- s.ConsumeIntake(ctx, "default", func(ctx context.Context, key []string, body []byte, _ time.Time, _ string) time.Duration {
			err := s.DeadLetter(ctx, "default", "no key\nat all", key, body)
			handled <- errors.Join(err, s.DeadLetter(ctx, "default", "no key\nat all", key, body))
			return 0
		})
	}()
	direct(t, nc, "lost")
	if err := recv(t, handled); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), goal.DeadStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := st.GetLastMsgForSubject(t.Context(), goal.DeadSubject("default"))
	if err != nil || string(m.Data) != "lost" || m.Header.Get("Goalkeeper-Reason") == "" || st.CachedInfo().State.Msgs != 1 {
		t.Errorf("dead letter = %+v, %v; %d in all", m, err, st.CachedInfo().State.Msgs)
	}
	stop()
	_ = recv(t, ended) // canceled
}

package kvtest

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// Store is a store on a server of its own, replicated over its nodes. change
// may alter its settings.
func Store(t testing.TB, o Options, change ...func(*kv.Config)) *kv.Store {
	t.Helper()
	return Server(t, o).Store(t, change...)
}

// Store opens a store over a new connection. Its log is dropped.
func (c *Cluster) Store(t testing.TB, change ...func(*kv.Config)) *kv.Store {
	t.Helper()
	conf := kv.Config{Conn: c.Conn(t), Replicas: len(c.servers), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, f := range change {
		f(&conf)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := kv.Open(ctx, conf)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	return s
}

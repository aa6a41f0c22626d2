package kvtest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// Store is a store on a server of its own, replicated over its nodes. change
// may alter its settings.
func Store(tb testing.TB, o Options, change ...func(*kv.Config)) *kv.Store {
	tb.Helper()
	return Server(tb, o).Store(tb, change...)
}

// Store opens a store over a new connection. Its log is dropped.
func (c *Cluster) Store(tb testing.TB, change ...func(*kv.Config)) *kv.Store {
	tb.Helper()
	conf := kv.Config{Conn: c.Conn(tb), Replicas: len(c.servers), Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&conf)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := kv.Open(ctx, conf)
	if err != nil {
		tb.Fatalf("open store: %v", err)
	}
	return s
}

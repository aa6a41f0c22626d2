package kv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestMaxRunning: a tenant has no more goals in work than it may, and the next
// one comes when one of them ends.
func TestMaxRunning(t *testing.T) {
	t.Parallel()
	s := kvtest.Store(t, kvtest.Options{})
	for _, key := range []string{"a", "b", "c"} {
		submit(t, s, goal.TaskID(kv.DefaultTenant, key))
	}
	q, err := s.Queue(t.Context(), kv.DefaultTenant, kv.QueueConfig{MaxAckPending: 2})
	must(t, "queue", err, nil)
	first, err := q.Next(t.Context())
	must(t, "first", err, nil)
	_, err = q.Next(t.Context())
	must(t, "second", err, nil)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if d, err := q.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("third = %v, %v; want none", d, err)
	}
	must(t, "ack", first.Ack(), nil)
	_, err = q.Next(t.Context())
	must(t, "third", err, nil)
}

package kv_test

import (
	"errors"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestRecords(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(map[int]string{1: "R1", 3: "R3"}[nodes], func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			s := kvtest.Store(t, kvtest.Options{Nodes: nodes})
			t.Logf("open: %s", time.Since(start))
			ctx := t.Context()
			const stream, subject = "KV_CALLS", "$KV.CALLS.a"
			if _, err := s.Get(ctx, stream, subject); !errors.Is(err, goal.ErrNotFound) {
				t.Fatalf("get of nothing: %v", err)
			}
			rev, err := s.Create(ctx, subject, []byte("1"), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Create(ctx, subject, []byte("2"), 0); !errors.Is(err, goal.ErrExists) {
				t.Fatalf("second create: %v", err)
			}
			rev2, err := s.Update(ctx, subject, []byte("3"), rev, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Update(ctx, subject, []byte("4"), rev, time.Minute); !errors.Is(err, goal.ErrFenced) {
				t.Fatalf("zombie's update: %v", err)
			}
			if err := s.Remove(ctx, subject, rev); !errors.Is(err, goal.ErrFenced) {
				t.Fatalf("zombie's remove: %v", err)
			}
			if err := s.Remove(ctx, subject, rev2); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Create(ctx, subject, []byte("5"), time.Minute); err != nil {
				t.Fatalf("create over a removed key: %v", err)
			}
		})
	}
}

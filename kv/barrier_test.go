package kv_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// groupCommit is a group commit whose sync takes a second and counts. fail is
// what the sync of that number returns.
func groupCommit(t *testing.T, fail map[int64]error) (*kv.GroupCommit, *atomic.Int64) {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var syncs atomic.Int64
	g := kv.StartGroupCommit(dir, func() error {
		n := syncs.Add(1)
		time.Sleep(time.Second)
		return fail[n]
	})
	return g, &syncs
}

// TestGroupCommitShares: who waits before a sync begins is released by it, who
// comes while it runs by the next one, and nobody by an earlier one.
func TestGroupCommitShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, syncs := groupCommit(t, nil)
		start := time.Now()
		wait := func(want time.Duration, sync int64) func() {
			return func() {
				if err := g.Wait(t.Context()); err != nil {
					t.Errorf("Wait: %v", err)
				}
				if took, n := time.Since(start), syncs.Load(); took != want || n < sync {
					t.Errorf("released after %s by sync %d, want %s by %d", took, n, want, sync)
				}
			}
		}
		var wg sync.WaitGroup
		wg.Go(wait(time.Second, 1))
		time.Sleep(time.Millisecond) // the first sync runs
		for range 64 {
			wg.Go(wait(2*time.Second, 2))
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if n := syncs.Load(); n != 2 {
			t.Errorf("%d syncs, want 2", n)
		}
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// TestGroupCommitFails: a failed sync fails those who waited for it and all who
// come later: what the kernel has dropped does not come back.
func TestGroupCommitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("input/output error")
		g, syncs := groupCommit(t, map[int64]error{2: broken})
		if err := g.Wait(t.Context()); err != nil {
			t.Fatalf("first: %v", err)
		}
		for range 3 {
			if err := g.Wait(t.Context()); !errors.Is(err, broken) {
				t.Fatalf("Wait: %v, want %v", err, broken)
			}
		}
		if n := syncs.Load(); n != 2 || !errors.Is(g.Err(), broken) {
			t.Fatalf("%d syncs, Err %v", n, g.Err())
		}
		if err := g.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	})
}

// TestGroupCommitClose: Close serves those who wait, and refuses the rest.
func TestGroupCommitClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := groupCommit(t, nil)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := g.Wait(t.Context()); err != nil {
					t.Errorf("Wait: %v", err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		wg.Wait()
		if err := g.Wait(t.Context()); err == nil {
			t.Error("Wait after Close succeeded")
		}
		if err := g.Err(); err != nil {
			t.Errorf("Err after Close: %v", err)
		}
	})
}

func TestGroupCommitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := groupCommit(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait: %v", err)
		}
		if err := g.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	})
}

// TestGroupCommitDisk syncs a real file system, from many goroutines.
func TestGroupCommitDisk(t *testing.T) {
	t.Parallel()
	g, err := kv.NewGroupCommit(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 5 {
				if err := g.Wait(t.Context()); err != nil {
					t.Errorf("Wait: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.NewGroupCommit(t.TempDir() + "/absent"); err == nil {
		t.Fatal("group commit of a directory that is absent")
	}
}

package kv_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// benchStore is a store with group commit on a server of its own. At the end
// it reports the syncs of the file system per operation.
func benchStore(b *testing.B) *kv.Store {
	b.Helper()
	path := b.TempDir()
	c := kvtest.Server(b, kvtest.Options{Dir: path})
	dir, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	var syncs atomic.Int64
	g := kv.StartGroupCommit(dir, func() error {
		syncs.Add(1)
		return kv.SyncFileSystem(dir.Fd())
	})
	b.Cleanup(func() {
		b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
		if err := g.Close(); err != nil {
			b.Error(err)
		}
	})
	return c.Store(b, func(c *kv.Config) { c.Barrier = g })
}

// parallel runs one benchmark with 1 and with 64 callers at a time.
func parallel(b *testing.B, run func(b *testing.B, s *kv.Store, next func() string)) {
	b.Helper()
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("x%d", callers), func(b *testing.B) {
			s := benchStore(b)
			var n atomic.Int64
			next := func() string { return fmt.Sprintf("bench-%d", n.Add(1)) }
			b.ReportAllocs()
			b.ResetTimer()
			callTimes(b, callers, func() { run(b, s, next) })
		})
	}
}

// callTimes runs f b.N times from so many goroutines.
func callTimes(b *testing.B, callers int, f func()) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	for range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			for left.Add(-1) >= 0 {
				f()
			}
		}()
	}
	for range callers {
		<-done
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

func BenchmarkSubmit(b *testing.B) {
	parallel(b, func(b *testing.B, s *kv.Store, next func() string) {
		b.Helper()
		if _, _, err := s.Submit(b.Context(), submission(next())); err != nil {
			b.Error(err)
		}
	})
}

func BenchmarkSubmitReplay(b *testing.B) {
	parallel(b, func(b *testing.B, s *kv.Store, _ func() string) {
		b.Helper()
		if _, _, err := s.Submit(b.Context(), submission("replayed")); err != nil {
			b.Error(err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("x%d", callers), func(b *testing.B) {
			s := benchStore(b)
			journals := make(chan *kv.Journal, callers)
			for i := range callers {
				j, _ := open(b, s, submit(b, s, fmt.Sprintf("bench-%d", i)))
				journals <- j
			}
			b.ReportAllocs()
			b.ResetTimer()
			callTimes(b, callers, func() {
				j := <-journals
				if err := j.Append(b.Context(), observed()); err != nil {
					b.Error(err)
				}
				journals <- j
			})
		})
	}
}

func BenchmarkSettle(b *testing.B) {
	parallel(b, func(b *testing.B, s *kv.Store, next func() string) {
		b.Helper()
		acc, _, err := s.Submit(b.Context(), submission(next()))
		if err != nil {
			b.Error(err)
			return
		}
		if _, err := s.Settle(b.Context(), acc, succeeded(), 0); err != nil {
			b.Error(err)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("x%d", callers), func(b *testing.B) {
			s := benchStore(b)
			acc := submit(b, s, "loaded")
			j, _ := open(b, s, acc)
			for range 10 {
				if err := j.Append(b.Context(), observed()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			callTimes(b, callers, func() {
				if _, err := s.Load(b.Context(), kv.DefaultTenant, "loaded"); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

package notifier_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// BenchmarkPending measures what 100,000 retries that wait cost the store: the
// heap they take, the processor time of ten idle seconds, and how late they
// come when all fall due within 20 s. Run it with -benchtime 1x.
func BenchmarkPending(b *testing.B) {
	const (
		retries = 100_000
		spread  = 20 * time.Second
		quiet   = 10 * time.Second
	)
	for range b.N {
		s := kvtest.Store(b, kvtest.Options{})
		before := heap()
		began := time.Now()
		due := began.Add(90 * time.Second)
		g, ctx := errgroup.WithContext(b.Context())
		g.SetLimit(64)
		for i := range retries {
			g.Go(func() error {
				return s.ScheduleTurn(ctx, goal.Turn{
					Version: goal.TurnVersion, Tenant: "default", ID: fmt.Sprintf("msg_%d", i), Trigger: goal.TriggerRetry,
					At: due.Add(spread * time.Duration(i) / retries),
				})
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		b.ReportMetric(retries/took.Seconds(), "scheduled/s")
		b.ReportMetric(float64(heap()-before)/retries, "heap-B/retry")
		if time.Until(due) < quiet+time.Second {
			b.Fatalf("scheduling took %s: nothing is idle before they fall due", took)
		}
		cpu := processor()
		time.Sleep(quiet) // what is measured is that nothing happens
		b.ReportMetric(100*(processor()-cpu).Seconds()/quiet.Seconds(), "idle-%cpu")
		late := lateness(b, s.DueTurns().Next, retries)
		b.ReportMetric(late[retries/2].Seconds()*1000, "late-p50-ms")
		b.ReportMetric(late[retries*99/100].Seconds()*1000, "late-p99-ms")
		b.ReportMetric(late[0].Seconds()*1000, "late-min-ms")
	}
}

// lateness takes n turns and returns how late each came, sorted.
func lateness(b *testing.B, next func(context.Context) (goal.Due, error), n int) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	late := make([]time.Duration, 0, n)
	var acks sync.WaitGroup
	slots := make(chan struct{}, 64)
	for len(late) < n {
		d, err := next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				b.Fatalf("%d of %d turns came: %v", len(late), n, err)
			}
			continue
		}
		late = append(late, time.Since(d.At))
		slots <- struct{}{}
		acks.Go(func() {
			defer func() { <-slots }()
			if err := d.Ack(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	acks.Wait()
	cancel()
	if _, err := next(ctx); err == nil { // and so the feed lets go of its consumer
		b.Error("a turn came that was not scheduled")
	}
	slices.Sort(late)
	return late
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// processor is the processor time of this process so far.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

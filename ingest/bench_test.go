package ingest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// benchHandler is the whole way of a submission on one node with group commit,
// but for TCP.
func benchHandler(b *testing.B) http.Handler {
	b.Helper()
	dir := b.TempDir()
	barrier, err := kv.NewGroupCommit(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = barrier.Close() })
	store := kvtest.Store(b, kvtest.Options{Dir: dir}, func(c *kv.Config) { c.Barrier = barrier })
	srv, err := ingest.New(ingest.Config{
		Store: store, Tail: store, Auth: ingest.Anonymous("default"), Tenants: []string{"default"}, Log: quiet(), MaxInFlight: 4096,
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return srv.Handler()
}

func benchPost(b *testing.B, h http.Handler, key string) {
	b.Helper()
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/tasks", strings.NewReader(goodGoal))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if rec.Code != http.StatusAccepted {
		b.Errorf("status %d: %s", rec.Code, rec.Body)
	}
}

// parallel runs f from n goroutines and reports operations per second.
func parallel(b *testing.B, n int, f func(i int64)) {
	b.Helper()
	b.ReportAllocs()
	var at, count atomic.Int64
	begin := time.Now()
	b.SetParallelism(max(1, n/2)) // of GOMAXPROCS
	if n == 1 {
		for b.Loop() {
			f(at.Add(1))
			count.Add(1)
		}
	} else {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				f(at.Add(1))
				count.Add(1)
			}
		})
	}
	b.ReportMetric(float64(count.Load())/time.Since(begin).Seconds(), "ops/s")
}

// BenchmarkSubmit is a new goal each time: parsed, looked up, stored, durable.
func BenchmarkSubmit(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run("parallel="+strconv.Itoa(n), func(b *testing.B) {
			h := benchHandler(b)
			run := strconv.FormatInt(time.Now().UnixNano(), 36) + "-"
			parallel(b, n, func(i int64) { benchPost(b, h, run+strconv.FormatInt(i, 10)) })
		})
	}
}

// BenchmarkReplay is the same key each time.
func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run("parallel="+strconv.Itoa(n), func(b *testing.B) {
			h := benchHandler(b)
			benchPost(b, h, "k")
			parallel(b, n, func(int64) { benchPost(b, h, "k") })
		})
	}
}

// BenchmarkGet reads one queued task.
func BenchmarkGet(b *testing.B) {
	h := benchHandler(b)
	benchPost(b, h, "k")
	path := "/v1/tasks/" + goal.TaskID("default", "k")
	parallel(b, 64, func(int64) {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, path, http.NoBody)
		r.Host = "localhost"
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != http.StatusOK {
			b.Errorf("status %d", rec.Code)
		}
	})
}

// BenchmarkNothing is a handler that does nothing, behind the same router: what
// the measurement itself costs.
func BenchmarkNothing(b *testing.B) {
	mux := chi.NewRouter()
	mux.Post("/v1/tasks", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	for _, n := range []int{1, 64} {
		b.Run("parallel="+strconv.Itoa(n), func(b *testing.B) {
			parallel(b, n, func(int64) { benchPost(b, mux, "k") })
		})
	}
}

// BenchmarkAdmitInMemory is the handler without a store: parsing, headers, the
// answer.
func BenchmarkAdmitInMemory(b *testing.B) {
	w := newWorld(b)
	parallel(b, 1, func(i int64) { benchPost(b, w.h, strconv.FormatInt(i, 10)) })
}

package idempotency

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// BenchmarkCalls measures requests per second over loopback, first calls and
// replays, with every write behind the group commit's sync, beside the handler
// alone and a plain proxy.
func BenchmarkCalls(b *testing.B) {
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":"pay_1","status":"succeeded"}`)
	})
	upstream := httptest.NewServer(backend)
	defer upstream.Close()
	dir := b.TempDir()
	commit, err := kv.NewGroupCommit(dir)
	if err != nil {
		b.Fatal(err)
	}
	store := kvtest.Store(b, kvtest.Options{Dir: dir}, func(c *kv.Config) { c.Barrier = commit })
	calls, err := store.Calls(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	guard, err := New(Config{Store: calls, Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	gateway, err := NewGateway(GatewayConfig{
		Guard: Config{Store: calls, Log: quiet()},
		Routes: []Route{
			{Path: "/", Upstream: upstream.URL},
			{Path: "/open", Upstream: upstream.URL, Unprotected: true},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		guard.Close()
		gateway.Close()
		_ = commit.Close()
	})
	for _, parallel := range []int{1, 64} {
		for _, bench := range []struct {
			name    string
			handler http.Handler
			path    string
			fresh   bool
		}{
			{"handler alone", backend, "/", true},
			{"plain proxy", gateway, "/open", true},
			{"middleware first", guard.Wrap(backend), "/", true},
			{"middleware replay", guard.Wrap(backend), "/", false},
			{"gateway first", gateway, "/", true},
			{"gateway replay", gateway, "/", false},
		} {
			b.Run(fmt.Sprintf("%s/x%d", bench.name, parallel), func(b *testing.B) {
				front := httptest.NewServer(bench.handler)
				defer front.Close()
				benchmarkRequests(b, front.URL+bench.path, parallel, bench.fresh)
			})
		}
	}
}

var benchKeys atomic.Int64

func benchmarkRequests(b *testing.B, url string, parallel int, fresh bool) {
	b.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}}
	defer client.CloseIdleConnections()
	fixed := "replay-" + strconv.FormatInt(benchKeys.Add(1), 10)
	post := func(key string) error {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(`{"amount":12,"to":"acct_1"}`))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(HeaderKey, key)
		res, err := client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		if res.StatusCode != http.StatusCreated {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	}
	if err := post(fixed); err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(max(1, parallel/2)) // times GOMAXPROCS, two here
	if parallel == 1 {
		b.ResetTimer()
		for b.Loop() {
			if err := post(benchKey(fixed, fresh)); err != nil {
				b.Fatal(err)
			}
		}
	} else {
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := post(benchKey(fixed, fresh)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func benchKey(fixed string, fresh bool) string {
	if !fresh {
		return fixed
	}
	return "first-" + strconv.FormatInt(benchKeys.Add(1), 10) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

func BenchmarkFingerprint(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		body := []byte(`{"to":"a@example.com","amount":12.50,"note":"` + strings.Repeat("x", size) + `","list":[1,2,3]}`)
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/pay?x=1", http.NoBody)
		r.Header.Set("Content-Type", "application/json")
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := fingerprint(r, body, defaultBody); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecord(b *testing.B) {
	rec := Record{State: Completed, Fingerprint: newOwner(), Owner: newOwner(), Answer: &Answer{
		Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(strings.Repeat("x", 1000)), Size: 1000,
	}}
	b.ReportAllocs()
	for b.Loop() {
		data, err := rec.encode()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := decodeRecord(data); err != nil {
			b.Fatal(err)
		}
	}
}

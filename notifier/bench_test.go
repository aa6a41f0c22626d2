package notifier_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// arrivals notes when each webhook-id first came.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	want int
	done chan struct{}
}

func newArrivals(want int) *arrivals {
	return &arrivals{at: map[string]time.Time{}, want: want, done: make(chan struct{})}
}

func (a *arrivals) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	now := time.Now()
	_, _ = io.Copy(io.Discard, r.Body)
	rw.WriteHeader(http.StatusNoContent)
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.at[r.Header.Get("Webhook-Id")]; ok {
		return
	}
	a.at[r.Header.Get("Webhook-Id")] = now
	if len(a.at) == a.want {
		close(a.done)
	}
}

func (a *arrivals) await(b *testing.B) {
	b.Helper()
	select {
	case <-a.done:
	case <-time.After(2 * time.Minute):
		a.mu.Lock()
		defer a.mu.Unlock()
		b.Fatalf("%d of %d webhooks arrived", len(a.at), a.want)
	}
}

// BenchmarkDeliver measures deliveries to fast local receivers, from the
// terminal batch in the store to the acknowledged record.
func BenchmarkDeliver(b *testing.B) {
	for _, destinations := range []int{1, 16} {
		b.Run(fmt.Sprintf("destinations=%d", destinations), func(b *testing.B) {
			w := newWorld(b)
			a := newArrivals(b.N)
			urls := make([]string, destinations)
			for i := range urls {
				urls[i] = w.receiver(b, a.ServeHTTP).URL
			}
			body := fmt.Sprintf(`{"type":"goal.target_reached","data":{"x":%q}}`, make([]byte, 200))
			for i := range b.N {
				publishAsync(b, w, fmt.Sprintf("tsk_%d", i), urls[i%destinations], body)
			}
			<-w.js.PublishAsyncComplete()
			b.ResetTimer()
			stop := w.start(b)
			a.await(b)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
			b.StopTimer()
			stop()
		})
	}
}

func publishAsync(b *testing.B, w *world, task, url, body string) {
	b.Helper()
	data, err := goal.Marshal(goal.Batch{Version: goal.BatchVersion, Webhook: &goal.Webhook{
		ID: goal.WebhookID(tenant, task), URL: url, Tenant: tenant, TaskID: task, Body: body,
	}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := w.js.PublishAsync(goal.EndSubject(tenant, task), data, jetstream.WithRetryAttempts(5)); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkIsolation measures the time from the end of a task to its arrival at
// a healthy receiver, while a share of all webhooks goes to a receiver that
// refuses connections, or to one that never answers.
func BenchmarkIsolation(b *testing.B) {
	for _, kind := range []string{"dead", "hanging"} {
		for _, share := range []int{0, 10, 30} {
			if share == 0 && kind != "dead" {
				continue
			}
			b.Run(fmt.Sprintf("%s=%d%%", kind, share), func(b *testing.B) {
				for b.Loop() {
					isolation(b, kind, share)
				}
			})
		}
	}
}

// badReceiver is a URL that refuses connections, or accepts and says nothing.
func badReceiver(b *testing.B, kind string) string {
	b.Helper()
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/"
	if kind == "dead" {
		_ = l.Close()
		return url
	}
	b.Cleanup(func() { _ = l.Close() })
	return url // the kernel accepts, nobody reads
}

func isolation(b *testing.B, kind string, share int) {
	b.Helper()
	const n, perSecond = 3000, 200
	w := newWorld(b)
	healthy := n - n*share/100
	a := newArrivals(healthy)
	good, bad := w.receiver(b, a.ServeHTTP).URL, badReceiver(b, kind)
	stop := w.start(b)
	sent := map[string]time.Time{}
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		task, url := fmt.Sprintf("tsk_%d", i), good
		if i*share/100 != (i+1)*share/100 {
			url = bad
		} else {
			sent[goal.WebhookID(tenant, task)] = time.Now()
		}
		publishAsync(b, w, task, url, `{"type":"goal.failed"}`)
	}
	a.await(b)
	stop()
	took := make([]time.Duration, 0, healthy)
	for id, at := range a.at {
		took = append(took, at.Sub(sent[id]))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

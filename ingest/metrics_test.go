package ingest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// samples are the counters and gauges of a registry, as "name value value".
func samples(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			out[strings.Join(name, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w, _ := running(t, func(c *ingest.Config) { c.Registerer = reg })
		w.post("k", goodGoal)
		w.post("k", goodGoal)
		w.post("k", otherGoal)
		w.call("BREW", "/v1/nothing", "")
		path := "/v1/tasks/" + goal.TaskID("default", "k")
		w.call(http.MethodGet, path, "")

		// A client that does not wait for its answer.
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
		r.Host = "localhost"
		r.Header.Set("Prefer", "wait=30")
		done := make(chan struct{})
		go func() {
			defer close(done)
			recorded(w.h, r)
		}()
		synctest.Wait()
		if got := samples(t, reg)["goalkeeper_watchers"]; got != 1 {
			t.Errorf("watchers = %v, want 1", got)
		}
		leave()
		<-done
		got := samples(t, reg)
		for name, want := range map[string]float64{
			"goalkeeper_submissions_total accepted http":               1,
			"goalkeeper_submissions_total replayed http":               1,
			"goalkeeper_submissions_total idempotency-key-reused http": 1,
			"goalkeeper_http_requests_total POST /v1/tasks 202":        2,
			"goalkeeper_http_requests_total POST /v1/tasks 409":        1,
			"goalkeeper_http_requests_total GET /v1/tasks/{id} 200":    1,
			"goalkeeper_http_requests_total GET /v1/tasks/{id} 499":    1,
			"goalkeeper_http_requests_total other none 404":            1,
			"goalkeeper_watchers":                                      0,
		} {
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
		if _, err := ingest.New(ingest.Config{Store: w.store, Auth: ingest.Anonymous("default"), Registerer: reg}); err == nil {
			t.Error("two servers count in one registry")
		}
	})
}

// TestTooManyInHand: beyond the bound the answer is a 503 at once.
func TestTooManyInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *ingest.Config) { c.MaxInFlight = 1 })
		hold := make(chan struct{})
		w.store.fault = func(context.Context, string) error {
			<-hold
			return nil
		}
		first := make(chan int, 1)
		go func() { first <- w.post("a", goodGoal).Code }()
		synctest.Wait()
		rec := w.post("b", goodGoal)
		wantStatus(t, rec, http.StatusServiceUnavailable)
		wantHeader(t, rec, "Retry-After", "1")
		close(hold)
		if got := <-first; got != http.StatusAccepted {
			t.Errorf("the first is answered %d", got)
		}
	})
}

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for v, want := range map[string]string{
		good: good, "": "", "00": "", good + "0": "", "ff" + good[2:]: "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":   "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":   "",
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":   "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331\r\n0": "",
	} {
		if got := ingest.Traceparent(v); got != want {
			t.Errorf("Traceparent(%q) = %q, want %q", v, got, want)
		}
	}
	w := newWorld(t)
	w.post("k", goodGoal, "Traceparent: "+good)
	if got := w.store.tasks["default/"+goal.TaskID("default", "k")].Submission.Traceparent; got != good {
		t.Errorf("stored %q", got)
	}
}

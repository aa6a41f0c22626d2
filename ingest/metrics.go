package ingest

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// metrics counts what comes in. All labels are from closed lists.
type metrics struct {
	requests    *prometheus.CounterVec
	took        *prometheus.HistogramVec
	submissions *prometheus.CounterVec
	watchers    prometheus.Gauge
	drops       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "goalkeeper_http_requests_total", Help: "HTTP requests by route and status; 499: the client did not wait.",
		}, []string{"route", "method", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "goalkeeper_http_request_seconds", Help: "Time to answer by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
		}, []string{"route"}),
		submissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "goalkeeper_submissions_total", Help: "Submissions by way in and outcome: accepted, replayed, or the problem they were refused with.",
		}, []string{"via", "outcome"}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "goalkeeper_watchers", Help: "Open event streams and waits.",
		}),
		drops: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "goalkeeper_watchers_dropped_total", Help: "Event streams that were ended because their client did not keep up.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.took, m.submissions, m.watchers, m.drops} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("ingest: metrics: %w", err)
		}
	}
	return m, nil
}

// request counts an answered request. The route is the pattern, never the path.
func (m *metrics) request(route, verb string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	m.requests.WithLabelValues(route, method(verb), strconv.Itoa(status)).Inc()
	m.took.WithLabelValues(route).Observe(took.Seconds())
}

// method keeps made-up methods from making series.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return m
	default:
		return "other"
	}
}

func (m *metrics) submission(via string, err error) {
	outcome := "error"
	var p *goal.Problem
	if errors.As(err, &p) && p.Kind() != "" {
		outcome = string(p.Kind())
	} else if err != nil {
		outcome = string(problemOf(err).Kind())
	}
	m.submissions.WithLabelValues(via, outcome).Inc()
}

func (m *metrics) submissionOutcome(via string, out outcome, err error) {
	switch {
	case err != nil:
		m.submission(via, err)
	case out.replayed:
		m.submissions.WithLabelValues(via, "replayed").Inc()
	default:
		m.submissions.WithLabelValues(via, "accepted").Inc()
	}
}

func (m *metrics) watching(n float64) { m.watchers.Add(n) }
func (m *metrics) dropped()           { m.drops.Inc() }

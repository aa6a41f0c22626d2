package notifier

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// metrics of the deliveries. They carry no tenant and no destination as labels:
// both are unbounded.
type metrics struct {
	attempts *prometheus.CounterVec // by result: "delivered" or the error class
	closed   *prometheus.CounterVec // by state
	putOff   *prometheus.CounterVec // by why: busy, breaker, own_fault
	lateness prometheus.Histogram
	took     prometheus.Histogram
	all      []prometheus.Collector
}

func newMetrics(p *destinations) *metrics {
	const ns = "goalkeeper_webhook"
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		attempts: counter("attempts_total", "Webhook attempts by result: delivered, or the class of the failure.", "result"),
		closed:   counter("deliveries_total", "Webhook deliveries that ended, by state.", "state"),
		putOff:   counter("put_off_total", "Deliveries that were put off without an attempt, by reason.", "reason"),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Name: "lateness_seconds", Help: "Time from when an attempt was due to its start.",
			Buckets: []float64{0.005, 0.02, 0.1, 0.5, 1, 5, 30, 120, 600},
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Name: "attempt_seconds", Help: "Duration of an attempt.",
			Buckets: []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20},
		}),
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	m.all = []prometheus.Collector{
		m.attempts, m.closed, m.putOff, m.lateness, m.took,
		gauge("in_flight", "Webhook attempts in flight.", func() int { n, _ := p.counts(); return n }),
		gauge("breakers_open", "Destinations that are not called at the moment.", func() int { _, n := p.counts(); return n }),
	}
	return m
}

// register may be given nil: nothing is exported then.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range m.all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("notifier: register metrics: %w", err)
		}
	}
	return nil
}

func (m *metrics) attempt(a answer, late time.Duration) {
	result := a.class
	if result == "" {
		result = string(goal.DeliveryDelivered)
	}
	m.attempts.WithLabelValues(result).Inc()
	m.took.Observe(a.took.Seconds())
	m.lateness.Observe(max(late, 0).Seconds())
}

package idempotency

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Results by which requests are counted.
const (
	resultMiss        = "miss"         // ran, and its answer is stored
	resultReleased    = "released"     // ran, may be repeated
	resultHeld        = "held"         // ran, outcome unknown
	resultUnrecorded  = "unrecorded"   // ran, its answer could not be stored at once
	resultHit         = "hit"          // stored answer
	resultNotRetained = "not_retained" // 410
	resultConflict    = "conflict"     // 409
	resultMismatch    = "mismatch"     // 422
	resultRefused     = "refused"      // a check failed before the store was asked
	resultUnavailable = "unavailable"  // 503, did not run
)

// metrics counts requests by guard and result, and the handlers that run.
type metrics struct {
	calls   *prometheus.CounterVec
	running *prometheus.GaugeVec
	lost    *prometheus.CounterVec
}

// newMetrics registers the metrics. Guards that share a registerer share them.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "goalkeeper_calls_total", Help: "Protected requests by guard and result.",
		}, []string{"guard", "result"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "goalkeeper_calls_running", Help: "Handlers that run under a lease.",
		}, []string{"guard"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "goalkeeper_calls_leases_lost_total", Help: "Leases that could not be renewed in time.",
		}, []string{"guard"}),
	}
	if reg == nil {
		return m, nil
	}
	var err error
	m.calls = register(reg, m.calls, &err)
	m.running = register(reg, m.running, &err)
	m.lost = register(reg, m.lost, &err)
	return m, err
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C, failed *error) C {
	err := reg.Register(c)
	if twin, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := twin.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		*failed = errors.Join(*failed, fmt.Errorf("register metrics: %w", err))
	}
	return c
}

func (m *metrics) count(guard, result string) { m.calls.WithLabelValues(guard, result).Inc() }

package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// QueueStats is the state of a tenant's queue.
type QueueStats struct {
	Pending  int       `json:"pending"`   // accepted, not yet handed to a worker
	InFlight int       `json:"in_flight"` // with workers, or waiting for a later attempt
	Oldest   time.Time `json:"oldest"`    // acceptance of the oldest pending goal; zero: none
}

// Stats reads a tenant's queue. On three replicas the numbers may be a moment
// behind.
func (s *Store) Stats(ctx context.Context, tenant string) (QueueStats, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	info, err := s.workersInfo(ctx, tenant)
	if err != nil {
		return QueueStats{}, err
	}
	st := QueueStats{Pending: int(info.NumPending), InFlight: info.NumAckPending} //nolint:gosec // far below
	if st.Pending == 0 {
		return st, nil
	}
	next, err := s.read(ctx, func(ctx context.Context) (Record, error) {
		return s.leaderGet(ctx, goal.GoalsStream(tenant), msgRequest{Seq: info.Delivered.Stream + 1, NextFor: ">"})
	})
	if err != nil && !errors.Is(err, goal.ErrNotFound) {
		return QueueStats{}, fmt.Errorf("oldest goal of %s: %w", tenant, err)
	}
	st.Oldest = next.Time
	return st, nil
}

func (s *Store) workersInfo(ctx context.Context, tenant string) (*jetstream.ConsumerInfo, error) {
	consumer, err := s.js.Consumer(ctx, goal.GoalsStream(tenant), workersConsumer)
	if err != nil {
		return nil, fmt.Errorf("queue of %s: %w", tenant, fault(err))
	}
	return consumer.CachedInfo(), nil
}

// gaugeAge is how long the length of a queue is trusted; what this process
// adds in between is counted.
const gaugeAge = 200 * time.Millisecond

// queueGauge is the cached length of one tenant's queue.
type queueGauge struct {
	mu     sync.Mutex
	length int // unfinished goals
	read   time.Time
}

func (s *Store) gauge(tenant string) *queueGauge {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.queueInfo[tenant]
	if g == nil {
		g = &queueGauge{}
		s.queueInfo[tenant] = g
	}
	return g
}

// reserve takes room for one more goal of the tenant, unless it has its maximum
// of unfinished ones. Several processes may pass that by what they accept
// within gaugeAge.
func (s *Store) reserve(ctx context.Context, tenant string) (bool, error) {
	most := s.conf.MaxQueued[tenant]
	if most == 0 {
		return true, nil
	}
	g := s.gauge(tenant)
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.read) > gaugeAge {
		info, err := s.workersInfo(ctx, tenant)
		if err != nil {
			return false, err
		}
		g.length, g.read = int(info.NumPending)+info.NumAckPending, time.Now() //nolint:gosec // far below
	}
	if g.length >= most {
		return false, nil
	}
	g.length++ // until the next reading
	return true, nil
}

// unreserve gives back what reserve took for a goal that was there already.
func (s *Store) unreserve(tenant string) {
	g := s.gauge(tenant)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.length = max(0, g.length-1)
}

package kv

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// A leader that the network cuts off keeps its office until it has heard from no
// majority for 10 s, and answers reads as before. The others choose another from
// 4 s on and accept writes that it does not know of. Compare-and-set notices, a
// read does not: so the word of a leader that there is nothing counts only from
// one that has just heard from a majority.

// leaderTrust is for how long after that contact: less than the 4 s in which
// nobody stands for election who has heard from a leader, and more than the two
// heartbeats, of 1 s each, that may lie between two contacts.
const leaderTrust = 3 * time.Second

var errCutOff = errors.New("the stream's leader has not heard from a majority")

// term is a time in which a stream's leader is known to be the only one, as seen
// over one server.
type term struct {
	server      string
	since, ends time.Time
}

// terms remembers the last known term of each stream.
type terms struct {
	mu sync.Mutex
	of map[string]term // by stream; guarded by mu
}

// cover reports whether a read that began then, and has ended, lies in a known
// term.
func (t *terms) cover(stream, server string, began time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.of[stream]
	return ok && known.server == server && !began.Before(known.since) && time.Now().Before(known.ends)
}

// note remembers a term; one that goes on from the known one prolongs it.
func (t *terms) note(stream string, next term) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]term{}
	}
	if known := t.of[stream]; known.server == next.server && known.ends.After(next.since) {
		next.since = known.since
	}
	t.of[stream] = next
}

// getSure is getFresh, but says goal.ErrNotFound only by the word of a leader
// that is known to be the only one; goal.ErrUnavailable when there is none.
func (s *Store) getSure(ctx context.Context, stream, subject string) (Record, error) {
	for {
		began, server := time.Now(), s.nc.ConnectedServerId()
		r, err := s.getFresh(ctx, stream, subject)
		if !errors.Is(err, goal.ErrNotFound) || s.conf.Replicas == 1 || s.terms.cover(stream, server, began) {
			return r, err
		}
		if err := s.learnTerm(ctx, stream); err != nil {
			return Record{}, err
		}
	}
}

// learnTerm asks the stream's leader whom it has heard from, until that is a
// majority or ctx ends.
func (s *Store) learnTerm(ctx context.Context, stream string) error {
	for attempt := 0; ; attempt++ {
		next, err := s.askTerm(ctx, stream)
		if err == nil {
			s.terms.note(stream, next)
			return nil
		}
		if classify(err) != writeRetry && !errors.Is(err, errCutOff) {
			return fault(err)
		}
		if !pause(ctx, attempt) {
			return unavailable(err)
		}
	}
}

func (s *Store) askTerm(ctx context.Context, stream string) (term, error) {
	ctx, cancel := attemptContext(ctx, attemptTimeout)
	defer cancel()
	next := term{server: s.nc.ConnectedServerId()}
	asked := time.Now()
	info, err := s.js.Stream(ctx, stream)
	if err != nil {
		return term{}, err
	}
	next.since = time.Now()
	contact, ok := majorityContact(info.CachedInfo().Cluster)
	next.ends = asked.Add(leaderTrust - contact)
	if !ok || !next.since.Before(next.ends) {
		return term{}, errCutOff
	}
	return next, nil
}

// majorityContact is how long ago a leader has heard from the last of the
// replicas that make a majority with it.
func majorityContact(c *jetstream.ClusterInfo) (ago time.Duration, ok bool) {
	if c == nil || c.Leader == "" {
		return 0, false
	}
	var heard []time.Duration
	for _, r := range c.Replicas {
		if r.Active > 0 { // 0: not since it became the leader
			heard = append(heard, r.Active)
		}
	}
	need := (len(c.Replicas) + 1) / 2 // with the leader more than half
	if need == 0 {
		return 0, true
	}
	if len(heard) < need {
		return 0, false
	}
	slices.Sort(heard)
	return heard[need-1], true
}

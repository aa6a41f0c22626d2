package idempotency

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// memStore is a Store in memory, with expiry, traces and faults. Its clock may
// be replaced.
type memStore struct {
	now func() time.Time
	// before and after may fail an access: before as if it never arrived, after
	// as if its acknowledgement was lost.
	before, after func(op, key string) error

	mu     sync.Mutex
	seq    uint64
	recs   map[string]memRecord
	writes int
}

type memRecord struct {
	data  []byte
	rev   uint64
	ends  time.Time // zero: never
	trace bool
}

const memTrace = time.Hour

func newMemStore() *memStore {
	return &memStore{now: time.Now, recs: map[string]memRecord{}}
}

// look returns the record as it is now, which may be a trace by now.
func (m *memStore) look(key string) (memRecord, bool) {
	r, ok := m.recs[key]
	if ok && !r.trace && !r.ends.IsZero() && !m.now().Before(r.ends) {
		m.seq++
		r = memRecord{rev: m.seq, ends: r.ends.Add(memTrace), trace: true}
		m.recs[key] = r
	}
	if ok && r.trace && !m.now().Before(r.ends) {
		delete(m.recs, key)
		return memRecord{}, false
	}
	return r, ok
}

func (m *memStore) fault(f func(op, key string) error, op, key string) error {
	if f == nil {
		return nil
	}
	return f(op, key)
}

func (m *memStore) set(key string, data []byte, ttl time.Duration) uint64 {
	m.seq++
	m.writes++
	r := memRecord{data: slices.Clone(data), rev: m.seq}
	if ttl > 0 {
		r.ends = m.now().Add(ttl)
	}
	m.recs[key] = r
	return m.seq
}

func (m *memStore) Create(ctx context.Context, key string, data []byte, ttl time.Duration) (uint64, error) {
	return m.write(ctx, "create", key, data, 0, ttl)
}

func (m *memStore) Update(ctx context.Context, key string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	return m.write(ctx, "update", key, data, rev, ttl)
}

func (m *memStore) write(ctx context.Context, op, key string, data []byte, want uint64, ttl time.Duration) (uint64, error) {
	if err := m.fault(m.before, op, key); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, goal.ErrUnavailable
	}
	m.mu.Lock()
	r, _ := m.look(key)
	if r.rev != want {
		m.mu.Unlock()
		if op == "create" {
			return 0, goal.ErrExists
		}
		return 0, goal.ErrFenced
	}
	rev := m.set(key, data, ttl)
	m.mu.Unlock()
	return rev, m.fault(m.after, op, key)
}

func (m *memStore) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	if err := m.fault(m.before, "get", key); err != nil {
		return nil, 0, err
	}
	if ctx.Err() != nil {
		return nil, 0, goal.ErrUnavailable
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.look(key)
	if !ok || r.trace {
		return nil, r.rev, goal.ErrNotFound
	}
	return slices.Clone(r.data), r.rev, nil
}

func (m *memStore) Each(_ context.Context, fn func(key string, data []byte, rev uint64) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.recs {
		if r, ok := m.look(key); ok && !r.trace && !strings.Contains(key, ".") && !fn(key, r.data, r.rev) {
			return nil
		}
	}
	return nil
}

// record returns the decoded record of the default tenant's key "k", or nil.
func (m *memStore) record() *Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.look(recordID("default", "k"))
	if !ok || r.trace {
		return nil
	}
	rec, err := decodeRecord(r.data)
	if err != nil {
		panic(err)
	}
	return rec
}

package idempotency

import "sync"

// recentSize is how many names a generation of recent holds.
const recentSize = 16 << 10

// recent remembers some of the names that were added last: at least recentSize
// of them, at most twice as many. It is a hint and no more. It may be used
// concurrently.
type recent struct {
	mu         sync.Mutex
	young, old map[string]struct{}
}

func (r *recent) add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.young) >= recentSize {
		r.old, r.young = r.young, nil
	}
	if r.young == nil {
		r.young = map[string]struct{}{}
	}
	r.young[name] = struct{}{}
}

func (r *recent) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.young[name]; ok {
		return true
	}
	_, ok := r.old[name]
	return ok
}

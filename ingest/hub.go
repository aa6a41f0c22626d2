package ingest

import (
	"strconv"
	"sync"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// hub hands what the one tail of this process reads to everybody who watches a
// task. A watcher never delays the tail or another watcher: each has a buffer,
// and one that is full is dropped. Its client comes back with the number of the
// last event it saw and misses nothing.
type hub struct {
	most    int // watchers of one tenant
	metrics *metrics

	mu      sync.Mutex
	byTask  map[taskKey]map[*watcher]struct{}
	tenants map[string]int
}

type taskKey struct{ tenant, task string }

// watcher is one event stream or one wait. frames is closed when it is dropped.
type watcher struct {
	of       taskKey
	wakeOnly bool // wants to know that something happened, not what
	frames   chan []frame
}

// frame is an event as it goes into a stream.
type frame struct {
	n    int // 0 for a note, which has no place in the journal
	last bool
	text []byte
}

func newHub(most int, m *metrics) *hub {
	return &hub{most: most, metrics: m, byTask: map[taskKey]map[*watcher]struct{}{}, tenants: map[string]int{}}
}

func (h *hub) watch(tenant, task string, wakeOnly bool) (*watcher, error) {
	size := watchBuffer
	if wakeOnly {
		size = 1
	}
	w := &watcher{of: taskKey{tenant, task}, wakeOnly: wakeOnly, frames: make(chan []frame, size)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tenants[tenant] >= h.most {
		return nil, retryLater(goal.NewProblem(goal.RateLimited, "The tenant watches too many tasks at a time."), 5)
	}
	h.tenants[tenant]++
	if h.byTask[w.of] == nil {
		h.byTask[w.of] = map[*watcher]struct{}{}
	}
	h.byTask[w.of][w] = struct{}{}
	h.metrics.watching(1)
	return w, nil
}

// forget may be called for a watcher that was dropped.
func (h *hub) forget(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(w)
}

func (h *hub) remove(w *watcher) {
	set := h.byTask[w.of]
	if _, ok := set[w]; !ok {
		return
	}
	delete(set, w)
	if len(set) == 0 {
		delete(h.byTask, w.of)
	}
	if h.tenants[w.of.tenant]--; h.tenants[w.of.tenant] == 0 {
		delete(h.tenants, w.of.tenant)
	}
	h.metrics.watching(-1)
}

// publish hands a task's new events to its watchers.
func (h *hub) publish(tenant, task string, events []goal.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.byTask[taskKey{tenant, task}]
	if len(set) == 0 {
		return
	}
	frames := framesOf(events)
	for w := range set {
		select {
		case w.frames <- frames:
		default:
			if !w.wakeOnly { // one that only wakes has a wake waiting already
				h.remove(w)
				close(w.frames)
				h.metrics.dropped()
			}
		}
	}
}

// wake makes those who wait for the task read it again.
func (h *hub) wake(tenant, task string) { h.publish(tenant, task, nil) }

// framesOf writes events as Server-Sent Events (HTML standard section 9.2).
func framesOf(events []goal.Event) []frame {
	out := make([]frame, 0, len(events))
	for _, e := range events {
		data, err := goal.Marshal(e.Public())
		if err != nil {
			continue // stored bytes that are no JSON: the trace answers with the error
		}
		var b []byte
		if e.N > 0 {
			b = strconv.AppendInt(append(b, "id: "...), int64(e.N), 10)
			b = append(b, '\n')
		}
		b = append(append(append(b, "event: "...), e.Type...), "\ndata: "...)
		b = append(append(b, data...), "\n\n"...)
		out = append(out, frame{n: e.N, last: e.Type == goal.TaskEnded, text: b})
	}
	return out
}

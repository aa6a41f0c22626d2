package ingest

import (
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Bounds of the finished tasks that are remembered.
const (
	finishedAge  = time.Minute // then the store is asked again: an operator may have removed the goal
	finishedSize = 16 << 20    // bytes in all
	finishedOne  = 64 << 10    // bytes of one task
)

// finished remembers tasks that have ended, for replays: a terminal state never
// changes, so a client that repeats its submission need not cost the store
// anything. Which ones are forgotten for want of room is left to chance.
type finished struct {
	mu    sync.Mutex
	tasks map[taskKey]finishedTask
	size  int
}

type finishedTask struct {
	snap  goal.Snapshot // without what goal.Snapshot.Task does not show
	until time.Time
	size  int
}

func (f *finished) get(tenant, task string) (goal.Snapshot, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := taskKey{tenant, task}
	t, ok := f.tasks[key]
	if ok && time.Now().After(t.until) {
		f.drop(key)
		ok = false
	}
	return t.snap, ok
}

// put remembers the task if it has ended and is not too large.
func (f *finished) put(snap goal.Snapshot) {
	if snap.Result == nil {
		return
	}
	t := finishedTask{snap: slim(snap), until: time.Now().Add(finishedAge)}
	if snap.Expires.Before(t.until) {
		t.until = snap.Expires
	}
	body, err := goal.Marshal(t.snap.Task())
	if t.size = len(body); err != nil || t.size > finishedOne {
		return
	}
	key := taskKey{snap.Submission.Tenant, snap.Submission.TaskID}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(key)
	for other := range f.tasks {
		if f.size+t.size <= finishedSize {
			break
		}
		f.drop(other)
	}
	if f.tasks == nil {
		f.tasks = map[taskKey]finishedTask{}
	}
	f.tasks[key] = t
	f.size += t.size
}

func (f *finished) drop(key taskKey) {
	f.size -= f.tasks[key].size
	delete(f.tasks, key)
}

// slim drops what the view of a finished task does not show.
func slim(snap goal.Snapshot) goal.Snapshot {
	var start []goal.Event
	for _, e := range snap.Events {
		if e.Type == goal.TaskStarted {
			e.Observed = nil // the result has the last one
			start = append(start, e)
		}
	}
	snap.Events = start
	snap.Submission.Goal.Context, snap.Submission.Goal.PreConditions = nil, nil
	return snap
}

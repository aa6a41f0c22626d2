package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// benchFill is what a store holds before it is measured.
type benchFill struct {
	Finished int `json:"finished"`
	Queued   int `json:"queued"`

	Restart    float64 `json:"restart_seconds"` // to start a server on it
	Heap       uint64  `json:"heap_bytes"`      // live, of the process with that server
	HeapOfTask float64 `json:"heap_bytes_per_task"`
	Disk       int64   `json:"disk_bytes"`

	empty uint64 // live heap before
}

func (f *benchFill) wanted() bool { return f != nil && f.Finished+f.Queued > 0 }

// fillers is how many tasks are made at a time.
const fillers = 256

// fill makes tasks as the stages do, in the same records, without their work.
func (f *benchFill) fill(ctx context.Context, store *kv.Store, notef func(string, ...any)) error {
	nonce := rand.Text()
	q, err := store.Queue(ctx, kv.DefaultTenant, kv.QueueConfig{})
	if err != nil {
		return err
	}
	var started, done atomic.Int64
	each := func(most int, do func(ctx context.Context, n int64) error) error {
		g, ctx := errgroup.WithContext(ctx)
		first := started.Load()
		for range fillers {
			g.Go(func() error {
				for ctx.Err() == nil {
					n := started.Add(1)
					if n > first+int64(most) {
						return nil
					}
					if err := do(ctx, n); err != nil {
						return fmt.Errorf("fill the store: %w", err)
					}
					if n := done.Add(1); n%50_000 == 0 {
						notef("filled %d of %d", n, f.Finished+f.Queued)
					}
				}
				return context.Cause(ctx)
			})
		}
		return g.Wait()
	}
	submit := func(ctx context.Context, n int64) error {
		key := nonce + "-" + strconv.FormatInt(n, 10)
		_, _, err := store.Submit(ctx, fillerGoal(key))
		return err
	}
	finish := func(ctx context.Context, n int64) error {
		if err := submit(ctx, n); err != nil {
			return err
		}
		d, err := q.Next(ctx) // of this one or of another one
		if err != nil {
			return err
		}
		return finishTask(ctx, store, d)
	}
	if err := each(f.Finished, finish); err != nil {
		return err
	}
	return each(f.Queued, submit)
}

// fillerGoal takes about 600 bytes in the queue.
func fillerGoal(key string) goal.Submission {
	return goal.Submission{
		TaskID: goal.TaskID(kv.DefaultTenant, key), Tenant: kv.DefaultTenant, Key: key, Via: "http",
		Fingerprint: goal.Digest("bench", key),
		Goal: goal.Goal{
			Objective:  goal.Objective{Intent: "Filler " + key, TargetState: json.RawMessage(`{"filler":{"` + key + `":{"status":"done","n":1}}}`)},
			Guardrails: goal.Guardrails{MaxSteps: 5, TimeoutSeconds: 60},
			Context:    json.RawMessage(`{"note":"made by goalkeeper bench; it may be deleted"}`),
		},
	}
}

func finishTask(ctx context.Context, store *kv.Store, d *kv.Delivery) error {
	j := store.BeginJournal(d.Accepted)
	now := time.Now().UTC()
	seen := &goal.Observed{Left: []goal.Difference{}, Leaves: 2, StateHash: d.Submission.Fingerprint}
	if err := j.Append(ctx,
		goal.Event{Type: goal.TaskStarted, Time: now, Worker: "bench", Started: &goal.Started{Attempt: 1, GoalSeq: d.Seq, Deadline: now.Add(time.Minute)}},
		goal.Event{Type: goal.StateObserved, Time: now, Worker: "bench", Observed: seen},
	); err != nil {
		return err
	}
	r := goal.Result{
		Status: goal.Succeeded, Reason: goal.TargetStateReached, Left: []goal.Difference{}, StateHash: seen.StateHash,
		State: d.Submission.Goal.Objective.TargetState, StartedAt: &now, EndedAt: now, Worker: "bench",
	}
	if _, err := j.Settle(ctx, r); err != nil {
		return err
	}
	return d.Ack()
}

// measure looks at the filled store, on which a server has been started.
func (f *benchFill) measure(dir string, restart time.Duration) error {
	f.Heap, f.Restart = liveHeap(), rounded(restart.Seconds())
	if f.Heap > f.empty {
		f.HeapOfTask = rounded(float64(f.Heap-f.empty) / float64(f.Finished+f.Queued))
	}
	return filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			f.Disk += info.Size()
		}
		return err
	})
}

// liveHeap is what is left of the heap after a collection, in bytes.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

package kv_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestMigrate moves a store with work in every state from one server to one and
// to three, and goes on there.
func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("to R%d", nodes), func(t *testing.T) {
			t.Parallel()
			from := kvtest.Server(t, kvtest.Options{})
			to := kvtest.Server(t, kvtest.Options{Nodes: nodes})
			w := fillWorld(t, from)
			moved, err := kv.Migrate(t.Context(), from.Conn(t), to.Conn(t), nodes, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if len(moved) < 10 {
				t.Errorf("streams copied: %v", moved)
			}
			again, err := kv.Migrate(t.Context(), from.Conn(t), to.Conn(t), nodes, slog.New(slog.DiscardHandler))
			if err != nil || len(again) != len(moved) {
				t.Errorf("once more: %v, %v", again, err)
			}
			for _, m := range again {
				if !m.Already {
					t.Errorf("%s was copied twice", m.Stream)
				}
			}
			w.goesOn(t, to.Store(t), nodes)
		})
	}
}

// movedWorld is what was in a store before it moved.
type movedWorld struct {
	done, running, queued goal.Accepted
	rev, deliveryRev      uint64
	delivery              goal.Delivery
	due                   time.Time
	object                string
}

func fillWorld(t *testing.T, c *kvtest.Cluster) movedWorld {
	t.Helper()
	ctx, s := t.Context(), c.Store(t)
	w := movedWorld{done: submit(t, s, taskID(t, "done")), running: submit(t, s, taskID(t, "running")), queued: submit(t, s, taskID(t, "queued"))}
	q, err := s.Queue(ctx, kv.DefaultTenant, kv.QueueConfig{AckWait: 2 * time.Second})
	check(t, err)
	d, err := q.Next(ctx)
	check(t, err)
	j, _ := open(t, s, d.Accepted)
	check(t, j.Append(ctx, started(d.Accepted), observed()))
	_, err = s.Settle(ctx, d.Accepted, succeeded(), 2)
	check(t, err)
	check(t, d.Ack())
	d, err = q.Next(ctx) // stays with a worker that is gone
	check(t, err)
	j, _ = open(t, s, d.Accepted)
	check(t, j.Append(ctx, started(d.Accepted)))
	_, err = s.Lock(ctx, kv.DefaultTenant, w.running.Submission.TaskID, "gone", time.Minute)
	check(t, err)

	w.rev, err = s.Documents().Put(ctx, "shop", "orders", "A1", json.RawMessage(`{"n":1}`), 0)
	check(t, err)
	w.rev, err = s.Documents().Put(ctx, "shop", "orders", "A1", json.RawMessage(`{"n":9007199254740993}`), w.rev)
	check(t, err)
	w.object, err = s.PutObject(ctx, []byte(strings.Repeat("large ", 100_000)))
	check(t, err)
	w.delivery = newDelivery(w.done.Submission.TaskID)
	w.deliveryRev, err = s.CreateDelivery(ctx, w.delivery)
	check(t, err)
	w.due = time.Now().Add(6 * time.Second)
	check(t, s.ScheduleTurn(ctx, turn(w.delivery.Webhook.ID, w.due, "")))
	calls, err := s.Calls(ctx)
	check(t, err)
	_, err = calls.Create(ctx, strings.Repeat("ab", 32), []byte("in progress"), time.Hour)
	check(t, err)
	return w
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w movedWorld) goesOn(t *testing.T, s *kv.Store, nodes int) {
	t.Helper()
	ctx := t.Context()
	// Keys are known, and every task is where it was.
	for _, acc := range []goal.Accepted{w.done, w.running, w.queued} {
		got, created, err := s.Submit(ctx, acc.Submission)
		if err != nil || created || got.Seq != acc.Seq || !got.At.Equal(acc.At) {
			t.Errorf("Submit again = %d at %s, created %v, %v; want %d at %s", got.Seq, got.At, created, err, acc.Seq, acc.At)
		}
	}
	snap, err := s.Load(ctx, kv.DefaultTenant, w.done.Submission.TaskID)
	if err != nil || snap.Result == nil || snap.Result.Status != goal.Succeeded || len(snap.Events) != 3 {
		t.Errorf("Load(done) = %+v, %v", snap, err)
	}
	// The finished goal is not handed out again, the others are.
	q, err := s.Queue(ctx, kv.DefaultTenant, kv.QueueConfig{AckWait: 2 * time.Second})
	check(t, err)
	seen := map[string]bool{}
	for range 2 {
		d, err := q.Next(ctx)
		check(t, err)
		seen[d.Submission.TaskID] = true
		j, events := open(t, s, d.Accepted)
		check(t, j.Append(ctx, observed()))
		if _, err := s.Settle(ctx, d.Accepted, succeeded(), len(events)+1); err != nil {
			t.Errorf("Settle: %v", err)
		}
		check(t, d.Ack())
	}
	if !seen[w.running.Submission.TaskID] || !seen[w.queued.Submission.TaskID] {
		t.Errorf("handed out: %v", seen)
	}
	// Revisions are fences there too.
	if _, err := s.Documents().Put(ctx, "shop", "orders", "A1", json.RawMessage(`{}`), w.rev-1); !errors.Is(err, goal.ErrFenced) {
		t.Errorf("Put at an old revision: %v", err)
	}
	value, rev, err := s.Documents().Get(ctx, "shop", "orders", "A1")
	if err != nil || rev != w.rev || string(value) != `{"n":9007199254740993}` {
		t.Errorf("document = %s at %d, %v; want revision %d", value, rev, err, w.rev)
	}
	if _, err := s.GetObject(ctx, w.object); err != nil {
		t.Errorf("GetObject: %v", err)
	}
	calls, err := s.Calls(ctx)
	check(t, err)
	if _, err := calls.Create(ctx, strings.Repeat("ab", 32), nil, time.Hour); !errors.Is(err, goal.ErrExists) {
		t.Errorf("a call in progress can be begun again: %v", err)
	}
	if _, err := s.UpdateDelivery(ctx, w.delivery, w.deliveryRev); err != nil {
		t.Errorf("UpdateDelivery: %v", err)
	}
	f := s.DueTurns()
	due, ok := next(t, f, 30*time.Second)
	if !ok || due.ID != w.delivery.Webhook.ID || time.Now().Before(w.due) {
		t.Errorf("the scheduled turn on %d nodes: %+v, %v", nodes, due.Turn, ok)
	}
	if ok {
		check(t, due.Ack(ctx))
	}
	next(t, f, 0) // ends the feed
}

// TestMigrateRefuses: a target with contents of its own is left alone.
func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	from, to := kvtest.Server(t, kvtest.Options{}), kvtest.Server(t, kvtest.Options{})
	submit(t, from.Store(t), taskID(t, "here"))
	other := to.Store(t)
	submit(t, other, taskID(t, "there"))
	submit(t, other, taskID(t, "there too"))
	_, err := kv.Migrate(t.Context(), from.Conn(t), to.Conn(t), 1, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "other contents") {
		t.Fatalf("Migrate = %v", err)
	}
	js, err := jetstream.New(to.Conn(t))
	check(t, err)
	queue, err := js.Stream(t.Context(), goal.GoalsStream(kv.DefaultTenant))
	if err != nil || queue.CachedInfo().State.Msgs != 2 {
		t.Errorf("the target's queue: %+v, %v", queue, err)
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		a, b string
		want bool
	}{
		"same":        {"2.15.3", "2.15.0", false},
		"later minor": {"2.16.0", "2.15.3", false},
		"later major": {"3.0.0", "2.15.3", false},
		"earlier":     {"2.9.30", "2.15.0", true},
		"preview":     {"2.15.0-RC.1", "2.15.3", false},
		"unreadable":  {"", "2.15.3", true},
	} {
		if got := kv.Older(test.a, test.b); got != test.want {
			t.Errorf("%s: Older(%q, %q) = %v", name, test.a, test.b, got)
		}
	}
}

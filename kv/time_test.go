package kv_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// The tests in this file run in bubbles, one after the other: see package kvtest.

// TestLockTTL: a renewed lock still ends, after its last renewal, and no
// earlier.
func TestLockTTL(t *testing.T) {
	for _, memory := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := kvtest.Store(t, kvtest.Options{}, func(c *kv.Config) { c.LocksInMemory = memory })
			ctx := t.Context()
			const ttl = 10 * time.Second
			l, err := s.Lock(ctx, kv.DefaultTenant, "a", "one", ttl-time.Millisecond)
			must(t, "lock", err, nil)
			for range 5 {
				time.Sleep(ttl - 2*time.Second)
				must(t, "renew", l.Renew(ctx), nil)
			}
			time.Sleep(ttl - time.Second)
			_, err = s.Lock(ctx, kv.DefaultTenant, "a", "two", ttl)
			if held, ok := errors.AsType[*goal.LockedError](err); !ok || held.Left > time.Second {
				t.Fatalf("lock before the end: %v", err)
			}
			time.Sleep(2 * time.Second)
			_, err = s.Lock(ctx, kv.DefaultTenant, "a", "two", ttl)
			must(t, "lock after the end", err, nil)
			must(t, "renewal after the end", l.Renew(ctx), goal.ErrFenced)
			must(t, "release after the end", l.Release(ctx), goal.ErrFenced)
		})
	}
}

// TestAckWait: a silent worker's goal is handed to another after AckWait; a
// heartbeat keeps it.
func TestAckWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kvtest.Store(t, kvtest.Options{})
		ctx := t.Context()
		submit(t, s, "a")
		q, err := s.Queue(ctx, kv.DefaultTenant, kv.QueueConfig{})
		must(t, "queue", err, nil)
		d, err := q.Next(ctx)
		must(t, "next", err, nil)
		for range 4 {
			time.Sleep(10 * time.Second)
			must(t, "heartbeat", d.InProgress(), nil)
		}
		beat := time.Now()
		again, err := q.Next(ctx)
		must(t, "next", err, nil)
		if silence := time.Since(beat); silence < 15*time.Second || silence > 16*time.Second || again.Delivered != 2 {
			t.Fatalf("delivered %d times, after %s of silence", again.Delivered, silence)
		}
		must(t, "nak", again.Nak(time.Minute), nil)
		handed := time.Now()
		again, err = q.Next(ctx)
		must(t, "next", err, nil)
		if delay := time.Since(handed); delay < time.Minute || delay > 61*time.Second {
			t.Fatalf("delivered after %s", delay)
		}
		must(t, "ack", again.Ack(), nil)
		ended, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err = q.Next(ended)
		must(t, "next", err, context.DeadlineExceeded)
	})
}

// TestRetention: after the retention the key is a new goal, and nothing of the
// earlier one is taken for its own, although results, journal and cancel mark
// outlive their goal by a margin.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kvtest.Store(t, kvtest.Options{}, func(c *kv.Config) { c.Retention = 10 * time.Minute })
		ctx := t.Context()
		old := submit(t, s, "a")
		j, _ := open(t, s, old)
		must(t, "append", j.Append(ctx, started(old), observed()), nil)
		must(t, "cancel", s.RequestCancel(ctx, old), nil)
		must(t, "note", s.Note(ctx, old, goal.Event{Type: goal.KeyConflict, Time: time.Now()}), nil)
		time.Sleep(9 * time.Minute)
		_, err := s.Settle(ctx, old, failed(), 2)
		must(t, "settle", err, nil)

		time.Sleep(time.Until(old.Expires) - time.Second)
		snap, err := s.Load(ctx, kv.DefaultTenant, "a")
		must(t, "load at the end", err, nil)
		if snap.Task().Status != goal.Failed || len(snap.Events) != 4 {
			t.Fatalf("before the end: %s with %d events", snap.Task().Status, len(snap.Events))
		}
		time.Sleep(2 * time.Second)
		_, err = s.Load(ctx, kv.DefaultTenant, "a")
		must(t, "load after the end", err, goal.ErrNotFound)

		acc := submit(t, s, "a")
		snap, err = s.Load(ctx, kv.DefaultTenant, "a")
		must(t, "load of the new goal", err, nil)
		if snap.Task().Status != goal.Queued || len(snap.Events) != 0 || snap.CancelAsked || snap.Result != nil {
			t.Fatalf("the new goal is %+v", snap)
		}
		heir, events := open(t, s, acc)
		numbers(t, events, 0)
		must(t, "append of the new", heir.Append(ctx, started(acc)), nil)
		must(t, "append of the old", j.Append(ctx, observed()), goal.ErrFenced)
		_, _, _, err = s.OpenJournal(ctx, old)
		must(t, "journal of the old", err, goal.ErrFenced)
		must(t, "cancel of the old", s.RequestCancel(ctx, old), nil) // its mark is there
		must(t, "cancel of the new", s.RequestCancel(ctx, acc), nil)
		must(t, "late cancel of the old", s.RequestCancel(ctx, old), goal.ErrFenced)
		if over, err := s.Over(ctx, acc); err != nil || !over {
			t.Fatalf("over: %v, %v", over, err)
		}

		time.Sleep(3 * time.Minute) // the old records go
		must(t, "append after the old have gone", heir.Append(ctx, observed()), nil)
		won, err := s.Settle(ctx, acc, succeeded(), 2)
		if err != nil || won.Status != goal.Succeeded || won.GoalSeq != acc.Seq {
			t.Fatalf("settle: %+v, %v", won, err)
		}
		_, err = s.Settle(ctx, old, failed(), 4)
		must(t, "settle of the old", err, goal.ErrFenced)
	})
}

// TestRetentionAtOnce: the new goal ends while everything of the old is there.
func TestRetentionAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kvtest.Store(t, kvtest.Options{}, func(c *kv.Config) { c.Retention = 10 * time.Minute })
		ctx := t.Context()
		old := submit(t, s, "a")
		_, err := s.Settle(ctx, old, failed(), 0)
		must(t, "settle", err, nil)
		time.Sleep(10*time.Minute + time.Second)
		acc := submit(t, s, "a")
		heir, _ := open(t, s, acc)
		must(t, "append", heir.Append(ctx, started(acc)), nil)
		won, err := s.Settle(ctx, acc, succeeded(), 1)
		if err != nil || won.Status != goal.Succeeded {
			t.Fatalf("settle: %+v, %v", won, err)
		}
		snap, err := s.Load(ctx, kv.DefaultTenant, "a")
		must(t, "load", err, nil)
		numbers(t, snap.Events, 2)
		if snap.Task().Status != goal.Succeeded {
			t.Fatalf("status %s", snap.Task().Status)
		}
	})
}

// TestFenceOverExpiry: what was last when the journal was opened expires before
// the first append. Nobody has appended, so it is no fence.
func TestFenceOverExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kvtest.Store(t, kvtest.Options{}, func(c *kv.Config) { c.Retention = 10 * time.Minute })
		old := submit(t, s, "a")
		j, _ := open(t, s, old)
		must(t, "append", j.Append(t.Context(), started(old)), nil)
		time.Sleep(10*time.Minute + time.Second)
		heir, _ := open(t, s, submit(t, s, "a"))
		time.Sleep(3 * time.Minute)
		must(t, "append", heir.Append(t.Context(), observed()), nil)
	})
}

// TestRetentionRaised: a goal that was accepted under a shorter retention keeps
// it, or it would outlive its result and look queued again.
func TestRetentionRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kvtest.Server(t, kvtest.Options{})
		s := c.Store(t, func(c *kv.Config) { c.Retention = 10 * time.Minute })
		old := submit(t, s, "a")
		_, err := s.Settle(t.Context(), old, failed(), 0)
		must(t, "settle", err, nil)
		s = c.Store(t, func(c *kv.Config) { c.Retention = time.Hour })
		snap, err := s.Load(t.Context(), kv.DefaultTenant, "a")
		must(t, "load", err, nil)
		if !snap.Expires.Equal(old.Expires) || snap.Task().Status != goal.Failed {
			t.Fatalf("%s until %s, want %s", snap.Task().Status, snap.Expires, old.Expires)
		}
		time.Sleep(time.Until(old.Expires) + time.Second)
		_, err = s.Load(t.Context(), kv.DefaultTenant, "a")
		must(t, "load after the end", err, goal.ErrNotFound)
		if acc := submit(t, s, "a"); acc.Expires.Sub(acc.At) != time.Hour {
			t.Fatalf("the new goal is kept for %s", acc.Expires.Sub(acc.At))
		}
	})
}

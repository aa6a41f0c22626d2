package kv_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestLostResult takes the results away, as a damaged disk does: a task that
// has ended stays so, and settling it again stores its result again.
func TestLostResult(t *testing.T) {
	t.Parallel()
	srv := kvtest.Server(t, kvtest.Options{})
	s, ctx := srv.Store(t), t.Context()
	acc := submit(t, s, "a")
	j, _ := open(t, s, acc)
	must(t, "append", j.Append(ctx, started(acc), observed()), nil)
	won, err := s.Settle(ctx, acc, succeeded(), j.N())
	must(t, "settle", err, nil)
	js, err := jetstream.New(srv.Conn(t))
	must(t, "connect", err, nil)
	results, err := js.Stream(ctx, "KV_"+goal.ResultsBucket)
	must(t, "results", err, nil)
	must(t, "purge", results.Purge(ctx), nil)

	snap, err := s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load", err, nil)
	if task := snap.Task(); task.Status != won.Status || task.Reason != won.Reason || task.EndedAt == nil || !task.EndedAt.Equal(won.EndedAt) {
		t.Fatalf("loaded %s %s %v, want %s %s %v", task.Status, task.Reason, task.EndedAt, won.Status, won.Reason, won.EndedAt)
	}
	j, _, lost, err := s.OpenJournal(ctx, acc)
	if err != nil || lost == nil || lost.Status != won.Status {
		t.Fatalf("opened: %+v, %v", lost, err)
	}
	_, err = j.Settle(ctx, *lost)
	must(t, "settle again", err, nil)
	if info, err := results.Info(ctx); err != nil || info.State.Msgs != 1 {
		t.Fatalf("stored again: %+v, %v", info, err)
	}
	if snap, err = s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID); err != nil || snap.Result == nil || snap.Result.Status != won.Status {
		t.Fatalf("loaded again: %+v, %v", snap.Result, err)
	}
	if got := ends(t, s, acc.Submission.TaskID); len(got) != 1 {
		t.Fatalf("%d terminal batches", len(got))
	}
}

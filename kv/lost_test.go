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
	_, events := open(t, s, acc)
	lost, ok := goal.ResultOf(acc, events)
	if !ok {
		t.Fatal("the journal has no end")
	}
	_, err = s.Settle(ctx, acc, lost, len(events))
	must(t, "settle again", err, nil)
	again, err := s.Result(ctx, acc)
	if err != nil || again == nil || again.Status != won.Status {
		t.Fatalf("stored again: %+v, %v", again, err)
	}
	if got := ends(t, s, acc.Submission.TaskID); len(got) != 1 {
		t.Fatalf("%d terminal batches", len(got))
	}
}

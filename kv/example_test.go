package kv_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// A goal from its submission to its end, on an embedded server with group
// commit.
func Example() {
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := wholeGoal(context.Background(), dir); err != nil {
		fmt.Println(err)
	}
	// Output:
	// created: true
	// created: false
	// succeeded TARGET_STATE_REACHED, 2 events
}

func wholeGoal(ctx context.Context, dir string) error {
	srv, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	srv.Start()
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		return err
	}
	defer nc.Close()
	barrier, err := kv.NewGroupCommit(dir)
	if err != nil {
		return err
	}
	defer func() { _ = barrier.Close() }()

	store, err := kv.Open(ctx, kv.Config{Conn: nc, Barrier: barrier})
	if err != nil {
		return err
	}
	sub := goal.Submission{TaskID: "tsk_1", Tenant: kv.DefaultTenant, Key: "k1", Goal: goal.Goal{
		Objective: goal.Objective{Intent: "Refund the order", TargetState: json.RawMessage(`{"refunded":true}`)},
	}}
	var acc goal.Accepted
	for range 2 {
		var created bool
		if acc, created, err = store.Submit(ctx, sub); err != nil {
			return err
		}
		fmt.Println("created:", created)
	}
	journal, _, _, err := store.OpenJournal(ctx, acc)
	if err != nil {
		return err
	}
	if err := journal.Append(ctx, goal.Event{Type: goal.TaskStarted, Time: acc.At, Started: &goal.Started{Attempt: 1}}); err != nil {
		return err
	}
	result := goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached, EndedAt: acc.At}
	if _, err := store.Settle(ctx, acc, result, journal.N()); err != nil {
		return err
	}
	snap, err := store.Load(ctx, kv.DefaultTenant, "tsk_1")
	if err != nil {
		return err
	}
	fmt.Printf("%s %s, %d events\n", snap.Result.Status, snap.Result.Reason, len(snap.Events))
	return nil
}

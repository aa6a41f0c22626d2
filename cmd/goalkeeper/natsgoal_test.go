package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// publishGoal submits a goal over NATS, as a tenant's program would.
func publishGoal(t *testing.T, nc *nats.Conn, tenant, key string, g any, traceparent string) *jetstream.PubAck {
	t.Helper()
	body, err := goal.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg(goal.SubmitSubject(tenant))
	m.Data = body
	m.Header.Set(nats.MsgIdHdr, key)
	if traceparent != "" {
		m.Header.Set("traceparent", traceparent)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ack, err := js.PublishMsg(ctx, m)
	if err != nil {
		t.Fatalf("publish for %s: %v", tenant, err)
	}
	return ack
}

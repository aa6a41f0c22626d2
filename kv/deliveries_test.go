package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

const hookTenant = "acme"

func hookStore(t *testing.T, c *kvtest.Cluster) *kv.Store {
	t.Helper()
	return c.Store(t, func(c *kv.Config) { c.Tenants = []string{hookTenant} })
}

func newDelivery(task string) goal.Delivery {
	now := time.Now().UTC()
	return goal.Delivery{
		Version: goal.DeliveryVersion, State: goal.DeliveryPending, Created: now, Next: now, Attempts: []goal.Attempt{},
		Webhook: goal.Webhook{ID: goal.WebhookID(hookTenant, task), URL: "https://example.com/?secret", Tenant: hookTenant, TaskID: task, Body: "{\"s\":\"<é\u2028>\"}"},
	}
}

func turn(id string, at time.Time, request string) goal.Turn {
	t := goal.Turn{Version: goal.TurnVersion, Tenant: hookTenant, ID: id, At: at, Trigger: goal.TriggerRetry, Request: request}
	if request != "" {
		t.Trigger = goal.TriggerManual
	}
	return t
}

// next takes one turn, or none when there is none within d.
func next(t *testing.T, f *kv.TurnFeed, d time.Duration) (goal.Due, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	due, err := f.Next(ctx)
	if err != nil && ctx.Err() == nil {
		t.Fatalf("Next: %v", err)
	}
	return due, err == nil
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			c := kvtest.Server(t, kvtest.Options{Nodes: nodes})
			s := hookStore(t, c)
			t.Run("records", func(t *testing.T) { testDeliveryRecords(t, c, s) })
			t.Run("turns", func(t *testing.T) { testTurns(t, s) }) // before dead, which fills the one feed
			t.Run("dead", func(t *testing.T) { testDeadDeliveries(t, s) })
		})
	}
}

func testDeliveryRecords(t *testing.T, c *kvtest.Cluster, s *kv.Store) {
	t.Helper()
	ctx := t.Context()
	d := newDelivery("tsk_records")
	if list, err := s.Deliveries(ctx, hookTenant, "tsk_records"); err != nil || len(list) != 0 {
		t.Errorf("Deliveries of an unknown task = %v, %v, want none", list, err)
	}
	if _, _, err := s.Delivery(ctx, hookTenant, d.Webhook.ID); !errors.Is(err, goal.ErrNotFound) {
		t.Errorf("Delivery = %v, want ErrNotFound", err)
	}
	rev, err := s.CreateDelivery(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateDelivery(ctx, d); !errors.Is(err, goal.ErrExists) {
		t.Errorf("second CreateDelivery = %v, want ErrExists", err)
	}
	for i := range 5 {
		d.Record(goal.Attempt{At: time.Now(), Trigger: goal.TriggerRetry, Status: 500 + i, Error: "http_5xx"})
		if rev, err = s.UpdateDelivery(ctx, d, rev); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.UpdateDelivery(ctx, d, rev-1); !errors.Is(err, goal.ErrFenced) {
		t.Errorf("UpdateDelivery of an old revision = %v, want ErrFenced", err)
	}
	got, gotRev, err := s.Delivery(ctx, hookTenant, d.Webhook.ID)
	if err != nil || gotRev != rev || got.Webhook != d.Webhook || len(got.Attempts) != 5 || got.Attempts[4].Status != 504 || got.Attempts[4].N != 5 {
		t.Errorf("Delivery = %+v, %d, %v, want %+v, %d", got, gotRev, err, d, rev)
	}
	list, err := s.Deliveries(ctx, hookTenant, "tsk_records")
	if err != nil || len(list) != 1 || list[0].View().URL != "https://example.com/" {
		t.Errorf("Deliveries = %+v, %v, want the one, shown without its query", list, err)
	}
	for _, id := range []string{"", "a.b", "*", ">", "a b"} {
		if _, _, err := s.Delivery(ctx, hookTenant, id); !errors.Is(err, goal.ErrNotFound) {
			t.Errorf("Delivery of id %q = %v, want ErrNotFound", id, err)
		}
	}
	if _, _, err := s.Delivery(ctx, "other", d.Webhook.ID); !errors.Is(err, goal.ErrNotFound) {
		t.Errorf("Delivery of another tenant = %v, want ErrNotFound", err)
	}
	// The body is not kept once per attempt.
	js, err := jetstream.New(c.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, goal.DeliveriesStream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("deliveries.record."+hookTenant+".*"))
	if err != nil {
		t.Fatal(err)
	}
	for subject, n := range info.State.Subjects {
		if n != 1 {
			t.Errorf("%d messages on %s, want 1", n, subject)
		}
	}
}

// bury makes a dead delivery.
func bury(t *testing.T, s *kv.Store, task string, state goal.DeliveryState) goal.Delivery {
	t.Helper()
	d := newDelivery(task)
	d.Webhook.Tenant, d.Webhook.ID = "morgue", goal.WebhookID("morgue", task)
	rev, err := s.CreateDelivery(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	d.State, d.Closed = state, time.Now().UTC()
	if _, err := s.UpdateDelivery(t.Context(), d, rev); err != nil {
		t.Fatal(err)
	}
	return d
}

func testDeadDeliveries(t *testing.T, s *kv.Store) {
	t.Helper()
	ctx := t.Context()
	const n = 300 // more than a page
	want := map[string]bool{}
	for i := range n {
		d := bury(t, s, fmt.Sprintf("tsk_%d", i), []goal.DeliveryState{goal.DeliveryExhausted, goal.DeliveryGone, goal.DeliveryRefused}[i%3])
		want[d.Webhook.ID] = true
	}
	since := time.Now().UTC()
	last := bury(t, s, "tsk_last", goal.DeliveryExhausted)
	want[last.Webhook.ID] = true

	revived, rev, err := s.Delivery(ctx, "morgue", goal.WebhookID("morgue", "tsk_0"))
	if err != nil {
		t.Fatal(err)
	}
	revived.State = goal.DeliveryDelivered
	revived.Record(goal.Attempt{Status: 200, Trigger: goal.TriggerManual, Request: "r1"})
	if _, err := s.UpdateDelivery(ctx, revived, rev); err != nil {
		t.Fatal(err)
	}
	delete(want, revived.Webhook.ID)

	pages := 0
	for after := uint64(0); ; pages++ {
		page, next, err := s.DeadDeliveries(ctx, "morgue", after)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page {
			if !want[d.Webhook.ID] {
				t.Errorf("listed: %s (%s), which is not dead or was listed before", d.Webhook.TaskID, d.State)
			}
			delete(want, d.Webhook.ID)
		}
		if after = next; next == 0 {
			break
		}
	}
	if len(want) != 0 || pages != 1 {
		t.Errorf("%d dead deliveries are not listed, %d more pages", len(want), pages)
	}

	if again, err := s.RedeliverSince(ctx, "morgue", since); err != nil || again != 1 {
		t.Errorf("RedeliverSince = %d, %v, want 1", again, err)
	}
	if again, err := s.RedeliverSince(ctx, "morgue", time.Time{}); err != nil || again != n {
		t.Errorf("RedeliverSince the beginning = %d, %v, want %d", again, err, n)
	}
	if list, _, err := s.DeadDeliveries(ctx, "nobody", 0); err != nil || len(list) != 0 {
		t.Errorf("DeadDeliveries of another tenant = %v, %v, want none", list, err)
	}
}

func testTurns(t *testing.T, s *kv.Store) {
	t.Helper()
	ctx := t.Context()
	f := s.DueTurns()
	// Turns of one kind replace one another; of two kinds they do not.
	start := time.Now()
	for _, tt := range []goal.Turn{
		turn("msg_1", start.Add(500*time.Millisecond), ""),
		turn("msg_1", start.Add(1500*time.Millisecond), ""),
		turn("msg_1", start.Add(700*time.Millisecond), "r1"),
		turn("msg_now", start.Add(-time.Hour), ""),
	} {
		if err := s.ScheduleTurn(ctx, tt); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for range 3 {
		due, ok := next(t, f, 10*time.Second)
		if !ok {
			t.Fatalf("only %v came", got)
		}
		if early := time.Until(due.At); early > 0 {
			t.Errorf("%s came %s early", due.ID, early)
		}
		got = append(got, due.ID+due.Request)
		if err := due.Ack(ctx); err != nil {
			t.Errorf("Ack: %v", err)
		}
		if err := due.Ack(ctx); err != nil {
			t.Errorf("second Ack: %v", err)
		}
	}
	if fmt.Sprint(got) != "[msg_now msg_1r1 msg_1]" {
		t.Errorf("came: %v", got)
	}
	if time.Since(start) < 1500*time.Millisecond {
		t.Error("the replaced schedule fired")
	}
	if due, ok := next(t, f, 300*time.Millisecond); ok {
		t.Errorf("came once more: %+v", due.Turn)
	}
}

// A turn that nobody acknowledges comes again after its time, one that is
// extended does not, one that is released comes at once. What a feed fetched
// beyond what it handed out is given back when it ends.
func TestTurnFeed(t *testing.T) {
	// Not parallel: servers in bubbles run one after the other, see package kvtest.
	synctest.Test(t, func(t *testing.T) {
		s := hookStore(t, kvtest.Server(t, kvtest.Options{}))
		for _, id := range []string{"msg_1", "msg_2", "msg_3"} {
			if err := s.ScheduleTurn(t.Context(), turn(id, time.Now(), "")); err != nil {
				t.Fatal(err)
			}
		}
		first := s.DueTurns()
		due, ok := next(t, first, time.Second)
		if !ok || due.ID != "msg_1" {
			t.Fatalf("came: %+v, %v", due.Turn, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := first.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next with a context that ended = %v", err)
		}
		second := s.DueTurns()
		start := time.Now()
		want := map[string]bool{"msg_2": true, "msg_3": true}
		for len(want) > 0 {
			d, ok := next(t, second, time.Minute)
			if !ok || !want[d.ID] || time.Since(start) > time.Second {
				t.Fatalf("given back: %+v, %v after %s, want one of %v at once", d.Turn, ok, time.Since(start), want)
			}
			delete(want, d.ID)
			if err := d.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := due.Extend(); err != nil {
			t.Fatal(err)
		}
		if _, ok := next(t, second, 15*time.Second); ok {
			t.Error("an extended turn came again")
		}
		due, ok = next(t, second, 10*time.Second)
		if !ok || due.ID != "msg_1" {
			t.Fatalf("a turn that was not acknowledged did not come again: %+v", due.Turn)
		}
		start = time.Now()
		if err := due.Release(); err != nil {
			t.Fatal(err)
		}
		if due, ok = next(t, second, 10*time.Second); !ok || time.Since(start) > time.Second {
			t.Fatalf("a released turn came after %s", time.Since(start))
		}
		if err := due.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, _ = next(t, second, time.Second)
	})
}

// Tasks without a webhook ask for nothing, what nobody can read is taken out,
// and what a newer version wrote waits for it.
func TestEndedTasks(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	s := hookStore(t, c)
	js, err := jetstream.New(c.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	d := newDelivery("tsk_hook")
	for task, batch := range map[string]any{
		"tsk_none": goal.Batch{Version: goal.BatchVersion}, "tsk_bad": "no batch", "tsk_newer": goal.Batch{Version: 99, Webhook: &d.Webhook},
		"tsk_hook": goal.Batch{Version: goal.BatchVersion, Webhook: &d.Webhook},
	} {
		data, err := goal.Marshal(batch)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), goal.EndSubject(hookTenant, task), data); err != nil {
			t.Fatal(err)
		}
	}
	f := s.EndedTasks()
	due, ok := next(t, f, 10*time.Second)
	if !ok || due.Webhook == nil || *due.Webhook != d.Webhook || due.ID != d.Webhook.ID {
		t.Fatalf("came: %+v", due)
	}
	if err := due.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if due, ok := next(t, f, 300*time.Millisecond); ok {
		t.Errorf("came, too: %+v", due.Turn)
	}
	consumer, err := js.Consumer(t.Context(), goal.EventsStream, "notifier")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := consumer.Info(t.Context()); err != nil || info.NumAckPending != 1 {
		t.Errorf("%d pending (%v), want the newer version's", info.NumAckPending, err)
	}
}

// A schedule outlives its server.
func TestScheduleSurvivesRestart(t *testing.T) {
	t.Parallel()
	c := kvtest.Server(t, kvtest.Options{})
	at := time.Now().Add(2 * time.Second)
	if err := hookStore(t, c).ScheduleTurn(t.Context(), turn("msg_1", at, "")); err != nil {
		t.Fatal(err)
	}
	c.Restart(t, 0)
	f := hookStore(t, c).DueTurns()
	due, ok := next(t, f, 15*time.Second)
	if !ok || due.ID != "msg_1" || time.Now().Before(at) {
		t.Fatalf("came: %+v, %v, %s early", due.Turn, ok, time.Until(at))
	}
	_, _ = next(t, f, 10*time.Millisecond)
}

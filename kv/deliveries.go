package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The stream DELIVERIES holds, for each webhook of each tenant,
//
//	deliveries.record.<tenant>.<id>         the delivery, one message
//	deliveries.dead.<tenant>.<id>           a mark, while it ended without being taken
//	deliveries.at.<tenant>.<id>.<kind>      the schedule of its next turn
//	deliveries.due.<tenant>.<id>.<kind>     the turn that fell due
//
// where kind is "auto" or "request". Records and schedules replace what their
// subject held; turns that fell due are only read through a consumer, and go
// with their TTL.
const deliveriesPrefix = "deliveries."

const (
	notifierConsumer = "notifier"
	// deliveryKept is the least time that a delivery is kept after its last
	// change. It is longer than the longest wait between two attempts, and than
	// a notifier may be down.
	deliveryKept = 14 * 24 * time.Hour
	// turnWait is the silence after which a turn is given to another; the
	// notifier extends every 6 s.
	turnWait    = 20 * time.Second
	turnBuffer  = 128
	turnPending = 10_000
	// redeliverEvery spaces deliveries that are sent again together.
	redeliverEvery = 20 * time.Millisecond
)

// Headers of message schedules (NATS ADR-51).
const (
	scheduleHeader       = "Nats-Schedule"
	scheduleTargetHeader = "Nats-Schedule-Target"
	scheduleTTLHeader    = "Nats-Schedule-TTL"
)

func recordSubject(tenant, id string) string { return deliveriesPrefix + "record." + tenant + "." + id }

func deadSubject(tenant, id string) string { return deliveriesPrefix + "dead." + tenant + "." + id }

// turnSubject is where a turn lies: which is "at" or "due".
func turnSubject(which string, t goal.Turn) string {
	kind := "auto"
	if t.Request != "" {
		kind = "request"
	}
	return deliveriesPrefix + which + "." + t.Tenant + "." + t.ID + "." + kind
}

// checkID refuses what cannot be one token of a subject.
func checkID(tenant, id string) error {
	if !goal.ValidTenant(tenant) || !goal.ValidTenant(id) {
		return fmt.Errorf("delivery of %q: %w", tenant, goal.ErrNotFound)
	}
	return nil
}

// replaces makes a message the only one of its subject.
func replaces() nats.Header { return nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}} }

func (s *Store) deliveryTTL() time.Duration { return max(s.conf.Retention+outlive, deliveryKept) }

// CreateDelivery stores the first state of a delivery, or returns
// goal.ErrExists. It may be repeated.
func (s *Store) CreateDelivery(ctx context.Context, d goal.Delivery) (uint64, error) {
	if err := checkID(d.Webhook.Tenant, d.Webhook.ID); err != nil {
		return 0, err
	}
	data, err := goal.Marshal(d)
	if err != nil {
		return 0, err
	}
	return s.create(ctx, recordSubject(d.Webhook.Tenant, d.Webhook.ID), data, s.deliveryTTL())
}

// UpdateDelivery replaces revision rev of a delivery, or returns
// goal.ErrFenced. A delivery that ended without being taken is listed as dead
// before, and taken off the list after it was sent again with success: a crash
// in between leaves a mark too many, which the list looks through.
func (s *Store) UpdateDelivery(ctx context.Context, d goal.Delivery, rev uint64) (uint64, error) {
	if err := checkID(d.Webhook.Tenant, d.Webhook.ID); err != nil {
		return 0, err
	}
	data, err := goal.Marshal(d)
	if err != nil {
		return 0, err
	}
	if d.State.Dead() && !d.Test {
		if err := s.markDead(ctx, d); err != nil {
			return 0, err
		}
	}
	w := write{subject: recordSubject(d.Webhook.Tenant, d.Webhook.ID), data: data, ttl: s.deliveryTTL(), header: replaces()}
	seq, err := s.updateRecord(ctx, w, rev)
	if err != nil {
		return 0, err
	}
	if revived(d) {
		err = s.unmarkDead(ctx, d)
	} else {
		err = s.durable(ctx)
	}
	return seq, err
}

// revived reports whether a delivery may just have come back from the dead.
func revived(d goal.Delivery) bool {
	n := len(d.Attempts)
	return d.State == goal.DeliveryDelivered && n > 0 && d.Attempts[n-1].Request != ""
}

func (s *Store) markDead(ctx context.Context, d goal.Delivery) error {
	w := write{subject: deadSubject(d.Webhook.Tenant, d.Webhook.ID), data: []byte(d.State), ttl: s.deliveryTTL(), header: replaces()}
	_, _, err := s.putRecord(ctx, w)
	return err
}

func (s *Store) unmarkDead(ctx context.Context, d goal.Delivery) error {
	h := replaces()
	h.Set(operationHeader, "DEL")
	_, _, err := s.putRecord(ctx, write{subject: deadSubject(d.Webhook.Tenant, d.Webhook.ID), ttl: time.Second, header: h})
	return err
}

// Delivery is a delivery with its revision, by the word of the stream's leader,
// or goal.ErrNotFound.
func (s *Store) Delivery(ctx context.Context, tenant, id string) (goal.Delivery, uint64, error) {
	if err := checkID(tenant, id); err != nil {
		return goal.Delivery{}, 0, err
	}
	r, err := s.getFresh(ctx, goal.DeliveriesStream, recordSubject(tenant, id))
	if err != nil {
		return goal.Delivery{}, 0, err
	}
	d, err := decodeDelivery(r)
	return d, r.Seq, err
}

func decodeDelivery(r Record) (goal.Delivery, error) {
	var d goal.Delivery
	if err := goal.Unmarshal(r.Data, &d); err != nil {
		return d, fmt.Errorf("decode %s: %w", r.Subject, err)
	}
	if d.Version != goal.DeliveryVersion {
		return d, fmt.Errorf("decode %s: %w: %d", r.Subject, errVersion, d.Version)
	}
	return d, nil
}

// Deliveries lists the deliveries of a task: none before the notifier has taken
// it up, and none for a task without a webhook.
func (s *Store) Deliveries(ctx context.Context, tenant, task string) ([]goal.Delivery, error) {
	d, _, err := s.Delivery(ctx, tenant, goal.WebhookID(tenant, task))
	switch {
	case errors.Is(err, goal.ErrNotFound):
		return []goal.Delivery{}, nil
	case err != nil:
		return nil, err
	}
	return []goal.Delivery{d}, nil
}

// DeadDeliveries lists a tenant's deliveries that ended without being taken,
// in the order in which they did, up to one page of at most 256. after is 0,
// then the next that was returned; next is 0 at the end.
func (s *Store) DeadDeliveries(ctx context.Context, tenant string, after uint64) (page []goal.Delivery, next uint64, err error) {
	if err := checkTenant(tenant); err != nil {
		return nil, 0, err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	marks, more, err := s.readPart(ctx, goal.DeliveriesStream, deadSubject(tenant, "*"), after+1)
	if err != nil {
		return nil, 0, fmt.Errorf("list dead deliveries of %s: %w", tenant, err)
	}
	page = []goal.Delivery{}
	for _, m := range marks {
		if more {
			next = m.Seq
		}
		if m.removed() {
			continue
		}
		d, _, err := s.Delivery(ctx, tenant, m.Subject[len(deadSubject(tenant, "")):])
		if errors.Is(err, goal.ErrNotFound) || err == nil && !d.State.Dead() {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		page = append(page, d)
	}
	return page, next, nil
}

// Redeliver asks for one more attempt of a delivery, in whatever state it is:
// same webhook-id, same bytes, new timestamp and signature. goal.ErrNotFound
// when there is no such delivery.
func (s *Store) Redeliver(ctx context.Context, tenant, id string) error {
	if _, _, err := s.Delivery(ctx, tenant, id); err != nil {
		return err
	}
	return s.again(ctx, tenant, id, goal.TriggerManual, time.Now())
}

// RedeliverSince asks for one more attempt of every delivery of the tenant that
// ended at or after since without being taken, and returns how many. They
// are spread: 50 a second.
func (s *Store) RedeliverSince(ctx context.Context, tenant string, since time.Time) (int, error) {
	n, start := 0, time.Now()
	for after := uint64(0); ; {
		page, next, err := s.DeadDeliveries(ctx, tenant, after)
		if err != nil {
			return n, err
		}
		for _, d := range page {
			if d.Closed.Before(since) {
				continue
			}
			at := start.Add(time.Duration(n) * redeliverEvery)
			if err := s.again(ctx, tenant, d.Webhook.ID, goal.TriggerBulk, at); err != nil {
				return n, err
			}
			n++
		}
		if next == 0 {
			return n, nil
		}
		after = next
	}
}

func (s *Store) again(ctx context.Context, tenant, id string, why goal.Trigger, at time.Time) error {
	return s.ScheduleTurn(ctx, goal.Turn{
		Version: goal.TurnVersion, Tenant: tenant, ID: id, At: at.UTC(), Trigger: why, Request: newNonce(),
	})
}

// SendTest sends a webhook.test event to url once, without retries, and returns
// its webhook-id, under which its delivery can be read. The caller has checked
// the URL.
func (s *Store) SendTest(ctx context.Context, tenant, url string) (id string, err error) {
	now := time.Now().UTC()
	body, err := goal.Marshal(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      struct{}  `json:"data"`
	}{Type: goal.HookTest, Timestamp: now})
	if err != nil {
		return "", err
	}
	id = "msg_test_" + newNonce()
	d := goal.Delivery{
		Version: goal.DeliveryVersion, State: goal.DeliveryPending, Created: now, Next: now, Test: true, Attempts: []goal.Attempt{},
		Webhook: goal.Webhook{ID: id, URL: url, Tenant: tenant, Body: string(body)},
	}
	if _, err := s.CreateDelivery(ctx, d); err != nil {
		return "", err
	}
	return id, s.ScheduleTurn(ctx, goal.Turn{Version: goal.TurnVersion, Tenant: tenant, ID: id, At: now, Trigger: goal.TriggerTest})
}

// ScheduleTurn makes a turn fall due at t.At, never before. It replaces the
// schedule of the delivery's turn of the same kind. It may be repeated.
func (s *Store) ScheduleTurn(ctx context.Context, t goal.Turn) error {
	if err := checkID(t.Tenant, t.ID); err != nil {
		return err
	}
	data, err := goal.Marshal(t)
	if err != nil {
		return err
	}
	due := turnSubject("due", t)
	w := write{subject: due, data: data, ttl: s.deliveryTTL()}
	if t.At.After(time.Now()) {
		w.subject, w.ttl = turnSubject("at", t), 0
		w.header = nats.Header{
			// The server's own format has whole seconds: it would fire early.
			scheduleHeader:       {"@at " + t.At.UTC().Format(time.RFC3339Nano)},
			scheduleTargetHeader: {due},
			scheduleTTLHeader:    {s.deliveryTTL().Round(time.Second).String()},
		}
	}
	_, _, err = s.putRecord(ctx, w)
	return err
}

// TurnFeed hands out turns from a durable consumer that all notifiers share.
// Next is for one caller at a time.
//
// It fetches batch after batch. The client's endless iterator is not used: on a
// busy machine it can miss the moment to ask for more (it skips asking while an
// earlier request is still being sent), and then stands still for 30 s.
type TurnFeed struct {
	s        *Store
	stream   string
	filter   string
	open     func(jetstream.Msg) (goal.Due, bool, error)
	consumer jetstream.Consumer // nil: to be opened
	batch    jetstream.MessageBatch
	cancel   func() // ends the batch
}

// EndedTasks hands out the webhook of every task that ended.
func (s *Store) EndedTasks() *TurnFeed {
	return &TurnFeed{s: s, stream: goal.EventsStream, filter: goal.EndFilter, open: openEnded}
}

// DueTurns hands out the turns that fell due.
func (s *Store) DueTurns() *TurnFeed {
	return &TurnFeed{s: s, stream: goal.DeliveriesStream, filter: deliveriesPrefix + "due.>", open: openTurn}
}

// Next waits for a turn. When ctx ends it gives back what was fetched beyond
// and returns the context's cause. Any other error is wrapped
// goal.ErrUnavailable: call again after a pause.
func (f *TurnFeed) Next(ctx context.Context) (goal.Due, error) {
	for {
		m, err := f.next(ctx)
		if err != nil {
			f.close()
			if ctx.Err() != nil {
				return goal.Due{}, context.Cause(ctx)
			}
			return goal.Due{}, fmt.Errorf("next turn: %w", unavailable(err))
		}
		due, wanted, err := f.open(m)
		switch {
		case err != nil:
			f.unreadable(ctx, m, err)
		case !wanted:
			_ = m.Ack() // comes again if that is lost
		default:
			return due, nil
		}
	}
}

func (f *TurnFeed) next(ctx context.Context) (jetstream.Msg, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if f.batch == nil {
			if err := f.fetch(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case m, ok := <-f.batch.Messages():
			if ok {
				return m, nil
			}
		}
		err := f.batch.Error()
		f.cancel()
		f.batch = nil
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return nil, err
		}
	}
}

// fetch asks for the next batch. The batch outlives the call, not the feed.
func (f *TurnFeed) fetch(ctx context.Context) error {
	if f.consumer == nil {
		if err := f.start(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pullWait)
	batch, err := f.consumer.Fetch(turnBuffer, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(pullHeartbeat))
	if err != nil {
		cancel()
		return err
	}
	f.batch, f.cancel = batch, cancel
	return nil
}

func (f *TurnFeed) start(ctx context.Context) error {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	c, err := f.s.js.CreateOrUpdateConsumer(ctx, f.stream, jetstream.ConsumerConfig{
		Durable: notifierConsumer, Description: "hands webhooks to notifiers", FilterSubject: f.filter,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, AckWait: turnWait,
		MaxDeliver: -1, MaxAckPending: turnPending,
	})
	f.consumer = c
	return err
}

// Closing a feed waits for closeIdle without a turn, and gives turns back with
// a delay, so that they do not come back to the very batch that is being closed.
const (
	closeIdle  = 50 * time.Millisecond
	closeDelay = 200 * time.Millisecond
)

// close gives the fetched turns back. What is missed comes again after
// turnWait. The consumer is opened anew by the next call: it may have gone.
func (f *TurnFeed) close() {
	f.consumer = nil
	if f.batch == nil {
		return
	}
	for {
		select {
		case m, ok := <-f.batch.Messages():
			if ok {
				_ = m.NakWithDelay(closeDelay)
				continue
			}
		case <-time.After(closeIdle):
		}
		break
	}
	f.cancel()
	for m := range f.batch.Messages() {
		_ = m.Nak()
	}
	f.batch = nil
}

// unreadable takes out what nobody can read; a newer version waits for a newer
// notifier.
func (f *TurnFeed) unreadable(ctx context.Context, m jetstream.Msg, err error) {
	f.s.log.ErrorContext(ctx, "unreadable webhook turn", "subject", m.Subject(), "err", err)
	if errors.Is(err, errVersion) {
		err = m.NakWithDelay(time.Minute)
	} else {
		err = m.TermWithReason("unreadable")
	}
	if err != nil {
		f.s.log.WarnContext(ctx, "webhook turn not taken out", "subject", m.Subject(), "err", err)
	}
}

// openEnded makes a turn of a terminal batch; one without a webhook asks for
// nothing.
func openEnded(m jetstream.Msg) (due goal.Due, wanted bool, err error) {
	var b goal.Batch
	if err := goal.Unmarshal(m.Data(), &b); err != nil {
		return due, false, fmt.Errorf("decode terminal batch: %w", err)
	}
	if b.Version != goal.BatchVersion {
		return due, false, fmt.Errorf("%w: %d", errVersion, b.Version)
	}
	if b.Webhook == nil {
		return due, false, nil
	}
	meta, err := m.Metadata()
	if err != nil {
		return due, false, fmt.Errorf("metadata: %w", err)
	}
	due = held(m)
	due.Turn = goal.Turn{
		Version: goal.TurnVersion, Tenant: b.Webhook.Tenant, ID: b.Webhook.ID, At: meta.Timestamp, Trigger: goal.TriggerEvent,
	}
	due.Webhook = b.Webhook
	return due, true, nil
}

// openTurn decodes a turn that fell due.
func openTurn(m jetstream.Msg) (due goal.Due, wanted bool, err error) {
	due = held(m)
	if err := goal.Unmarshal(m.Data(), &due.Turn); err != nil {
		return due, false, fmt.Errorf("decode turn: %w", err)
	}
	if due.Version != goal.TurnVersion {
		return due, false, fmt.Errorf("%w: %d", errVersion, due.Version)
	}
	return due, true, nil
}

// held is a turn in the hands of a notifier.
func held(m jetstream.Msg) goal.Due {
	return goal.Due{
		Ack: func(ctx context.Context) error {
			if err := confirmAck(ctx, m); err != nil {
				return fmt.Errorf("ack turn: %w", err)
			}
			return nil
		},
		Extend: m.InProgress,
		Release: func() error {
			if err := m.Nak(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return fmt.Errorf("release turn: %w", fault(err))
			}
			return nil
		},
	}
}

// confirmAck acknowledges until the server has confirmed it, for 5 s at most
// whatever the deadline is, since giving up costs no more than a lost ack.
func confirmAck(ctx context.Context, m jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		err := func() error {
			ctx, cancel := attemptContext(ctx, attemptTimeout)
			defer cancel()
			return m.DoubleAck(ctx)
		}()
		if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return fault(err)
		}
	}
}

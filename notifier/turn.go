package notifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// turn does what a turn asks for: nothing if it is out of date, one attempt, or
// a later turn. When it returns nil the turn may be acknowledged: whatever has
// to follow is durable. ctx ends the waiting, work the attempt.
func (n *Notifier) turn(ctx, work context.Context, due goal.Due) error {
	d, rev, err := n.record(work, due)
	if errors.Is(err, goal.ErrNotFound) {
		return nil // its retention ended
	}
	if err != nil {
		return err
	}
	if over, err := n.outdated(work, d, due); over || err != nil {
		return err
	}
	target, err := n.guard.Target(d.Webhook.URL)
	if err != nil {
		return n.conclude(work, d, rev, due, n.attemptOf(d, due, time.Now()), answer{class: ClassRefused, err: err})
	}
	g, err := n.destinations.acquire(ctx, d.Webhook.Tenant+" "+target.origin(), n.urgency(due))
	switch {
	case err != nil:
		return err
	case g.slot == nil:
		return n.putOff(work, d, rev, due, g.at, g.why)
	}
	return n.attempt(work, d, rev, due, target, g.slot)
}

// urgency says whether the turn may wait for its slot.
func (n *Notifier) urgency(due goal.Due) urgency {
	switch {
	case due.Trigger == goal.TriggerManual || due.Trigger == goal.TriggerTest:
		return forced
	case len(n.held) >= crowded:
		return noWait
	}
	return mayWait
}

// record reads the delivery, or creates it when the turn is a task's end.
func (n *Notifier) record(ctx context.Context, due goal.Due) (goal.Delivery, uint64, error) {
	if due.Webhook == nil {
		return n.conf.Records.Delivery(ctx, due.Tenant, due.ID)
	}
	now := time.Now().UTC()
	d := goal.Delivery{
		Version: goal.DeliveryVersion, Webhook: *due.Webhook,
		State: goal.DeliveryPending, Created: now, Next: now, Attempts: []goal.Attempt{},
	}
	rev, err := n.conf.Records.CreateDelivery(ctx, d)
	if !errors.Is(err, goal.ErrExists) {
		return d, rev, err
	}
	have, rev, err := n.conf.Records.Delivery(ctx, due.Tenant, due.ID)
	if err != nil || have.Webhook == d.Webhook {
		return have, rev, err
	}
	// Other bytes: the key was used again after its goal's retention. Same task
	// id, another task; what was left of the first one's delivery is over, as its
	// terminal batch is.
	rev, err = n.conf.Records.UpdateDelivery(ctx, d, rev)
	return d, rev, err
}

// outdated reports whether the turn asks for nothing any more: it was done
// before, but its acknowledgement, or what should have followed, was lost.
func (n *Notifier) outdated(ctx context.Context, d goal.Delivery, due goal.Due) (bool, error) {
	if due.Request != "" {
		return d.Served(due.Request), nil
	}
	if d.State != goal.DeliveryPending {
		return true, nil
	}
	if !time.Now().Before(d.Next) {
		return false, nil
	}
	return true, n.schedule(ctx, d)
}

// schedule lets the next automatic turn of a pending delivery fall due.
func (n *Notifier) schedule(ctx context.Context, d goal.Delivery) error {
	return n.conf.Timetable.ScheduleTurn(ctx, goal.Turn{
		Version: goal.TurnVersion, Tenant: d.Webhook.Tenant, ID: d.Webhook.ID, At: d.Next, Trigger: goal.TriggerRetry,
	})
}

// putOff lets the turn come again without an attempt. What can never be tried
// ends with its lifetime: listed as dead it can be sent again, while its record
// would go silently one day.
func (n *Notifier) putOff(ctx context.Context, d goal.Delivery, rev uint64, due goal.Due, at time.Time, why string) error {
	now := time.Now().UTC()
	if due.Request == "" && now.After(d.Created.Add(lifetime)) {
		d.State, d.Next, d.Closed = goal.DeliveryExhausted, time.Time{}, now
		if _, err := n.conf.Records.UpdateDelivery(ctx, d, rev); err != nil {
			return fmt.Errorf("end delivery: %w", err)
		}
		n.metrics.closed.WithLabelValues(string(d.State)).Inc()
		return nil
	}
	n.metrics.putOff.WithLabelValues(why).Inc()
	if why == whyBusy {
		at = later(at, now.Add(busyAgain(due.Deferred)))
	}
	t := due.Turn
	t.Version, t.At, t.Deferred = goal.TurnVersion, at.UTC(), t.Deferred+1
	if err := n.conf.Timetable.ScheduleTurn(ctx, t); err != nil {
		return fmt.Errorf("put off: %w", err)
	}
	return nil
}

// attemptOf starts the log entry of an attempt.
func (n *Notifier) attemptOf(d goal.Delivery, due goal.Due, now time.Time) goal.Attempt {
	a := goal.Attempt{At: now.UTC(), Trigger: due.Trigger, Request: due.Request, N: d.Total + 1}
	if due.Request == "" {
		switch {
		case d.Test:
			a.Trigger = goal.TriggerTest
		case d.Spent == 0:
			a.Trigger = goal.TriggerEvent
		default:
			a.Trigger = goal.TriggerRetry
		}
	}
	return a
}

// attempt sends the webhook once, gives the slot back, and records the outcome.
func (n *Notifier) attempt(ctx context.Context, d goal.Delivery, rev uint64, due goal.Due, target Target, s *slot) error {
	log := n.attemptOf(d, due, time.Now())
	header, err := n.headers(ctx, d, log.At, log.N, log.Trigger)
	if err != nil {
		s.release(outcome{})
		n.log.ErrorContext(ctx, "webhook cannot be signed", "tenant", due.Tenant, "webhook_id", due.ID, "error", err)
		return n.putOff(ctx, d, rev, due, time.Now().Add(ownFaultWait(due.Deferred)), ClassOwn)
	}
	span, traceparent, end := n.conf.Trace(ctx, d.Webhook, log.N)
	if traceparent != "" {
		header.Set("Traceparent", traceparent)
	}
	a := n.post(span, target, header, []byte(d.Webhook.Body))
	end(a.status, a.class)
	o := outcome{outage: a.suspicious(), spoke: a.status != 0, took: a.took}
	wait := parseRetryAfter(a.retryAfter, time.Now())
	if a.status == 429 || a.status == 503 {
		o.hold = wait
	}
	s.release(o)
	switch {
	case a.class == ClassOwn && ctx.Err() != nil:
		return context.Cause(ctx)
	case a.class == ClassOwn:
		n.log.WarnContext(ctx, "webhook not attempted for a fault on this side", "tenant", due.Tenant, "webhook_id", due.ID, "error", a.err)
		return n.putOff(ctx, d, rev, due, time.Now().Add(ownFaultWait(due.Deferred)), ClassOwn)
	}
	return n.conclude(ctx, d, rev, due, log, a)
}

// conclude records the attempt and what follows from it: first the record, then
// the next turn. A crash between the two is repaired by outdated. Another
// writer of the record (a turn by request beside an automatic one) is merged.
func (n *Notifier) conclude(ctx context.Context, d goal.Delivery, rev uint64, due goal.Due, log goal.Attempt, a answer) error {
	// What was sent is recorded also when Run is being stopped.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	n.metrics.attempt(a, log.At.Sub(due.At))
	log.Status, log.Error, log.Took, log.Answer = a.status, a.class, goal.Millis(a.took), a.body
	for {
		was := d.State
		settle(&d, log, parseRetryAfter(a.retryAfter, time.Now()), time.Now().UTC())
		_, err := n.conf.Records.UpdateDelivery(ctx, d, rev)
		if errors.Is(err, goal.ErrFenced) {
			d, rev, err = n.conf.Records.Delivery(ctx, due.Tenant, due.ID)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("record attempt: %w", err)
		}
		n.report(ctx, d, was, a)
		if d.State == goal.DeliveryPending {
			return n.schedule(ctx, d)
		}
		return nil
	}
}

// report logs and counts what an attempt led to. The log is the operator's: it
// may name what the tenant must not see, but no query string.
func (n *Notifier) report(ctx context.Context, d goal.Delivery, was goal.DeliveryState, a answer) {
	if d.State != was {
		n.metrics.closed.WithLabelValues(string(d.State)).Inc()
	}
	if a.class == "" {
		return
	}
	attrs := []any{
		"tenant", d.Webhook.Tenant, "webhook_id", d.Webhook.ID, "url", goal.RedactURL(d.Webhook.URL),
		"state", d.State, "class", a.class, "status", a.status,
	}
	if a.err != nil {
		attrs = append(attrs, "error", a.err)
	}
	n.log.InfoContext(ctx, "webhook attempt failed", attrs...)
}

// settle is the state machine: it adds an attempt to the delivery and decides
// what follows. retryAfter is what the receiver asked for.
func settle(d *goal.Delivery, a goal.Attempt, retryAfter time.Duration, now time.Time) {
	d.Record(a)
	automatic := a.Request == ""
	if automatic {
		d.Spent++
	}
	switch {
	case a.Error == "":
		end(d, goal.DeliveryDelivered, now)
	case d.State == goal.DeliveryDelivered:
		// Sent again by request and not taken this time: it was taken before.
	case a.Error == ClassGone:
		end(d, goal.DeliveryGone, now)
	case !automatic:
		// One attempt was asked for: the schedule, or the end, stands.
	case a.Error == ClassRefused:
		end(d, goal.DeliveryRefused, now)
	case d.State == goal.DeliveryPending:
		wait, ok := nextWait(d.Spent, retryAfter)
		if !ok || d.Test || now.Add(wait).After(d.Created.Add(lifetime)) {
			end(d, goal.DeliveryExhausted, now)
			return
		}
		d.Next = now.Add(wait)
	}
}

func end(d *goal.Delivery, s goal.DeliveryState, now time.Time) {
	d.State, d.Next, d.Closed = s, time.Time{}, now
}

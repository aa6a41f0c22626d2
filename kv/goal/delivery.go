package goal

import (
	"context"
	"time"
)

// DeliveryState is the state of one webhook delivery.
//
//	pending ──> delivered | gone | refused | exhausted
//	gone, refused, exhausted ──> delivered   (sent again by request, and taken)
//
// A delivery that is sent again by request and fails keeps its state.
type DeliveryState string

// The states of a delivery.
const (
	DeliveryPending   DeliveryState = "pending"   // attempts are left; Next says when
	DeliveryDelivered DeliveryState = "delivered" // answered 2xx
	DeliveryGone      DeliveryState = "gone"      // answered 410: the receiver wants no more
	DeliveryRefused   DeliveryState = "refused"   // the URL or its address may not be called
	DeliveryExhausted DeliveryState = "exhausted" // every attempt of the schedule failed
)

// DeliveryStates lists every state.
func DeliveryStates() []DeliveryState {
	return []DeliveryState{DeliveryPending, DeliveryDelivered, DeliveryGone, DeliveryRefused, DeliveryExhausted}
}

// Dead reports whether the delivery ended without being taken.
func (s DeliveryState) Dead() bool {
	return s == DeliveryGone || s == DeliveryRefused || s == DeliveryExhausted
}

// Trigger says why an attempt was made.
type Trigger string

// The triggers.
const (
	TriggerEvent  Trigger = "event"  // the task ended
	TriggerRetry  Trigger = "retry"  // the schedule
	TriggerManual Trigger = "manual" // sent again by request
	TriggerBulk   Trigger = "bulk"   // sent again with all that failed since a time
	TriggerTest   Trigger = "test"   // a webhook.test event
)

// Triggers lists every trigger.
func Triggers() []Trigger {
	return []Trigger{TriggerEvent, TriggerRetry, TriggerManual, TriggerBulk, TriggerTest}
}

// Attempt is one request that was sent, or refused, for a delivery. It names no
// address and no query string, so that it can be shown to the tenant.
type Attempt struct {
	N       int       `json:"n"`                // from 1, over all triggers
	At      time.Time `json:"at"`               // start; also the webhook-timestamp
	Trigger Trigger   `json:"trigger"`          //
	Status  int       `json:"status,omitempty"` // HTTP status, where there was an answer
	Error   string    `json:"error,omitempty"`  // error class; empty for success
	Took    Millis    `json:"duration_ms"`
	Answer  string    `json:"answer,omitempty"` // first MaxAnswer bytes of the answer's body, as text
	// Request is the id of the request to send again that this attempt served.
	Request string `json:"request,omitempty"`
}

// Limits of a delivery's record.
const (
	MaxAnswer       = 1 << 10 // bytes of an answer that an attempt keeps
	MaxAttemptsKept = 40      // attempts that a record keeps; the oldest go first
)

// Delivery is the record of one webhook: what is sent, and what came of it. The
// bytes of Webhook never change.
type Delivery struct {
	Version  int           `json:"v"` // DeliveryVersion
	Webhook  Webhook       `json:"webhook"`
	State    DeliveryState `json:"state"`
	Created  time.Time     `json:"created"`
	Next     time.Time     `json:"next,omitzero"`   // while pending: no attempt before it
	Closed   time.Time     `json:"closed,omitzero"` // when it was last not pending any more
	Spent    int           `json:"spent"`           // attempts of the schedule that were made
	Total    int           `json:"total"`           // attempts made, over all triggers
	Test     bool          `json:"test,omitempty"`  // a test event: one attempt, no retries
	Attempts []Attempt     `json:"attempts"`        // the last MaxAttemptsKept, oldest first
}

// DeliveryVersion is the version of the stored delivery record.
const DeliveryVersion = 1

// Record adds an attempt to the log.
func (d *Delivery) Record(a Attempt) {
	d.Total++
	a.N = d.Total
	d.Attempts = append(d.Attempts, a)
	if n := len(d.Attempts) - MaxAttemptsKept; n > 0 {
		d.Attempts = append([]Attempt(nil), d.Attempts[n:]...)
	}
}

// Served reports whether an attempt for the request to send again is recorded.
func (d *Delivery) Served(request string) bool {
	for _, a := range d.Attempts {
		if a.Request == request {
			return true
		}
	}
	return false
}

// DeliveryView is a delivery as clients see it.
type DeliveryView struct {
	ID       string        `json:"webhook_id"`
	TaskID   string        `json:"task_id,omitempty"`
	URL      string        `json:"url"` // without user, query and fragment
	State    DeliveryState `json:"state"`
	Created  time.Time     `json:"created_at"`
	Next     time.Time     `json:"next_attempt_at,omitzero"`
	Closed   time.Time     `json:"closed_at,omitzero"`
	Total    int           `json:"attempts_total"`
	Attempts []Attempt     `json:"attempts"`
}

// View is the delivery as clients see it: without body and query string.
func (d Delivery) View() DeliveryView {
	v := DeliveryView{
		ID: d.Webhook.ID, TaskID: d.Webhook.TaskID, URL: RedactURL(d.Webhook.URL), State: d.State,
		Created: d.Created, Next: d.Next, Closed: d.Closed, Total: d.Total, Attempts: make([]Attempt, len(d.Attempts)),
	}
	copy(v.Attempts, d.Attempts)
	for i := range v.Attempts {
		v.Attempts[i].Request = ""
	}
	return v
}

// Turn is one call to work at a delivery, as it lies in the schedule. At most
// one automatic turn and one turn by request exist per delivery.
type Turn struct {
	Version  int       `json:"v"` // TurnVersion
	Tenant   string    `json:"tenant"`
	ID       string    `json:"id"` // webhook-id
	At       time.Time `json:"at"` // when it falls due
	Trigger  Trigger   `json:"trigger"`
	Request  string    `json:"request,omitempty"`  // set for a turn by request: tells its repetitions apart
	Deferred int       `json:"deferred,omitempty"` // how often it was put off in a row without an attempt
}

// TurnVersion is the version of the stored turn.
const TurnVersion = 1

// Due is a turn that has come, taken from a queue that gives it again until it
// is acknowledged.
type Due struct {
	Turn
	// Webhook is set when the turn comes from a task's end: the delivery's
	// record may not exist yet.
	Webhook *Webhook
	// Ack ends the turn, Extend keeps it from being given to another, Release
	// gives it back so that it is given again at once. They may be called again,
	// and at the same time.
	Ack     func(ctx context.Context) error
	Extend  func() error
	Release func() error
}

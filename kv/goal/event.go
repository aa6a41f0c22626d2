package goal

import (
	"encoding/json"
	"time"
)

// EventType names what happened; it carries a version, so that a stored trace
// can always be read.
type EventType string

// The event types. Events are at once the worker's journal, the reasoning
// trace that clients read, and what the notifier waits for.
const (
	TaskStarted   EventType = "task.started.v1"   // first start: fixes the deadline
	TaskResumed   EventType = "task.resumed.v1"   // another attempt goes on from the journal
	StateObserved EventType = "state.observed.v1" // what is left
	StepDecided   EventType = "step.decided.v1"   // journaled before its call
	StepRefused   EventType = "step.refused.v1"   // decided, but never dispatched
	StepCompleted EventType = "step.completed.v1" // the outcome of the call
	KeyConflict   EventType = "key.conflict.v1"   // the key came again with another payload
	TaskEnded     EventType = "task.ended.v1"
)

// EventTypes lists every event type.
func EventTypes() []EventType {
	return []EventType{TaskStarted, TaskResumed, StateObserved, StepDecided, StepRefused, StepCompleted, KeyConflict, TaskEnded}
}

// Event is one entry of a task's journal. Exactly the member that belongs to
// its type is set.
type Event struct {
	N        int       `json:"n"` // position in the task's journal, from 1, without gaps
	Type     EventType `json:"type"`
	Time     time.Time `json:"time"` // worker's clock, UTC; never compared between machines
	Worker   string    `json:"worker,omitempty"`
	Step     int       `json:"step,omitempty"` // from 1
	Started  *Started  `json:"started,omitempty"`
	Observed *Observed `json:"observed,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
	Refusal  *Refusal  `json:"refusal,omitempty"`
	Outcome  *Outcome  `json:"outcome,omitempty"`
	Ended    *Ended    `json:"ended,omitempty"`
}

// Started belongs to TaskStarted and TaskResumed.
type Started struct {
	Attempt   int               `json:"attempt"`             // 1 for the first start
	GoalSeq   uint64            `json:"goal_seq"`            // submission that this journal belongs to
	Deadline  time.Time         `json:"deadline"`            // absolute; the same in every attempt
	Revisions map[string]uint64 `json:"revisions,omitempty"` // pre-conditioned entities at the start
	ETag      string            `json:"etag,omitempty"`
}

// Observed belongs to StateObserved, and to a StepCompleted whose state was
// read together with it.
type Observed struct {
	Left      []Difference      `json:"left"`
	LeftTotal int               `json:"left_total"`
	Leaves    int               `json:"leaves"` // leaves of the target; Leaves-LeftTotal match
	StateHash string            `json:"state_hash,omitempty"`
	Revisions map[string]uint64 `json:"revisions,omitempty"` // of the pre-conditioned entities, where the source has them
	ETag      string            `json:"etag,omitempty"`
	Guarded   map[string]string `json:"guarded,omitempty"` // digests of pre-conditioned entities that have no revision
}

// Replay says what may be done with a call that was in flight at a crash.
type Replay string

// The replay classes.
const (
	ReplayRead       Replay = "read"       // call again
	ReplayKeyed      Replay = "keyed"      // call again with the same key
	ReplayIdempotent Replay = "idempotent" // call again
	ReplayUnsafe     Replay = "unsafe"     // never call again: observe, then OUTCOME_UNKNOWN
)

// Replays lists every replay class.
func Replays() []Replay { return []Replay{ReplayRead, ReplayKeyed, ReplayIdempotent, ReplayUnsafe} }

// Mutates reports whether a call of this class may change the state.
func (r Replay) Mutates() bool { return r != ReplayRead }

// Action is one tool call that a planner wants.
type Action struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"` // object
	// Malformed says why the arguments could not be read; the call is refused.
	Malformed string `json:"malformed,omitempty"`
}

// Decision belongs to StepDecided. It is durable before its call is sent, and
// a journaled decision is never asked of the planner again.
type Decision struct {
	Action
	Key       string   `json:"key"` // Idempotency-Key of the call, ToolCallKey(task, step, tool, arguments)
	Replay    Replay   `json:"replay"`
	Why       string   `json:"why,omitempty"`     // at most 280 characters
	Planned   []Action `json:"planned,omitempty"` // further actions of the same answer, run in order without asking again
	Tokens    int64    `json:"tokens,omitempty"`  // spent for this answer; 0 for a planned action
	Estimated bool     `json:"estimated,omitempty"`
	Took      Millis   `json:"took_ms,omitempty"` // planner's time
	// PlannerState is the planner's own memory (raw reasoning fields to echo);
	// it is never shown: Public removes it.
	PlannerState json.RawMessage `json:"planner_state,omitempty"`
}

// Refusal belongs to StepRefused: the planner was told, nothing was called.
type Refusal struct {
	Action
	Kind         string          `json:"kind"` // not_allowed, unknown_tool, invalid_arguments, no_action
	Message      string          `json:"message"`
	Why          string          `json:"why,omitempty"`
	Tokens       int64           `json:"tokens,omitempty"`
	Estimated    bool            `json:"estimated,omitempty"`
	Took         Millis          `json:"took_ms,omitempty"`
	PlannerState json.RawMessage `json:"planner_state,omitempty"`
}

// OutcomeKind classifies a call's outcome.
type OutcomeKind string

// The outcome kinds.
const (
	CallOK           OutcomeKind = "ok"
	CallToolError    OutcomeKind = "tool_error"   // the tool answered an error (4xx, isError): an observation
	CallUnavailable  OutcomeKind = "unavailable"  // retries were used up, or the answer was lost
	CallTimeout      OutcomeKind = "timeout"      // the per-call deadline passed: the effect is unknown
	CallPrecondition OutcomeKind = "precondition" // 412: the state had moved
	CallUnknown      OutcomeKind = "outcome_unknown"
)

// Outcome belongs to StepCompleted.
type Outcome struct {
	Kind      OutcomeKind       `json:"kind"`
	Status    int               `json:"status,omitempty"` // HTTP status, where there was one
	Result    json.RawMessage   `json:"result,omitempty"` // at most MaxInline bytes
	Message   string            `json:"message,omitempty"`
	Attempts  int               `json:"attempts"`
	Replayed  bool              `json:"replayed,omitempty"` // the backend answered from its record
	Repeated  bool              `json:"repeated,omitempty"` // the call was sent again after a crash
	Size      int               `json:"size,omitempty"`     // of the whole result, where it was cut
	Digest    string            `json:"digest,omitempty"`   // sha256:<hex> of the whole result
	Object    string            `json:"object,omitempty"`   // where the whole result lies, if it was too large
	Took      Millis            `json:"took_ms"`
	Revisions map[string]uint64 `json:"revisions,omitempty"` // entities that the call wrote, with their new revision
}

// OK reports whether the call did what it was asked.
func (o Outcome) OK() bool { return o.Kind == CallOK }

// MaxInline is the largest result in bytes that an event carries.
const MaxInline = 64 << 10

// Ended belongs to TaskEnded.
type Ended struct {
	Status State  `json:"status"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"`
	Trip   *Trip  `json:"trip,omitempty"`
	Usage  Usage  `json:"usage"`
}

// Millis is a duration that is written as whole milliseconds.
type Millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(m).Milliseconds()) }

// UnmarshalJSON implements json.Unmarshaler.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	*m = Millis(time.Duration(n) * time.Millisecond)
	return nil
}

// Batch is one append to a task's journal: events that were known together.
type Batch struct {
	Version int     `json:"v"` // BatchVersion
	Events  []Event `json:"events"`
	// Webhook is set in the terminal batch only, when the goal named one.
	Webhook *Webhook `json:"webhook,omitempty"`
}

// BatchVersion is the version of the stored batch record.
const BatchVersion = 1

// Webhook is the one event that is delivered for a task: its bytes are frozen
// when the task ends. Body is a string, which JSON carries byte for byte
// because it is always valid UTF-8.
type Webhook struct {
	ID     string `json:"id"` // webhook-id, made from the task id
	URL    string `json:"url"`
	Tenant string `json:"tenant"`
	TaskID string `json:"task_id"`
	Body   string `json:"body"`
	// Traceparent is the submission's W3C trace context, so that the attempts
	// belong to its trace; it is no part of the body. Records of version 1
	// without it are read too.
	Traceparent string `json:"traceparent,omitempty"`
}

// Public is the event as clients may see it.
func (e Event) Public() Event {
	if e.Decision != nil && e.Decision.PlannerState != nil {
		d := *e.Decision
		d.PlannerState = nil
		e.Decision = &d
	}
	if e.Refusal != nil && e.Refusal.PlannerState != nil {
		r := *e.Refusal
		r.PlannerState = nil
		e.Refusal = &r
	}
	return e
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Planner decides what to do next. It has no side effect: an answer that was
// not journaled may be asked for again.
type Planner interface {
	// Decide is called by one goroutine per task at a time, for many tasks at
	// once. It must end with ctx. Errors are classified with PlannerError.
	Decide(ctx context.Context, s Situation) (Answer, error)
}

// Situation is all that a planner is told. What its lists and maps hold belongs
// to the loop and must not be changed.
type Situation struct {
	TaskID   string
	Tenant   string
	Goal     goal.Goal
	Left     []goal.Difference // what is left
	State    map[string]any    // what was observed; numbers are json.Number
	Steps    []Step            // all earlier decisions with their outcomes, oldest first
	Tools    []ToolSpec        // what may be called
	Budget   Budget
	Notice   string // set when the planner must be told something (a repeat, an empty answer)
	Deadline time.Time
}

// Step is an earlier decision as the planner sees it. Exactly one of Outcome
// and Refusal is set.
type Step struct {
	N        int
	Decision *goal.Decision // nil for one that was refused before it was journaled
	Refusal  *goal.Refusal
	Outcome  *goal.Outcome
}

// Budget is what is left to spend.
type Budget struct {
	Steps  int
	Tokens int64 // -1: no limit
	Time   time.Duration
}

// Answer is a planner's decision. Several actions run in order, each as a step
// of its own. No action at all means that the planner sees nothing to do.
type Answer struct {
	Actions   []goal.Action
	Why       string // shown in the trace, cut to 280 characters
	Tokens    int64
	Estimated bool
	State     json.RawMessage // journaled as Decision.PlannerState
}

// PlannerError classifies a planner's failure.
type PlannerError struct {
	Kind  PlannerErrorKind
	Err   error
	Retry time.Duration // wait at least so long before asking again; 0: caller's back-off
}

// PlannerErrorKind is a closed list.
type PlannerErrorKind string

// The kinds of planner errors.
const (
	PlannerUnavailable PlannerErrorKind = "unavailable"    // may be asked again
	PlannerQuota       PlannerErrorKind = "quota"          // never retried
	PlannerContext     PlannerErrorKind = "context_length" // never retried
	PlannerConfig      PlannerErrorKind = "config"         // 401, 403, 404: never retried
	PlannerBadAnswer   PlannerErrorKind = "bad_answer"     // not understood, after its own corrections
)

// Error implements error.
func (e *PlannerError) Error() string {
	if e.Err == nil {
		return "planner: " + string(e.Kind)
	}
	return "planner: " + string(e.Kind) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *PlannerError) Unwrap() error { return e.Err }

// ToolSpec describes a tool of an environment.
type ToolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
	Replay      goal.Replay     `json:"replay"`
	Roles       []string        `json:"roles,omitempty"` // empty: everybody
}

// Call is one tool call to dispatch. Key is the same for every repeat of the
// same decision.
type Call struct {
	TaskID      string
	Tenant      string
	Step        int
	Tool        string
	Arguments   json.RawMessage
	Key         string
	Repeated    bool // sent before a crash; the outcome was not journaled
	Traceparent string
}

// ErrUnknownTool is what a toolbox answers for a tool that it does not have.
var ErrUnknownTool = errors.New("unknown tool")

// Toolbox is the tools of one environment. All methods may be called
// concurrently.
type Toolbox interface {
	// List returns every tool, sorted by name. The caller changes nothing in it.
	List(ctx context.Context) ([]ToolSpec, error)
	// Call dispatches a call, with its own retries, and reports how it went.
	// A tool's own error is an outcome, not an error. An error means that
	// nothing was sent: unknown tool (ErrUnknownTool), or arguments that its
	// schema refuses (*ArgumentsError). When ctx ends while a call is under way,
	// the outcome is CallTimeout or CallUnknown, not an error. A lost answer of
	// an unsafe tool is CallUnknown, never CallUnavailable.
	Call(ctx context.Context, c Call) (goal.Outcome, error)
}

// ArgumentsError says what is wrong with the arguments of a call.
type ArgumentsError struct{ Detail string }

// Error implements error.
func (e *ArgumentsError) Error() string { return "invalid arguments: " + e.Detail }

// Entity names one thing to read: a member of the state's root, or a member of
// such a member. ID is empty for a root member that is read whole.
type Entity struct {
	Collection string
	ID         string
}

// Observation is one fresh read of the state.
type Observation struct {
	State     map[string]any    // numbers are json.Number
	Revisions map[string]uint64 // "collection/id" to revision, where the source has them; 0: absent
	ETag      string            // where the source has one
}

// State reads the world. Observe may be called concurrently; an error means
// unknown, never absent.
type State interface {
	Observe(ctx context.Context, entities []Entity) (Observation, error)
}

// Probe checks a third party that an environment depends on.
type Probe interface {
	// Check returns nil when the dependency answers.
	Check(ctx context.Context) error
	Name() string
}

// Environment is a named world: where its state is read, which tools act on
// it, which planner decides.
type Environment struct {
	Name    string
	Roles   []string // who may use it; empty: everybody
	State   State
	Tools   Toolbox
	Planner Planner
	Probes  []Probe
	// LocalState: the state lies where the goals do. A goal that expects nothing
	// of it at the start is then accepted without an observation, since a store
	// that cannot be read takes no goal.
	LocalState bool
}

// Journal is a task's journal. Append is fenced: it fails with goal.ErrFenced
// when another worker has appended, and the caller must stop at once. The
// events are durable when it returns. Not for concurrent use.
type Journal interface {
	Append(ctx context.Context, events ...goal.Event) error
}

// ErrBalance is what Reserve answers when a tenant's tokens are used up.
var ErrBalance = goal.ErrBalance

// Balance is a tenant's token balance. Reserve before a planner call, settle
// after it; never negative under concurrency. Both may be repeated with the
// same id.
type Balance interface {
	Reserve(ctx context.Context, tenant, id string, tokens int64) error // ErrBalance when used up
	Settle(ctx context.Context, tenant, id string, spent int64) error
}

package goal

import (
	"encoding/json"
	"slices"
	"time"
)

// State is the state of a task.
//
//	queued ──> running ──> succeeded | failed | cancelled
//	   └──────────────────────────────> failed | cancelled
//
// Terminal states never change.
type State string

// The states of a task.
const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// States lists every state.
func States() []State { return []State{Queued, Running, Succeeded, Failed, Cancelled} }

// moves is the one table of allowed moves. A queued task may succeed only
// through running.
var moves = map[State][]State{
	Queued:  {Running, Failed, Cancelled},
	Running: {Succeeded, Failed, Cancelled},
}

// CanMove reports whether a task in state s may become to.
func (s State) CanMove(to State) bool { return slices.Contains(moves[s], to) }

// Terminal reports whether s never changes again.
func (s State) Terminal() bool { return len(moves[s]) == 0 }

// Reason says why a task ended. The set is closed (public contract section 2).
type Reason string

// The reasons.
const (
	TargetStateReached      Reason = "TARGET_STATE_REACHED"
	GuardrailMaxSteps       Reason = "GUARDRAIL_MAX_STEPS"
	GuardrailTimeout        Reason = "GUARDRAIL_TIMEOUT"
	GuardrailToolNotAllowed Reason = "GUARDRAIL_TOOL_NOT_ALLOWED"
	GuardrailMaxTokens      Reason = "GUARDRAIL_MAX_TOKENS"
	GuardrailNoProgress     Reason = "GUARDRAIL_NO_PROGRESS"
	PreconditionFailed      Reason = "PRECONDITION_FAILED"
	DependencyUnavailable   Reason = "DEPENDENCY_UNAVAILABLE"
	PermissionDenied        Reason = "PERMISSION_DENIED"
	InvalidGoal             Reason = "INVALID_GOAL"
	PlannerFailed           Reason = "PLANNER_FAILED"
	ToolFailed              Reason = "TOOL_FAILED"
	OutcomeUnknown          Reason = "OUTCOME_UNKNOWN"
	WorkerCrashLoop         Reason = "WORKER_CRASH_LOOP"
	QueueExpired            Reason = "QUEUE_EXPIRED"
	Internal                Reason = "INTERNAL"
	CancelRequested         Reason = "CANCELLED" // the only reason of a cancelled task
)

// Reasons lists every reason.
func Reasons() []Reason {
	return []Reason{
		TargetStateReached, GuardrailMaxSteps, GuardrailTimeout, GuardrailToolNotAllowed, GuardrailMaxTokens,
		GuardrailNoProgress, PreconditionFailed, DependencyUnavailable, PermissionDenied, InvalidGoal, PlannerFailed,
		ToolFailed, OutcomeUnknown, WorkerCrashLoop, QueueExpired, Internal, CancelRequested,
	}
}

// Guardrail reports whether the reason is a guardrail that tripped.
func (r Reason) Guardrail() bool {
	return slices.Contains(guardrails, r)
}

var guardrails = []Reason{GuardrailMaxSteps, GuardrailTimeout, GuardrailToolNotAllowed, GuardrailMaxTokens, GuardrailNoProgress}

// Difference is one place where the state is not what was wanted.
type Difference struct {
	Pointer string          `json:"pointer"`        // RFC 6901, from the root of the state
	Want    json.RawMessage `json:"want"`           // null: must be absent or null
	Have    json.RawMessage `json:"have,omitempty"` // left out: absent
}

// Usage is what a task has spent.
type Usage struct {
	Steps     int   `json:"steps"`      // decisions, with their calls
	ToolCalls int   `json:"tool_calls"` // calls dispatched
	Tokens    int64 `json:"tokens"`     // as the planner reported them
	Estimated bool  `json:"estimated,omitempty"`
}

// Trip reports a guardrail that tripped.
type Trip struct {
	Guardrail Reason `json:"guardrail"`
	Limit     any    `json:"limit"`
	Observed  any    `json:"observed"`
	Step      int    `json:"step"`
}

// Effect is one tool call that took, or may have taken, effect.
type Effect struct {
	Step    int    `json:"step"`
	Tool    string `json:"tool"`
	Outcome string `json:"outcome"` // "done" or "unknown"
}

// Result is the one record that decides how a task ended. It is created once
// and never changes; everything that follows the end is derived from it.
type Result struct {
	Version    int             `json:"v"` // ResultVersion
	TaskID     string          `json:"task_id"`
	Tenant     string          `json:"tenant"`
	GoalSeq    uint64          `json:"goal_seq"` // sequence of the submission in its stream: tells a reused id apart
	Status     State           `json:"status"`   // always terminal
	Reason     Reason          `json:"reason"`
	Detail     string          `json:"detail,omitempty"`
	HTTPStatus int             `json:"http_status,omitempty"` // 412 for PRECONDITION_FAILED; of Problem, where there is one
	Problem    *Problem        `json:"problem,omitempty"`     // what a direct submission was refused for
	Trip       *Trip           `json:"trip,omitempty"`
	Checks     []Difference    `json:"failed_checks,omitempty"` // pre-conditions that did not hold
	Left       []Difference    `json:"left"`                    // what is left, at most MaxLeft
	LeftTotal  int             `json:"left_total"`
	Effects    []Effect        `json:"effects,omitempty"` // for cancelled and failed tasks
	Usage      Usage           `json:"usage"`
	State      json.RawMessage `json:"state,omitempty"` // last observed value of what the target names
	StateHash  string          `json:"state_hash,omitempty"`
	StartedAt  *time.Time      `json:"started_at,omitempty"`
	EndedAt    time.Time       `json:"ended_at"`
	Worker     string          `json:"worker,omitempty"`
}

// ResultVersion is the version of the stored result record.
const ResultVersion = 1

// MaxLeft is how many differences a report carries; LeftTotal counts all.
const MaxLeft = 50

// Task is a task as clients see it.
type Task struct {
	ID          string          `json:"id"`
	Status      State           `json:"status"`
	Reason      Reason          `json:"reason,omitempty"`
	Detail      string          `json:"detail,omitempty"`
	HTTPStatus  int             `json:"http_status,omitempty"`
	Problem     *Problem        `json:"problem,omitempty"`
	Intent      string          `json:"intent"`
	Environment string          `json:"environment"`
	TargetState json.RawMessage `json:"target_state,omitempty"`
	Guardrails  Guardrails      `json:"guardrails"`
	AcceptedAt  time.Time       `json:"accepted_at"`
	StartedAt   *time.Time      `json:"started_at,omitempty"`
	Deadline    *time.Time      `json:"deadline,omitempty"`
	EndedAt     *time.Time      `json:"ended_at,omitempty"`
	ExpiresAt   time.Time       `json:"expires_at"` // after it the id is 404 and the key is free
	Usage       Usage           `json:"usage"`
	Left        []Difference    `json:"left"`
	LeftTotal   int             `json:"left_total"`
	Trip        *Trip           `json:"trip,omitempty"`
	Checks      []Difference    `json:"failed_checks,omitempty"`
	Effects     []Effect        `json:"effects,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"` // observed state at the end
	ResultURL   string          `json:"result_url,omitempty"`
	StateHash   string          `json:"state_hash,omitempty"`
	CancelAsked bool            `json:"cancel_requested,omitempty"`
	WebhookURL  string          `json:"webhook_url,omitempty"` // without its query
	Links       Links           `json:"links"`
	Omitted     []string        `json:"omitted,omitempty"` // webhooks only: members cut for size; Links.Self has them
	Trace       []Event         `json:"trace,omitempty"`   // last TraceSnapshot steps; never in a webhook
}

// Links of a task, as paths.
type Links struct {
	Self   string `json:"self"`
	Trace  string `json:"trace"`
	Events string `json:"events"`
}

// TraceSnapshot is how many steps GET /v1/tasks/{id} shows.
const TraceSnapshot = 20

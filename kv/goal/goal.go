package goal

import (
	"encoding/json"
	"slices"
	"time"
)

// Limits of a goal, from the public contract section 1. They are repeated in
// schema.json, which is what refuses a goal; a test keeps the two together.
const (
	MaxBody           = 256 << 10 // bytes of a submitted goal
	MaxDepth          = 100       // nesting of arrays and objects
	MinIntent         = 5         // characters
	MaxStepsLimit     = 50
	MinTimeoutSeconds = 10
	MaxTimeoutSeconds = 600
)

// Defaults of a goal's optional members.
const (
	DefaultEnvironment          = "default"
	DefaultMaxRepeats           = 3
	DefaultMaxConsecutiveErrors = 3
)

// Goal is what a client declares. It is immutable once accepted. Raw members
// keep the client's bytes, so that numbers stay exact.
type Goal struct {
	Objective     Objective       `json:"goal"`
	Guardrails    Guardrails      `json:"guardrails"`
	PreConditions json.RawMessage `json:"pre_conditions,omitempty"` // object; see ParsePreConditions
	Environment   string          `json:"environment,omitempty"`    // empty means DefaultEnvironment
	Context       json.RawMessage `json:"context,omitempty"`        // object, handed to the planner
	WebhookURL    string          `json:"webhook_url,omitempty"`
}

// Objective is the intent in words and the state that must be observed.
type Objective struct {
	Intent      string          `json:"intent"`
	TargetState json.RawMessage `json:"target_state"` // object, never empty
}

// Guardrails bound a task. They are enforced at dispatch, before the effect.
type Guardrails struct {
	MaxSteps             int      `json:"max_steps"`
	TimeoutSeconds       int      `json:"timeout_seconds"`
	AllowedTools         []string `json:"allowed_tools,omitzero"` // nil: every tool the roles permit; empty: none
	MaxTokens            int64    `json:"max_tokens,omitempty"`   // 0: no limit
	MaxRepeats           int      `json:"max_repeats,omitempty"`
	MaxConsecutiveErrors int      `json:"max_consecutive_errors,omitempty"`
}

// Timeout is the time a task may take from its first start.
func (g Guardrails) Timeout() time.Duration { return time.Duration(g.TimeoutSeconds) * time.Second }

// Repeats is MaxRepeats with its default.
func (g Guardrails) Repeats() int {
	if g.MaxRepeats > 0 {
		return g.MaxRepeats
	}
	return DefaultMaxRepeats
}

// ConsecutiveErrors is MaxConsecutiveErrors with its default.
func (g Guardrails) ConsecutiveErrors() int {
	if g.MaxConsecutiveErrors > 0 {
		return g.MaxConsecutiveErrors
	}
	return DefaultMaxConsecutiveErrors
}

// Allows reports whether the guardrails let the named tool be called. Names
// are compared byte by byte: no alias, no case folding.
func (g Guardrails) Allows(tool string) bool {
	return g.AllowedTools == nil || slices.Contains(g.AllowedTools, tool)
}

// EnvironmentName is Environment with its default.
func (g Goal) EnvironmentName() string {
	if g.Environment == "" {
		return DefaultEnvironment
	}
	return g.Environment
}

// Submission is an accepted goal as it lies in the tenant's queue: one message,
// which is at once the queue entry and the idempotency record.
type Submission struct {
	Version     int      `json:"v"` // SubmissionVersion
	TaskID      string   `json:"task_id"`
	Tenant      string   `json:"tenant"`
	Key         string   `json:"key"`         // the Idempotency-Key
	Fingerprint string   `json:"fingerprint"` // of the payload, see Fingerprint
	Roles       []string `json:"roles,omitempty"`
	Via         string   `json:"via"`                   // "http" or "nats"
	Traceparent string   `json:"traceparent,omitempty"` // W3C trace context of the submission
	Goal        Goal     `json:"goal"`
	// AcceptedAt is when the goal was put into the queue, by the clock of who did
	// it. Records of before it was stored have none.
	AcceptedAt time.Time `json:"accepted_at,omitzero"`
	// Refused is set for a direct NATS submission that HTTP would have refused:
	// the task is settled failed with this problem and never run.
	Refused *Problem `json:"refused,omitempty"`
}

// SubmissionVersion is the version of the stored submission record.
const SubmissionVersion = 1

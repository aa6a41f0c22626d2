package goal

import (
	"maps"
	"slices"
	"strings"
)

// ProblemType is the last part of a problem's type URI. The set is closed.
type ProblemType string

// The problem types, with the status each one has (public contract sections
// 2.1 and 3). Two of them have another status for tool calls.
const (
	MalformedJSON          ProblemType = "malformed-json"
	KeyMissing             ProblemType = "idempotency-key-missing"
	KeyMalformed           ProblemType = "idempotency-key-malformed"
	KeyMismatch            ProblemType = "idempotency-key-mismatch"
	KeyReused              ProblemType = "idempotency-key-reused"
	Unauthenticated        ProblemType = "unauthenticated"
	Forbidden              ProblemType = "permission-denied"
	NotFound               ProblemType = "not-found"
	RequestInProgress      ProblemType = "request-in-progress"
	ResponseNotRetained    ProblemType = "response-not-retained"
	PreconditionMismatch   ProblemType = "precondition-failed"
	PayloadTooLarge        ProblemType = "payload-too-large"
	UnsupportedMediaType   ProblemType = "unsupported-media-type"
	GoalInvalid            ProblemType = "invalid-goal"
	RateLimited            ProblemType = "rate-limited"
	QueueFull              ProblemType = "queue-full"
	TokenBalanceExhausted  ProblemType = "token-balance-exhausted"
	DependencyNotAvailable ProblemType = "dependency-unavailable"
	StoreUnavailable       ProblemType = "store-unavailable"
	InternalError          ProblemType = "internal-error"
)

// ProblemBase is the URI under which the types live.
const ProblemBase = "https://goalkeeper.dev/problems/"

type problemInfo struct {
	status int
	title  string
}

var problems = map[ProblemType]problemInfo{
	MalformedJSON:          {400, "The body is not well-formed JSON"},
	KeyMissing:             {400, "The Idempotency-Key header is missing"},
	KeyMalformed:           {400, "The Idempotency-Key header is malformed"},
	KeyMismatch:            {400, "The Idempotency-Key does not match its parts"},
	KeyReused:              {409, "The Idempotency-Key was used with another payload"},
	Unauthenticated:        {401, "Credentials are missing or wrong"},
	Forbidden:              {403, "The caller's roles do not permit this"},
	NotFound:               {404, "There is no such resource"},
	RequestInProgress:      {409, "A request with this key is in progress"},
	ResponseNotRetained:    {410, "The request was executed but its response was not retained"},
	PreconditionMismatch:   {412, "A pre-condition does not hold"},
	PayloadTooLarge:        {413, "The body is too large"},
	UnsupportedMediaType:   {415, "The media type is not supported"},
	GoalInvalid:            {422, "The goal is not valid"},
	RateLimited:            {429, "Too many requests"},
	QueueFull:              {429, "The tenant's queue is full"},
	TokenBalanceExhausted:  {402, "The token balance is used up"},
	DependencyNotAvailable: {503, "A dependency is not available"},
	StoreUnavailable:       {503, "The store is not available"},
	InternalError:          {500, "Internal error"},
}

// ProblemTypes lists every problem type, sorted.
func ProblemTypes() []ProblemType { return slices.Sorted(maps.Keys(problems)) }

// Problem is an RFC 9457 problem details object, and an error.
type Problem struct { //nolint:errname // the word of RFC 9457
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail,omitempty"`
	Instance string       `json:"instance,omitempty"`
	Errors   []FieldError `json:"errors,omitempty"`
	Checks   []Difference `json:"failed_checks,omitempty"` // precondition-failed
	// RetryAfter is sent as the Retry-After header, in seconds; 0 for none.
	RetryAfter int `json:"retry_after_seconds,omitempty"`
}

// FieldError names a place in the payload and what is wrong there.
type FieldError struct {
	Pointer string `json:"pointer"` // RFC 6901
	Detail  string `json:"detail"`
}

// Error implements error.
func (e *FieldError) Error() string { return e.Pointer + ": " + e.Detail }

// NewProblem makes the problem of that type with its status and title.
func NewProblem(t ProblemType, detail string) *Problem {
	info, ok := problems[t]
	if !ok {
		t, info = InternalError, problems[InternalError]
	}
	return &Problem{Type: ProblemBase + string(t), Title: info.title, Status: info.status, Detail: detail}
}

// Kind is the problem's type without its base; empty for another's type.
func (p *Problem) Kind() ProblemType {
	kind, ok := strings.CutPrefix(p.Type, ProblemBase)
	if !ok {
		return ""
	}
	return ProblemType(kind)
}

// Error implements error.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return string(p.Kind()) + ": " + p.Title
	}
	return string(p.Kind()) + ": " + p.Detail
}

// Reason is the reason of a task that a problem of this type ended.
func (t ProblemType) Reason() Reason {
	switch t { //nolint:exhaustive // all others refuse a goal for its form
	case Forbidden, Unauthenticated, NotFound:
		return PermissionDenied
	case PreconditionMismatch:
		return PreconditionFailed
	case TokenBalanceExhausted:
		return GuardrailMaxTokens
	case DependencyNotAvailable, StoreUnavailable, RateLimited, QueueFull:
		return DependencyUnavailable
	case InternalError:
		return Internal
	default:
		return InvalidGoal
	}
}

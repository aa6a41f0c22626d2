package goal_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The statuses of the public contract, sections 2.1 and 3.
func TestProblemTypes(t *testing.T) {
	t.Parallel()
	want := map[goal.ProblemType]int{
		"malformed-json": 400, "idempotency-key-missing": 400, "idempotency-key-malformed": 400,
		"idempotency-key-mismatch": 400, "unauthenticated": 401, "token-balance-exhausted": 402,
		"permission-denied": 403, "not-found": 404, "idempotency-key-reused": 409, "request-in-progress": 409,
		"response-not-retained": 410, "precondition-failed": 412, "payload-too-large": 413,
		"unsupported-media-type": 415, "invalid-goal": 422, "rate-limited": 429, "queue-full": 429,
		"internal-error": 500, "dependency-unavailable": 503, "store-unavailable": 503,
	}
	titles := map[string]goal.ProblemType{}
	for _, kind := range goal.ProblemTypes() {
		p := goal.NewProblem(kind, "Because.")
		if p.Status != want[kind] || http.StatusText(p.Status) == "" {
			t.Errorf("%s has status %d, want %d", kind, p.Status, want[kind])
		}
		if p.Kind() != kind || p.Type != goal.ProblemBase+string(kind) || p.Detail != "Because." {
			t.Errorf("NewProblem(%s) = %+v", kind, p)
		}
		if other, ok := titles[p.Title]; ok || p.Title == "" || strings.HasSuffix(p.Title, ".") {
			t.Errorf("%s has the title %q; %q has it too", kind, p.Title, other)
		}
		titles[p.Title] = kind
		if got := p.Error(); got != string(kind)+": Because." {
			t.Errorf("Error() = %s", got)
		}
		delete(want, kind)
	}
	for kind := range want {
		t.Errorf("%s is missing", kind)
	}
}

func TestUnknownProblemIsInternal(t *testing.T) {
	t.Parallel()
	p := goal.NewProblem("no-such-type", "")
	if p.Kind() != goal.InternalError || p.Status != 500 || p.Error() != "internal-error: Internal error" {
		t.Errorf("NewProblem(no-such-type) = %+v", p)
	}
	if kind := (&goal.Problem{Type: "about:blank"}).Kind(); kind != "" {
		t.Errorf("Kind of about:blank = %q, want none", kind)
	}
}

func TestProblemReasons(t *testing.T) {
	t.Parallel()
	want := map[goal.ProblemType]goal.Reason{
		goal.Forbidden: goal.PermissionDenied, goal.Unauthenticated: goal.PermissionDenied, goal.NotFound: goal.PermissionDenied,
		goal.PreconditionMismatch: goal.PreconditionFailed, goal.TokenBalanceExhausted: goal.GuardrailMaxTokens,
		goal.DependencyNotAvailable: goal.DependencyUnavailable, goal.StoreUnavailable: goal.DependencyUnavailable,
		goal.RateLimited: goal.DependencyUnavailable, goal.QueueFull: goal.DependencyUnavailable, goal.InternalError: goal.Internal,
	}
	for _, kind := range goal.ProblemTypes() {
		reason, ok := want[kind]
		if !ok {
			reason = goal.InvalidGoal
		}
		if got := kind.Reason(); got != reason {
			t.Errorf("%s.Reason() = %s, want %s", kind, got, reason)
		}
	}
}

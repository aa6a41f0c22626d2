package goal

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"
)

// Webhook event types (public contract section 4).
const (
	HookTargetReached     = "goal.target_reached"
	HookGuardrailTripped  = "goal.guardrail_tripped"
	HookPreconditionFails = "goal.precondition_failed"
	HookFailed            = "goal.failed"
	HookCancelled         = "goal.cancelled"
	HookTest              = "webhook.test"
)

// Limits of a webhook's body, in bytes.
const (
	MaxWebhookBody   = 64 << 10
	MaxWebhookResult = 8 << 10
)

// HookType is the webhook event type of a terminal task.
func HookType(status State, reason Reason) string {
	switch {
	case status == Succeeded:
		return HookTargetReached
	case status == Cancelled:
		return HookCancelled
	case reason.Guardrail():
		return HookGuardrailTripped
	case reason == PreconditionFailed:
		return HookPreconditionFails
	default:
		return HookFailed
	}
}

// WebhookID is the webhook-id of a task's end. It depends on the task alone, so
// it is the same over retries, redeliveries and crashes, and it holds no dot
// (Standard Webhooks 1.0.0).
func WebhookID(tenant, task string) string {
	sum := sha256.Sum256([]byte("goalkeeper webhook\x00" + tenant + "\x00" + task))
	return "msg_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// hookBody is the body of a webhook.
type hookBody struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      any       `json:"data"`
}

// NewWebhook freezes the webhook of a terminal task, or returns nil when the
// goal named no URL. The same snapshot always gives the same bytes: valid UTF-8,
// at most MaxWebhookBody. What would make it larger is left out, in a fixed
// order, and listed in the task's Omitted.
func NewWebhook(s Snapshot) (*Webhook, error) {
	if s.Submission.Goal.WebhookURL == "" {
		return nil, nil //nolint:nilnil // no webhook is not an error
	}
	if s.Result == nil {
		return nil, fmt.Errorf("webhook of %s: the task has not ended", s.Submission.TaskID)
	}
	t := s.Task()
	t.Trace, t.CancelAsked = nil, false
	if len(t.Result) > MaxWebhookResult {
		hookCuts[0].cut(&t)
	}
	body, err := marshalHook(t)
	for i := 0; err == nil && len(body) > MaxWebhookBody && i < len(hookCuts); i++ {
		if hookCuts[i].cut(&t) {
			t.Omitted = append(t.Omitted, hookCuts[i].member)
			body, err = marshalHook(t)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Webhook{
		ID: WebhookID(s.Submission.Tenant, s.Submission.TaskID), URL: s.Submission.Goal.WebhookURL,
		Tenant: s.Submission.Tenant, TaskID: s.Submission.TaskID, Body: string(body),
		Traceparent: s.Submission.Traceparent,
	}, nil
}

// hookCuts are the members that are left out of a body that is too large, the
// largest and least telling first. Each reports whether there was anything to
// cut. What remains after all of them is far below MaxWebhookBody.
var hookCuts = []struct {
	member string
	cut    func(*Task) bool
}{
	{"result", func(t *Task) bool {
		had := t.Result != nil
		t.Result, t.ResultURL = nil, t.Links.Self
		return had
	}},
	{"target_state", func(t *Task) bool { return clearSlice(&t.TargetState) }},
	{"left", func(t *Task) bool {
		had := len(t.Left) > 0
		t.Left = []Difference{}
		return had
	}},
	{"failed_checks", func(t *Task) bool { return clearSlice(&t.Checks) }},
	{"effects", func(t *Task) bool { return clearSlice(&t.Effects) }},
	{"guardrails.allowed_tools", func(t *Task) bool { return clearSlice(&t.Guardrails.AllowedTools) }},
	{"trip.limit", func(t *Task) bool {
		if t.Trip == nil {
			return false
		}
		t.Trip = &Trip{Guardrail: t.Trip.Guardrail, Step: t.Trip.Step}
		return true
	}},
	{"problem.errors", func(t *Task) bool {
		if t.Problem == nil {
			return false
		}
		p := *t.Problem
		p.Errors, p.Checks, p.Detail, p.Instance = nil, nil, cut(p.Detail, maxHookText), cut(p.Instance, maxHookText)
		t.Problem = &p
		return true
	}},
	{"intent", func(t *Task) bool { return cutText(&t.Intent) }},
	{"detail", func(t *Task) bool { return cutText(&t.Detail) }},
	{"environment", func(t *Task) bool { return cutText(&t.Environment) }},
	{"webhook_url", func(t *Task) bool { return cutText(&t.WebhookURL) }},
}

// maxHookText is how many bytes of a text stay when it is cut.
const maxHookText = 1024

func clearSlice[S ~[]E, E any](s *S) bool {
	had := len(*s) > 0
	*s = nil
	return had
}

func cutText(s *string) bool {
	had := len(*s) > maxHookText
	*s = cut(*s, maxHookText)
	return had
}

func marshalHook(t Task) ([]byte, error) {
	return Marshal(hookBody{Type: HookType(t.Status, t.Reason), Timestamp: t.EndedAt.UTC(), Data: t})
}

// cut shortens s to at most n bytes at a rune boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

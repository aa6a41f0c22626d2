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
// goal named no URL. The same snapshot always gives the same bytes.
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
		t.Result, t.ResultURL = nil, t.Links.Self
	}
	body, err := marshalHook(t)
	if err != nil {
		return nil, err
	}
	if len(body) > MaxWebhookBody {
		// The lists first, then the target itself: what is cut can be fetched.
		t.Result, t.ResultURL = nil, t.Links.Self
		t.Left, t.Checks, t.Effects, t.TargetState = t.Left[:min(len(t.Left), 3)], nil, nil, nil
		if body, err = marshalHook(t); err != nil {
			return nil, err
		}
		if len(body) > MaxWebhookBody {
			t.Left, t.Intent, t.Detail = []Difference{}, cut(t.Intent, 1024), cut(t.Detail, 1024)
			t.Guardrails.AllowedTools, t.Problem = nil, nil
			if body, err = marshalHook(t); err != nil {
				return nil, err
			}
		}
	}
	return &Webhook{
		ID: WebhookID(s.Submission.Tenant, s.Submission.TaskID), URL: s.Submission.Goal.WebhookURL,
		Tenant: s.Submission.Tenant, TaskID: s.Submission.TaskID, Body: string(body),
	}, nil
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

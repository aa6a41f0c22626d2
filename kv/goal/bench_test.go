package goal_test

import (
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// benchGoal is a goal of the usual size, about 600 bytes.
const benchGoal = `{
  "goal": {
    "intent": "Refund order W2378156 to the original payment method",
    "target_state": {"orders": {"W2378156": {"status": "refunded", "refund": {"amount": 129.90, "currency": "EUR"}}}}
  },
  "guardrails": {"max_steps": 12, "timeout_seconds": 120, "allowed_tools": ["orders.get", "orders.refund", "payments.get"]},
  "pre_conditions": {"account_version": 12, "match": {"orders": {"W2378156": {"status": "delivered"}}}},
  "environment": "shop",
  "context": {"ticket": "T-88", "channel": "email", "locale": "de-DE"},
  "webhook_url": "https://example.com/hooks/goals"
}`

func BenchmarkParseGoal(b *testing.B) {
	body := []byte(benchGoal)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, p := goal.ParseGoal(body); p != nil {
			b.Fatal(p)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	benchBytes(b, func(raw []byte) error { _, err := goal.Decode(raw); return err })
}

func BenchmarkCanonical(b *testing.B) {
	benchBytes(b, func(raw []byte) error { _, err := goal.Canonical(raw); return err })
}

func BenchmarkFingerprint(b *testing.B) {
	benchBytes(b, func(raw []byte) error { _, err := goal.Fingerprint(raw); return err })
}

func BenchmarkToolCallKey(b *testing.B) {
	benchBytes(b, func(raw []byte) error {
		_, err := goal.ToolCallKey("tsk_0123456789abcdef0123456789abcdef", 7, "orders.refund", raw)
		return err
	})
}

func BenchmarkTaskID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = goal.TaskID("default", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	}
}

func benchBytes(b *testing.B, f func([]byte) error) {
	b.Helper()
	raw := []byte(benchGoal)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := f(raw); err != nil {
			b.Fatal(err)
		}
	}
}

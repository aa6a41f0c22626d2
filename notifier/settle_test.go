package notifier

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Whatever comes in whatever order: a delivered one stays delivered, only a
// request brings back a dead one, the schedule is never exceeded, and a
// delivery has a next attempt exactly while it is pending.
func TestSettleProperties(t *testing.T) {
	t.Parallel()
	classes := []string{"", ClassRefused, ClassDNS, ClassConnect, ClassTLS, ClassTimeout, ClassReset, ClassResponse, ClassRedirect, ClassGone, Class4xx, Class5xx}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1764525600, 0)
		d := goal.Delivery{State: goal.DeliveryPending, Created: now, Next: now, Test: rapid.Bool().Draw(t, "test")}
		for i := range rapid.IntRange(1, 80).Draw(t, "attempts") {
			before := d
			a := goal.Attempt{At: now, Error: rapid.SampledFrom(classes).Draw(t, "class")}
			if d.State != goal.DeliveryPending || rapid.IntRange(0, 4).Draw(t, "request") == 0 {
				a.Request = "r"
			}
			hold := time.Duration(rapid.IntRange(0, 24).Draw(t, "retry after")) * time.Hour
			settle(&d, a, hold, now)
			switch {
			case before.State == goal.DeliveryDelivered && d.State != goal.DeliveryDelivered:
				t.Fatalf("%s became %s", before.State, d.State)
			case a.Error == "" && d.State != goal.DeliveryDelivered:
				t.Fatalf("taken, but %s", d.State)
			case before.State.Dead() && d.State == goal.DeliveryPending:
				t.Fatalf("%s became pending", before.State)
			case a.Error == ClassGone && d.State != goal.DeliveryGone && before.State != goal.DeliveryDelivered:
				t.Fatalf("gone, but %s", d.State)
			case a.Request != "" && a.Error != "" && a.Error != ClassGone && (d.State != before.State || !d.Next.Equal(before.Next)):
				t.Fatalf("a request that failed changed %s to %s", before.State, d.State)
			case (d.State == goal.DeliveryPending) == d.Next.IsZero():
				t.Fatalf("%s with next attempt %s", d.State, d.Next)
			case d.Spent > MaxAttempts || d.Total != i+1 || len(d.Attempts) != min(d.Total, goal.MaxAttemptsKept):
				t.Fatalf("%d of the schedule, %d in all, %d kept", d.Spent, d.Total, len(d.Attempts))
			case d.State == goal.DeliveryPending && a.Request == "" && d.Next.Sub(now) < hold:
				t.Fatalf("next attempt after %s, Retry-After was %s", d.Next.Sub(now), hold)
			case d.Next.Sub(d.Created) > lifetime:
				t.Fatalf("next attempt %s after the creation", d.Next.Sub(d.Created))
			}
			if n := len(d.Attempts); d.Attempts[n-1].N != d.Total {
				t.Fatalf("attempt %d has number %d", d.Total, d.Attempts[n-1].N)
			}
			if !d.Next.IsZero() && a.Request == "" {
				now = d.Next
			}
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)
	for _, s := range []string{"120", "-1", "9999999999999999999", "Mon, 30 Nov 2026 20:05:00 GMT", " 5 ", "0x10", "1e3", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if d := parseRetryAfter(value, now); d < 0 || d > maxRetryAfter {
			t.Errorf("parseRetryAfter(%q) = %s", value, d)
		}
	})
}

func TestEveryStatusHasAClass(t *testing.T) {
	t.Parallel()
	for status := 100; status < 1000; status++ {
		class := statusClass(status)
		if (class == "") != (status >= 200 && status <= 299) {
			t.Errorf("%d has class %q", status, class)
		}
		outage := answer{status: status, class: class}.suspicious()
		if want := slices.Contains([]int{429, 502, 503, 504}, status); outage != want {
			t.Errorf("%d (%s) is an outage: %v, want %v", status, http.StatusText(status), outage, want)
		}
	}
}

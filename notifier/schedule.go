package notifier

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// waits are the times between the attempts of the schedule that Standard
// Webhooks 1.0.0 recommends; the first is the time before the first attempt.
var waits = []time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// MaxAttempts is how many attempts the schedule has.
var MaxAttempts = len(waits)

// lifetime is how long a delivery is tried at most, counted from its creation:
// the whole schedule (75:35:05) with the longest jitter, and one longest
// Retry-After. A breaker that stays open spends no attempts; this ends it.
const lifetime = 116 * time.Hour

// maxRetryAfter is the longest wait that a receiver can ask for.
const maxRetryAfter = 24 * time.Hour

// nextWait is the time until the next attempt after spent attempts of the
// schedule failed, or false when none is left: the later of the schedule (with
// jitter, so that what failed together does not come back together) and what
// the receiver asked for.
func nextWait(spent int, retryAfter time.Duration) (time.Duration, bool) {
	if spent >= len(waits) {
		return 0, false
	}
	return max(jitter(waits[spent]), retryAfter), true
}

// jitter is d with ±20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // spreads load, is no secret
}

// parseRetryAfter reads a Retry-After header (RFC 9110 section 10.2.3): whole
// seconds or one of the three HTTP dates. What is past, zero or cannot be read
// is 0; what is longer than maxRetryAfter is cut, however many digits it has.
func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		value = strings.TrimLeft(value, "0")
		if len(value) > 6 { // more than 11 days: do not even convert
			return maxRetryAfter
		}
		n := 0
		for i := range len(value) {
			n = 10*n + int(value[i]-'0')
		}
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// busyAgain is the least wait of a delivery that found a full queue n times in a
// row before: those of a destination that hangs must not circle for nothing.
func busyAgain(n int) time.Duration {
	return jitter(min(busyWait<<min(n, 6), 30*time.Second))
}

// ownFaultWait is the wait before a delivery is taken up again that could not
// be attempted for a reason of ours, after it was put off n times in a row.
func ownFaultWait(n int) time.Duration {
	return jitter(min(5*time.Second<<min(n, 6), 5*time.Minute))
}

package tool

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Back-off between attempts: doubled from firstPause up to maxPause, with
// jitter, and never beyond the caller's deadline. What a backend asks for by
// Retry-After is honoured up to maxRetryAfter.
const (
	firstPause    = 100 * time.Millisecond
	maxPause      = 5 * time.Second
	maxRetryAfter = 60 * time.Second
)

// errNoTime means that the next attempt would come after the deadline.
var errNoTime = errors.New("no time left for another attempt")

// pause waits before the attempt after the given one, at least for atLeast. It
// returns at once, with an error, where the wait would pass the deadline.
func pause(ctx context.Context, attempt int, atLeast time.Duration) error {
	d := min(firstPause<<min(attempt-1, 10), maxPause)
	d = d/2 + rand.N(d/2+1) //nolint:gosec // jitter needs no secrecy
	d = max(d, min(atLeast, maxRetryAfter))
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return errNoTime
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// retryAfter reads a Retry-After field: whole seconds or an HTTP date (RFC
// 9110 section 10.2.3). It reports whether there was one; what cannot be read
// counts as a second.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0, false
	}
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(maxRetryAfter/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter), true
	}
	return time.Second, true
}

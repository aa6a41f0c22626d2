package state_test

import (
	"context"
	"testing"
	"time"
)

func contextWithShortDeadline(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 300*time.Millisecond)
}

package kv

import (
	"maps"
	"testing"
	"time"
)

// A reservation of a worker that is gone comes back after an hour.
func TestBalanceReleasesOldHolds(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	r := balanceRecord{Left: 5, Holds: map[string]hold{
		"old":   {Tokens: 7, Until: now.Add(-time.Second).Unix()},
		"young": {Tokens: 9, Until: now.Add(holdFor).Unix()},
	}}
	r.release(now)
	want := map[string]hold{"young": {Tokens: 9, Until: now.Add(holdFor).Unix()}}
	if r.Left != 12 || !maps.Equal(r.Holds, want) {
		t.Errorf("left %d, held %v; want 12, %v", r.Left, r.Holds, want)
	}
}

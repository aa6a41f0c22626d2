package main

import "testing"

func TestGCPercent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		live uint64
		want int
	}{{0, 1600}, {1 << 20, 1600}, {16 << 20, 400}, {headroom, 100}, {10 * headroom, 100}} {
		if got := gcPercent(row.live); got != row.want {
			t.Errorf("%d bytes: %d, want %d", row.live, got, row.want)
		}
	}
}

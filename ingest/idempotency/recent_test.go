package idempotency

import (
	"strconv"
	"testing"
)

func TestRecent(t *testing.T) {
	t.Parallel()
	var r recent
	if r.has("0") {
		t.Fatal("it has what was never added")
	}
	const n = 5 * recentSize / 2
	for i := range n {
		r.add(strconv.Itoa(i))
	}
	for i := range n {
		if got := r.has(strconv.Itoa(i)); !got && i >= n-recentSize {
			t.Fatalf("%d of %d is forgotten", i, n)
		} else if got && i < n-2*recentSize {
			t.Fatalf("%d of %d is still there", i, n)
		}
	}
}

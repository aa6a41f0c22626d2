package ingest

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestFinishedIsBounded(t *testing.T) {
	t.Parallel()
	var f finished
	put := func(id string, state int) {
		snap := goal.Snapshot{
			Accepted: goal.Accepted{Submission: goal.Submission{Tenant: "t", TaskID: id}, Expires: time.Now().Add(time.Hour)},
			Result:   &goal.Result{Status: goal.Succeeded, State: json.RawMessage(`"` + strings.Repeat("x", state) + `"`)},
		}
		f.put(snap)
	}
	put("too large", finishedOne)
	if _, ok := f.get("t", "too large"); ok {
		t.Error("a task that is too large is remembered")
	}
	for i := range 2 * finishedSize / 30_000 {
		id := strconv.Itoa(i)
		put(id, 30_000)
		put(id, 30_000) // again: it counts once
		if _, ok := f.get("t", id); !ok {
			t.Fatalf("task %d is not remembered", i)
		}
		if f.size > finishedSize {
			t.Fatalf("%d bytes after %d tasks", f.size, i+1)
		}
	}
	sum := 0
	for _, task := range f.tasks {
		sum += task.size
	}
	if sum != f.size || len(f.tasks) < finishedSize/2/30_000 {
		t.Errorf("%d tasks of %d bytes, counted %d", len(f.tasks), sum, f.size)
	}
}

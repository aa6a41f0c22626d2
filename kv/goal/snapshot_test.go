package goal_test

import (
	"slices"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestTaskFollowsTheJournal(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot()
	if task := s.Task(); task.Status != goal.Queued || task.StartedAt != nil || task.Left == nil || task.Environment != "shop" {
		t.Errorf("queued: %+v", task)
	}
	s.Events = exampleEvents()[:4]
	s.CancelAsked = true
	task := s.Task()
	switch {
	case task.Status != goal.Running, !task.StartedAt.Equal(at(1)), !task.Deadline.Equal(at(121)):
	case task.Usage != goal.Usage{Steps: 2, ToolCalls: 1, Tokens: 812, Estimated: true}:
	case len(task.Left) != 1, task.LeftTotal != 1, task.StateHash != "sha256:00", !task.CancelAsked:
	default:
		return
	}
	t.Errorf("running: %+v", task)
}

// The terminal event alone does not end a task: the result does.
func TestOnlyTheResultEndsATask(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot()
	s.Events = exampleEvents()
	if task := s.Task(); task.Status != goal.Running || task.LeftTotal != 0 || task.StateHash != "sha256:01" {
		t.Errorf("without a result: %+v", task)
	}
	s.Result = exampleResult()
	s.Result.Left = nil
	task := s.Task()
	if task.Status != goal.Failed || task.Reason != goal.GuardrailMaxSteps || !task.EndedAt.Equal(at(42)) || task.Left == nil {
		t.Errorf("with a result: %+v", task)
	}
}

func TestTraceIsPublic(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot()
	s.Events = exampleEvents()
	for _, e := range s.Trace(0) {
		if e.Decision != nil && e.Decision.PlannerState != nil || e.Refusal != nil && e.Refusal.PlannerState != nil {
			t.Errorf("event %d shows the planner's memory", e.N)
		}
	}
	if s.Events[3].Decision.PlannerState == nil || s.Events[2].Refusal.PlannerState == nil {
		t.Error("Public changed the journal")
	}
	if got := numbers(s.Trace(6)); !slices.Equal(got, []int{7, 8}) {
		t.Errorf("Trace(6) has events %v", got)
	}
	if s.Trace(99) == nil {
		t.Error("no events are null, not an empty list")
	}
	if got := numbers(s.LastSteps(1)); !slices.Equal(got, []int{1, 2, 4, 5, 6, 7, 8}) {
		t.Errorf("LastSteps(1) has events %v", got)
	}
	if got := numbers(s.LastSteps(20)); len(got) != 8 {
		t.Errorf("LastSteps(20) has events %v", got)
	}
}

func numbers(events []goal.Event) []int {
	out := []int{}
	for _, e := range events {
		out = append(out, e.N)
	}
	return out
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{ //nolint:gosec // the passwords are made up
		"": "",
		"https://user:pw@example.com:8443/hooks/a?token=x#y": "https://example.com:8443/hooks/a",
		"https://example.com?":                               "https://example.com",
		"https:user:pw@example.com":                          "(unreadable)",
		"://x?token=y":                                       "(unreadable)",
		"https://a%zz/?token=y":                              "(unreadable)",
	} {
		if got := goal.RedactURL(in); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
}

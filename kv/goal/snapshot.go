package goal

import (
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Accepted is a submission as it lies in the queue, with what the store knows.
type Accepted struct {
	Submission Submission
	Seq        uint64    // sequence in the tenant's stream: tells a reused id apart
	At         time.Time // of acceptance
	Stored     time.Time // the same by the store's clock, where the goal was read; else zero
	Expires    time.Time // end of the retention, counted from At
}

// Snapshot is everything the store holds about a task, read at one time.
type Snapshot struct {
	Accepted
	Events      []Event // the journal, and the notes of others, in order
	Result      *Result // nil while the task is not terminal
	CancelAsked bool
}

// ResultOf is what the journal says of the result: all but the state and what was
// found wrong. It is for a result whose record a disk has lost; false when the
// journal has no end.
func ResultOf(acc Accepted, events []Event) (Result, bool) {
	if len(events) == 0 || events[len(events)-1].Ended == nil {
		return Result{}, false
	}
	last := events[len(events)-1]
	r := Result{
		Version: ResultVersion, TaskID: acc.Submission.TaskID, Tenant: acc.Submission.Tenant, GoalSeq: acc.Seq,
		Status: last.Ended.Status, Reason: last.Ended.Reason, Detail: last.Ended.Detail, Trip: last.Ended.Trip, Usage: last.Ended.Usage,
		Left: []Difference{}, EndedAt: last.Time.UTC(), Worker: last.Worker,
	}
	for _, e := range events {
		if e.Observed != nil {
			r.Left, r.LeftTotal, r.StateHash = e.Observed.Left, e.Observed.LeftTotal, e.Observed.StateHash
		}
	}
	if r.Reason == PreconditionFailed {
		r.HTTPStatus = http.StatusPreconditionFailed
	}
	return r, true
}

// Task is the snapshot as clients see it, without its trace.
func (s Snapshot) Task() Task {
	g := s.Submission.Goal
	t := Task{
		ID:          s.Submission.TaskID,
		Status:      Queued,
		Intent:      g.Objective.Intent,
		Environment: g.EnvironmentName(),
		TargetState: g.Objective.TargetState,
		Guardrails:  g.Guardrails,
		AcceptedAt:  s.At.UTC(),
		ExpiresAt:   s.Expires.UTC(),
		Left:        []Difference{},
		WebhookURL:  RedactURL(g.WebhookURL),
		Links:       LinksOf(s.Submission.TaskID),
		CancelAsked: s.CancelAsked,
	}
	decided := 0
	for _, e := range s.Events {
		t.apply(e)
		if e.Type == StepDecided {
			decided = e.Step
		}
		if e.Type == StepRefused && e.Step == decided {
			t.Usage.ToolCalls-- // decided, but the tool took nothing
		}
	}
	if s.Result != nil {
		t.end(*s.Result)
	}
	return t
}

// apply folds one journal entry into the view of a running task.
func (t *Task) apply(e Event) {
	switch e.Type {
	case TaskStarted:
		at, deadline := e.Time.UTC(), e.Started.Deadline.UTC()
		t.Status, t.StartedAt, t.Deadline = Running, &at, &deadline
	case StepDecided:
		t.Usage.Steps = e.Step
		t.Usage.ToolCalls++
		t.Usage.Tokens += e.Decision.Tokens
		t.Usage.Estimated = t.Usage.Estimated || e.Decision.Estimated
	case StepRefused:
		t.Usage.Steps = e.Step
		t.Usage.Tokens += e.Refusal.Tokens
		t.Usage.Estimated = t.Usage.Estimated || e.Refusal.Estimated
	case TaskResumed, StateObserved, StepCompleted, KeyConflict, TaskEnded:
	}
	if e.Observed != nil {
		t.Left, t.LeftTotal, t.StateHash = e.Observed.Left, e.Observed.LeftTotal, e.Observed.StateHash
	}
}

// end lays the result over the view; it is the only source of a terminal state.
func (t *Task) end(r Result) {
	ended := r.EndedAt.UTC()
	t.Status, t.Reason, t.Detail, t.HTTPStatus, t.Problem = r.Status, r.Reason, r.Detail, r.HTTPStatus, r.Problem
	t.EndedAt, t.Usage, t.Trip, t.Checks, t.Effects = &ended, r.Usage, r.Trip, r.Checks, r.Effects
	t.Left, t.LeftTotal, t.StateHash, t.Result = r.Left, r.LeftTotal, r.StateHash, r.State
	if t.Left == nil {
		t.Left = []Difference{}
	}
	if r.StartedAt != nil {
		at := r.StartedAt.UTC()
		t.StartedAt = &at
	}
}

// Trace is the public part of the journal beyond event number after. Notes of
// others have no number; they are part of the whole trace, which after 0 is.
func (s Snapshot) Trace(after int) []Event {
	out := []Event{}
	for _, e := range s.Events {
		if e.N > after || e.N == 0 && after == 0 {
			out = append(out, e.Public())
		}
	}
	return out
}

// LastSteps is the part of the public trace that belongs to the last n steps.
func (s Snapshot) LastSteps(n int) []Event {
	last := 0
	for _, e := range s.Events {
		last = max(last, e.Step)
	}
	out := s.Trace(0)
	return slices.DeleteFunc(out, func(e Event) bool { return e.Step > 0 && e.Step <= last-n })
}

// LinksOf are the links of a task.
func LinksOf(task string) Links {
	self := "/v1/tasks/" + task
	return Links{Self: self, Trace: self + "/trace", Events: self + "/events"}
}

// RedactURL is the URL without user, query and fragment, which may be secrets.
func RedactURL(raw string) string {
	if raw == "" {
		return ""
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" { // an opaque part may hold a password
		return "(unreadable)"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}

package dashboard

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// step is one decision and what came of it.
type step struct {
	N         int
	Tool      string
	Why       string
	Worker    string
	Arguments json.RawMessage
	Key       string
	Replay    goal.Replay
	Tokens    int64
	Estimated bool
	Planner   time.Duration
	From, To  time.Time // of the whole step
	decided   time.Time

	Refusal  *goal.Refusal
	Outcome  *goal.Outcome // nil: in flight, refused, or lost
	Flight   bool          // the call is under way now
	Observed *goal.Observed
	Gained   []string // pointers that match since the step
	Lost     []string // pointers that match no more
}

// resumption is the mark of a take-over.
type resumption struct {
	Since   time.Time // last event of the worker before
	At      time.Time
	Worker  string
	Attempt int
}

func (m resumption) before(s *step) bool { return m.At.Before(s.From) }

// story is a journal, told by steps.
type story struct {
	Steps     []*step
	Marks     []resumption
	Conflicts int       // the key came again with another payload
	Known     bool      // a state was observed
	Worker    string    // the last one
	last      time.Time // time of the last event
}

// newStory reads a journal. now is the end of what is still under way; a task
// that has ended has nothing under way.
func newStory(events []goal.Event, ended bool, now time.Time) story {
	var st story
	byN := map[int]*step{}
	var left map[string]bool
	at := func(e goal.Event) *step {
		s := byN[e.Step]
		if s == nil {
			s = &step{N: e.Step, From: e.Time, To: e.Time}
			byN[e.Step] = s
			st.Steps = append(st.Steps, s)
		}
		s.Worker = e.Worker
		return s
	}
	for _, e := range events {
		switch e.Type {
		case goal.TaskResumed:
			st.Marks = append(st.Marks, resumption{Since: st.last, At: e.Time, Worker: e.Worker, Attempt: e.Started.Attempt})
		case goal.StepDecided:
			at(e).decide(e)
		case goal.StepRefused:
			at(e).refuse(e)
		case goal.StepCompleted:
			at(e).complete(e)
		case goal.KeyConflict:
			st.Conflicts++
		case goal.TaskStarted, goal.StateObserved, goal.TaskEnded:
		}
		st.note(e)
		if e.Observed == nil {
			continue
		}
		if s := byN[e.Step]; s != nil {
			s.Observed = e.Observed
			s.Gained, s.Lost = changes(left, e.Observed)
		}
		left = pointers(e.Observed)
	}
	for _, s := range st.Steps {
		if s.Outcome == nil && s.Refusal == nil {
			s.Flight, s.To = !ended, now
		}
	}
	return st
}

func (st *story) note(e goal.Event) {
	st.Known = st.Known || e.Observed != nil
	if e.Worker != "" {
		st.Worker = e.Worker
	}
	if e.N > 0 { // a note of others does not mean that the worker lived
		st.last = e.Time
	}
}

func (s *step) decide(e goal.Event) {
	d := e.Decision
	s.Tool, s.Arguments, s.Why, s.Key, s.Replay = d.Tool, d.Arguments, d.Why, d.Key, d.Replay
	s.Tokens, s.Estimated, s.Planner = d.Tokens, d.Estimated, time.Duration(d.Took)
	s.decided = e.Time
	s.From, s.To = e.Time.Add(-s.Planner), e.Time
}

func (s *step) refuse(e goal.Event) {
	r := e.Refusal
	s.Tool, s.Arguments, s.Why, s.Refusal = r.Tool, r.Arguments, r.Why, r
	s.Tokens, s.Estimated, s.Planner = r.Tokens, r.Estimated, time.Duration(r.Took)
	s.decided = e.Time
	s.From, s.To = e.Time.Add(-s.Planner), e.Time
}

func (s *step) complete(e goal.Event) {
	s.Outcome = e.Outcome
	s.To = s.decided.Add(time.Duration(e.Outcome.Took))
	if s.decided.IsZero() || e.Time.Before(s.To) || e.Outcome.Repeated {
		s.To = e.Time
	}
}

// bars are the planner's time and the call's. The attempts of a call are drawn
// as bars of equal width: their own times are not recorded.
func (s *step) bars(a axis) []bar {
	var out []bar
	if s.Planner > 0 || s.Refusal != nil {
		b := a.bar(s.From, s.decided, "plan", "decided in "+duration(s.Planner))
		if s.Refusal != nil {
			b.Pattern, b.Title = "cross", b.Title+", refused: "+s.Refusal.Kind
		}
		out = append(out, b)
	}
	if s.Refusal != nil {
		return out
	}
	if s.Outcome == nil {
		class, title := "flight", "call under way for "
		if !s.Flight {
			class, title = "lost", "no outcome is known after "
		}
		return append(out, a.bar(s.decided, s.To, class, title+duration(s.To.Sub(s.decided))))
	}
	return append(out, s.attempts(a)...)
}

func (s *step) attempts(a axis) []bar {
	from := s.To.Add(-time.Duration(s.Outcome.Took))
	if from.Before(s.decided) {
		from = s.decided
	}
	var out []bar
	if s.Outcome.Repeated && from.After(s.decided) {
		lost := a.bar(s.decided, from, "lost", "first call: its outcome was lost with the worker")
		out = append(out, lost)
	}
	n := min(max(s.Outcome.Attempts, 1), 12)
	part := s.To.Sub(from) / time.Duration(n)
	for i := range n {
		begin, last := from.Add(time.Duration(i)*part), i == n-1
		b := a.bar(begin, begin.Add(part), "call", "")
		if n > 1 && !last {
			b = a.bar(begin, begin.Add(part*9/10), "call bad", fmt.Sprintf("attempt %d failed", i+1))
			b.Pattern = "cross"
			out = append(out, b)
			continue
		}
		b.Title = s.Verdict() + " after " + duration(time.Duration(s.Outcome.Took))
		switch {
		case !s.Outcome.OK():
			b.Class, b.Pattern = "call bad", "cross"
		case s.Outcome.Repeated || s.Outcome.Replayed:
			b.Pattern = "hatch"
		}
		out = append(out, b)
	}
	return out
}

// Verdict says in words what came of the step.
func (s *step) Verdict() string {
	switch {
	case s.Refusal != nil:
		return "refused"
	case s.Flight:
		return "in flight"
	case s.Outcome == nil:
		return "outcome unknown"
	case s.Outcome.Kind == goal.CallOK:
		return "ok"
	default:
		return strings.ReplaceAll(string(s.Outcome.Kind), "_", " ")
	}
}

// Bad reports whether the step did not do what it was to do.
func (s *step) Bad() bool {
	return s.Refusal != nil || (s.Outcome != nil && !s.Outcome.OK()) || (s.Outcome == nil && !s.Flight)
}

// Failure is the error text of the step.
func (s *step) Failure() string {
	switch {
	case s.Refusal != nil:
		return s.Refusal.Message
	case s.Outcome != nil && !s.Outcome.OK():
		return s.Outcome.Message
	default:
		return ""
	}
}

// KeyPrefix is enough of the key to find the call in a backend's log.
func (s *step) KeyPrefix() string { return s.Key[:min(len(s.Key), 16)] }

func pointers(o *goal.Observed) map[string]bool {
	out := make(map[string]bool, len(o.Left))
	for _, d := range o.Left {
		out[d.Pointer] = true
	}
	return out
}

// changes are the pointers that came to match and those that match no more.
// A list that was cut is not compared.
func changes(before map[string]bool, o *goal.Observed) (gained, lost []string) {
	if before == nil || o.LeftTotal > len(o.Left) {
		return nil, nil
	}
	now := pointers(o)
	for p := range before {
		if !now[p] {
			gained = append(gained, p)
		}
	}
	for p := range now {
		if !before[p] {
			lost = append(lost, p)
		}
	}
	slices.Sort(gained)
	slices.Sort(lost)
	return gained, lost
}

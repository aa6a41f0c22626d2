package agent

import (
	"context"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Task is one task to drive.
type Task struct {
	goal.Accepted

	History     []goal.Event // its journal so far, in order
	Roles       []string     // the caller's; they decide which tools exist for the task
	Worker      string       // name of this worker, for the trace
	Traceparent string       // W3C trace context for tool calls; empty: the submission's
	// Redelivered says that the task was handed out before. With an empty
	// journal the start is then made durable before anything is read, so that a
	// state source that kills workers is counted as a crash.
	Redelivered bool
}

// Options are settings of Run; the zero value is usable.
type Options struct {
	Clock   func() time.Time // default time.Now; the deadline is counted by it
	Balance Balance          // the tenant's tokens; nil: no balance
	Reserve int64            // tokens held for one planner call; default 4096

	// Over asks the store whether nothing more may be started: the task was
	// cancelled, or has a result already, which settling finds. It is called after
	// the start was journaled, before each step, and its error ends Run. nil:
	// never over.
	Over func(ctx context.Context) (bool, error)
	// Cancel is done once the task is known to be cancelled: reading, waiting
	// and deciding stop at once, a tool call is let finish. nil: never.
	Cancel context.Context
	// Stop is closed when the worker wants its tasks back: Run returns
	// ErrStopped between two steps. nil: never.
	Stop <-chan struct{}

	Hook func(Point) // called at every crash point; nil: not

	MaxAttempts    int           // resumptions without a step between; default 20
	ObserveTries   int           // looks at a state that cannot be read; default 8
	PlannerTries   int           // questions to a planner that is unavailable; default 5
	ObserveTimeout time.Duration // one look; default 10 s
	PlannerTimeout time.Duration // one question; default 60 s
	JournalTimeout time.Duration // one append; default 30 s
	Grace          time.Duration // for the last look after a guardrail tripped; default 5 s
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Hook == nil {
		o.Hook = func(Point) {}
	}
	if o.Cancel == nil {
		o.Cancel = context.Background()
	}
	o.Reserve = orDefault(o.Reserve, 4096)
	o.MaxAttempts = orDefault(o.MaxAttempts, 20)
	o.ObserveTries = orDefault(o.ObserveTries, 8)
	o.PlannerTries = orDefault(o.PlannerTries, 5)
	o.ObserveTimeout = orDefault(o.ObserveTimeout, 10*time.Second)
	o.PlannerTimeout = orDefault(o.PlannerTimeout, time.Minute)
	o.JournalTimeout = orDefault(o.JournalTimeout, 30*time.Second)
	o.Grace = orDefault(o.Grace, 5*time.Second)
	return o
}

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// Point names a place between two effects where a crash must do no harm.
// Crash tests end the process there.
type Point string

// The crash points, in the order of a step.
const (
	BeforeJournalStart    Point = "before-journal-start"
	AfterJournalStart     Point = "after-journal-start"
	BeforeObserve         Point = "before-observe"
	AfterObserve          Point = "after-observe"
	BeforeDecide          Point = "before-decide"
	AfterDecide           Point = "after-decide"
	BeforeJournalDecision Point = "before-journal-decision"
	AfterJournalDecision  Point = "after-journal-decision"
	BeforeCall            Point = "before-call"
	AfterCall             Point = "after-call"
	BeforeJournalOutcome  Point = "before-journal-outcome"
	AfterJournalOutcome   Point = "after-journal-outcome"
)

// Points lists every crash point.
func Points() []Point {
	return []Point{
		BeforeJournalStart, AfterJournalStart, BeforeObserve, AfterObserve, BeforeDecide, AfterDecide,
		BeforeJournalDecision, AfterJournalDecision, BeforeCall, AfterCall, BeforeJournalOutcome, AfterJournalOutcome,
	}
}

package agent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// sight is one observation, compared with the target.
type sight struct {
	Observation

	state    map[string]any
	left     []goal.Difference // all of them
	observed goal.Observed     // as it is journaled
	version  version           // of the pre-conditioned entities
}

func (s *sight) reached() bool { return len(s.left) == 0 }

func (s *sight) event() goal.Event {
	return goal.Event{Type: goal.StateObserved, Observed: &s.observed}
}

// look reads the state once. An error means unknown.
func (r *run) look(ctx context.Context) error {
	r.opts.Hook(BeforeObserve)
	obs, err := r.env.State.Observe(ctx, r.entities)
	r.opts.Hook(AfterObserve)
	if err != nil {
		return fmt.Errorf("observe %s: %w", r.env.Name, err)
	}
	left := Left(r.target, obs.State)
	v := r.guard.versionOf(obs)
	r.fresh = true
	r.seen = &sight{
		Observation: obs, state: obs.State, left: left, version: v,
		observed: goal.Observed{
			Left: cutDifferences(left), LeftTotal: len(left), Leaves: Leaves(r.target),
			StateHash: stateHash(obs.State, r.hashed), Revisions: v.revisions, ETag: v.etag, Guarded: v.digests,
		},
	}
	return nil
}

// lookWithin is look with a clock of its own.
func (r *run) lookWithin(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return r.look(ctx)
}

// promptly is how long an event that is known may wait for the observation
// that could be journaled with it.
const promptly = time.Second

// glance looks once, and not for long. It reports whether the state is known;
// where it is not, somebody looks again with patience.
func (r *run) glance(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(promptly, r.deadline.Sub(r.now())))
	defer cancel()
	defer r.onCancel(cancel)() // why it ended does not matter
	return ctx.Err() == nil && r.look(ctx) == nil
}

// observe looks until the state is known, and journals what is new.
func (r *run) observe(ctx context.Context) error {
	if err := r.lookPatiently(ctx); err != nil {
		return err
	}
	if r.pos.knows(r.seen.observed) {
		return nil
	}
	return r.append(ctx, r.seen.event())
}

// lookPatiently looks until the state is known, the tries are used up, the
// task is cancelled or its deadline passes.
func (r *run) lookPatiently(ctx context.Context) error {
	ctx, cancel := r.interruptible(ctx)
	defer cancel()
	for try := 1; ; try++ {
		err := r.lookWithin(ctx, r.opts.ObserveTimeout)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if try >= r.opts.ObserveTries {
			return failed(goal.DependencyUnavailable, fmt.Sprintf("the state could not be read in %d tries: %v", try, err))
		}
		if err := pause(ctx, try, 0); err != nil {
			return err
		}
	}
}

// knows reports whether an observation would add nothing to the journal.
func (p *position) knows(o goal.Observed) bool {
	old := p.observed
	return old != nil && p.mine == nil && p.open == nil && old.StateHash == o.StateHash && old.LeftTotal == o.LeftTotal &&
		old.ETag == o.ETag && maps.Equal(old.Guarded, o.Guarded) && maps.Equal(old.Revisions, o.Revisions)
}

// lastLook observes once more before the task ends without success, on a grace
// of its own, since the deadline may be what ended it. Only what changed the
// verdict is journaled: the result carries the rest.
func (r *run) lastLook(ctx context.Context, end *ending) error {
	graceful, cancel := context.WithTimeout(ctx, r.opts.Grace)
	defer cancel()
	err := r.look(graceful)
	for try := 1; err != nil && graceful.Err() == nil; try++ {
		if pause(graceful, try, 0) == nil {
			err = r.look(graceful)
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		end.detail += "; the state could not be observed once more"
		return end
	case !r.seen.reached():
		return end
	}
	if len(r.pos.steps) == 0 {
		if checks := Check(r.target, r.pre, r.seen.Observation); len(checks) > 0 {
			return end
		}
	}
	if err := r.append(ctx, r.seen.event()); err != nil {
		return err
	}
	return reached()
}

// conclude journals how a step went, together with the state after it where
// that is known at once; otherwise the step first.
func (r *run) conclude(ctx context.Context, e goal.Event) error {
	r.fresh = false
	events := []goal.Event{e}
	if r.glance(ctx) {
		if e.Type == goal.StepCompleted {
			events[0].Observed = &r.seen.observed
		} else {
			events = append(events, r.seen.event())
		}
	}
	r.opts.Hook(BeforeJournalOutcome)
	// A known outcome is written also when the worker is told to stop: it saves
	// the repetition of the call, and the fence keeps a superseded worker out.
	err := r.append(context.WithoutCancel(ctx), events...)
	r.opts.Hook(AfterJournalOutcome)
	return err
}

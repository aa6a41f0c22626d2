package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Load reads everything about a task, or goal.ErrNotFound once its retention
// has ended. The result is read after the journal: a snapshot that shows the
// end in its journal has the result, and a result that it shows is durable.
// Notes have number 0 and are merged into the journal by their time.
func (s *Store) Load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	if checkTask(tenant, task) != nil {
		return goal.Snapshot{}, fmt.Errorf("load task: %w", goal.ErrNotFound)
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	snap, err := s.load(ctx, tenant, task)
	if err != nil {
		return goal.Snapshot{}, fmt.Errorf("load %s: %w", task, err)
	}
	return snap, nil
}

func (s *Store) load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	r, err := s.get(ctx, goal.GoalsStream(tenant), goal.QueueSubject(tenant, task))
	if err != nil {
		return goal.Snapshot{}, err
	}
	var snap goal.Snapshot
	if snap.Accepted, err = s.accepted(r); err != nil {
		return goal.Snapshot{}, err
	}
	if snap.CancelAsked, err = s.CancelAsked(ctx, snap.Accepted); err != nil {
		return goal.Snapshot{}, err
	}
	notes, err := s.readNotes(ctx, snap.Accepted)
	if err != nil {
		return goal.Snapshot{}, err
	}
	journal, err := s.readJournal(ctx, snap.Accepted)
	if err != nil {
		return goal.Snapshot{}, err
	}
	result, record, err := s.result(ctx, snap.Accepted)
	switch {
	case errors.Is(err, goal.ErrNotFound):
		// No end without a result, unless a disk has lost it.
		if lost, ok := goal.ResultOf(snap.Accepted, journal.events); ok {
			snap.Result = &lost
		}
	case err != nil:
		return goal.Snapshot{}, err
	default:
		snap.Result = &result
		if err := s.durableRecord(ctx, record); err != nil {
			return goal.Snapshot{}, err
		}
		if !journal.ended {
			// It ended between the two reads, most likely.
			if journal, err = s.readJournal(ctx, snap.Accepted); err != nil {
				return goal.Snapshot{}, err
			}
		}
	}
	snap.Events = mergeNotes(journal.events, notes)
	return snap, nil
}

// mergeNotes puts each note before the first entry of the journal that is
// younger. The order of the journal does not change.
func mergeNotes(journal, notes []goal.Event) []goal.Event {
	if len(notes) == 0 {
		return journal
	}
	out := make([]goal.Event, 0, len(journal)+len(notes))
	for _, e := range journal {
		for len(notes) > 0 && notes[0].Time.Before(e.Time) {
			out, notes = append(out, notes[0]), notes[1:]
		}
		out = append(out, e)
	}
	return append(out, notes...)
}

// resultSubject is where a task's result lies.
func resultSubject(acc goal.Accepted) string {
	return bucketSubject(goal.ResultsBucket, digestKey(acc.Submission.Tenant, acc.Submission.TaskID))
}

// getOf is get of a record of this incarnation of the task. With
// goal.ErrNotFound it returns the record of another one, if that is there.
func (s *Store) getOf(ctx context.Context, acc goal.Accepted, stream, subject string) (Record, error) {
	r, err := s.get(ctx, stream, subject)
	if err == nil && !ofGoal(r, acc) && s.conf.Replicas > 1 {
		// A replica that is behind may still show the earlier goal's.
		r, err = s.getFresh(ctx, stream, subject)
	}
	if err == nil && !ofGoal(r, acc) {
		err = goal.ErrNotFound
	}
	return r, err
}

// result is the task's result, or goal.ErrNotFound: also when what is there is
// of an earlier goal of this id. The record is returned in both cases.
func (s *Store) result(ctx context.Context, acc goal.Accepted) (goal.Result, Record, error) {
	r, err := s.getOf(ctx, acc, bucketStream(goal.ResultsBucket), resultSubject(acc))
	if err != nil {
		return goal.Result{}, r, fmt.Errorf("result: %w", err)
	}
	var result goal.Result
	if err := json.Unmarshal(r.Data, &result); err != nil {
		return goal.Result{}, r, fmt.Errorf("decode result: %w", err)
	}
	if result.Version != goal.ResultVersion {
		return goal.Result{}, r, fmt.Errorf("decode result: %w: %d", errVersion, result.Version)
	}
	return result, r, nil
}

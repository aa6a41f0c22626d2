package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Load reads everything about a task, or goal.ErrNotFound once its retention
// has ended. A snapshot that shows the end in its journal has the result; the
// goal and a result that it shows are durable.
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

// Trace reads the events of one goal as Load does, and nothing else. seq is the
// goal's sequence in its tenant's stream; whether it is still retained is not
// looked at. No events are no error.
func (s *Store) Trace(ctx context.Context, tenant, task string, seq uint64) ([]goal.Event, error) {
	if checkTask(tenant, task) != nil {
		return nil, fmt.Errorf("trace of a task: %w", goal.ErrNotFound)
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	acc := goal.Accepted{Submission: goal.Submission{Tenant: tenant, TaskID: task}, Seq: seq}
	read, err := s.round(ctx,
		batchQuestion(goal.EventsStream, goal.EventsFilter(tenant, task), 1),
		batchQuestion(goal.EventsStream, goal.NoteSubject(tenant, task), 1),
	)
	if err != nil {
		return nil, fmt.Errorf("trace of %s: %w", task, err)
	}
	journal, notes, err := s.trace(ctx, acc, read[0], read[1])
	if err != nil {
		return nil, fmt.Errorf("trace of %s: %w", task, err)
	}
	return mergeNotes(journal.events, notes), nil
}

// trace completes the answers about a task's journal and its notes.
func (s *Store) trace(ctx context.Context, acc goal.Accepted, events, notes answer) (journalRead, []goal.Event, error) {
	journal, err := s.journalAnswer(ctx, acc, events)
	if err != nil {
		return journalRead{}, nil, err
	}
	noted, err := notesOf(acc, notes.records)
	return journal, noted, err
}

// journalAnswer completes the answer about a task's journal.
func (s *Store) journalAnswer(ctx context.Context, acc goal.Accepted, events answer) (journalRead, error) {
	filter := goal.EventsFilter(acc.Submission.Tenant, acc.Submission.TaskID)
	records, err := s.readRest(ctx, goal.EventsStream, filter, events.records, events.more)
	if err != nil {
		return journalRead{}, err
	}
	return journalOf(acc, records)
}

// load asks for everything at once and then for what does not fit together.
func (s *Store) load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	goals, results, cancels := goal.GoalsStream(tenant), bucketStream(goal.ResultsBucket), bucketStream(goal.CancelsBucket)
	read, err := s.round(ctx,
		lastQuestion(goals, goal.QueueSubject(tenant, task)),
		lastQuestion(results, resultSubject(tenant, task)),
		lastQuestion(cancels, cancelSubject(tenant, task)),
		batchQuestion(goal.EventsStream, goal.EventsFilter(tenant, task), 1),
		batchQuestion(goal.EventsStream, goal.NoteSubject(tenant, task), 1),
	)
	if err != nil {
		return goal.Snapshot{}, err
	}
	queued, err := s.confirmed(ctx, read[0], goals, goal.QueueSubject(tenant, task))
	if err != nil {
		return goal.Snapshot{}, err
	}
	var snap goal.Snapshot
	if snap.Accepted, err = s.accepted(queued); err != nil {
		return goal.Snapshot{}, err
	}
	if err := s.durableRecord(ctx, goals, queued); err != nil {
		return goal.Snapshot{}, err
	}
	acc := snap.Accepted
	_, snap.CancelAsked, err = s.answered(ctx, acc, read[2], cancels, cancelSubject(tenant, task))
	if err != nil {
		return goal.Snapshot{}, fmt.Errorf("cancel mark: %w", err)
	}
	journal, notes, err := s.trace(ctx, acc, read[3], read[4])
	if err != nil {
		return goal.Snapshot{}, err
	}
	record, found, err := s.answered(ctx, acc, read[1], results, resultSubject(tenant, task))
	if err != nil {
		return goal.Snapshot{}, fmt.Errorf("result: %w", err)
	}
	if snap.Result, journal, err = s.outcome(ctx, acc, record, found, journal); err != nil {
		return goal.Snapshot{}, err
	}
	snap.Events = mergeNotes(journal.events, notes)
	return snap, nil
}

// outcome makes the result and the journal of a task fit together.
func (s *Store) outcome(ctx context.Context, acc goal.Accepted, record Record, found bool, journal journalRead) (*goal.Result, journalRead, error) {
	var (
		result goal.Result
		err    error
	)
	switch {
	case found:
		result, err = decodeResult(record)
	case journal.ended:
		// No end without a result: the journal was read later, most likely.
		if result, record, err = s.result(ctx, acc); errors.Is(err, goal.ErrNotFound) {
			// A disk has lost it.
			if lost, ok := goal.ResultOf(acc, journal.events); ok {
				return &lost, journal, nil
			}
			return nil, journal, nil
		}
	default:
		return nil, journal, nil
	}
	if err != nil {
		return nil, journal, err
	}
	if err := s.durableRecord(ctx, bucketStream(goal.ResultsBucket), record); err != nil {
		return nil, journal, err
	}
	if !journal.ended { // the result was read later, most likely
		journal, err = s.readJournal(ctx, acc)
	}
	return &result, journal, err
}

// confirmed is the record of an answer to a lastQuestion, or goal.ErrNotFound by
// the word of the leader, also while the network is cut.
func (s *Store) confirmed(ctx context.Context, a answer, stream, subject string) (Record, error) {
	if len(a.records) > 0 {
		return present(a.records[0], nil)
	}
	if s.conf.Replicas > 1 {
		return s.getSure(ctx, stream, subject)
	}
	return Record{}, fmt.Errorf("read %s: %w", subject, goal.ErrNotFound)
}

// answered is the record in an answer to a lastQuestion, if there is one of this
// incarnation of the task.
func (s *Store) answered(ctx context.Context, acc goal.Accepted, a answer, stream, subject string) (Record, bool, error) {
	r, err := s.confirmed(ctx, a, stream, subject)
	r, err = s.ofThis(ctx, acc, r, err, stream, subject)
	if errors.Is(err, goal.ErrNotFound) {
		return Record{}, false, nil
	}
	return r, err == nil, err
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
func resultSubject(tenant, task string) string {
	return bucketSubject(goal.ResultsBucket, digestKey(tenant, task))
}

// getOf is get of a record of this incarnation of the task. With
// goal.ErrNotFound it returns the record of another one, if that is there.
func (s *Store) getOf(ctx context.Context, acc goal.Accepted, stream, subject string) (Record, error) {
	r, err := s.get(ctx, stream, subject)
	return s.ofThis(ctx, acc, r, err, stream, subject)
}

// ofThis is getOf for a record that was read.
func (s *Store) ofThis(ctx context.Context, acc goal.Accepted, r Record, err error, stream, subject string) (Record, error) {
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
	r, err := s.getOf(ctx, acc, bucketStream(goal.ResultsBucket), resultSubject(acc.Submission.Tenant, acc.Submission.TaskID))
	if err != nil {
		return goal.Result{}, r, fmt.Errorf("result: %w", err)
	}
	result, err := decodeResult(r)
	return result, r, err
}

func decodeResult(r Record) (goal.Result, error) {
	var result goal.Result
	if err := goal.Unmarshal(r.Data, &result); err != nil {
		return goal.Result{}, fmt.Errorf("decode result: %w", err)
	}
	if result.Version != goal.ResultVersion {
		return goal.Result{}, fmt.Errorf("decode result: %w: %d", errVersion, result.Version)
	}
	return result, nil
}

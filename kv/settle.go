package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Settle ends a task: it creates the result, once and for all, waits until that
// is durable, and appends the terminal batch with the event and the frozen
// webhook. It returns the result that won, which is another's when another was
// first; the rest is then completed from that one. It may be repeated by
// anybody at any time after any error.
//
// n is the number of the last event that the caller knows: 0 for a task that
// has not started. When there is no result yet and the journal has gone beyond
// n, the caller was taken over: goal.ErrFenced, and nothing is written.
//
// A result that is larger than the server takes is stored without its State.
func (s *Store) Settle(ctx context.Context, acc goal.Accepted, r goal.Result, n int) (goal.Result, error) {
	return s.settle(ctx, acc, r, n, nil)
}

// ownWord is for how long after its own last append, or after it was read, a
// journal is settled without another look. Who takes a task over begins with an
// append, and whoever looks may be overtaken by it just so: the create-only
// result and the fenced end are right either way. The look keeps a worker that
// slept from ending what others are at.
const ownWord = time.Second

// Settle is Store.Settle for the task of this journal. It does not look at a
// journal that it has just appended to.
func (j *Journal) Settle(ctx context.Context, r goal.Result) (goal.Result, error) {
	if time.Since(j.stood) < ownWord && !j.lost {
		return j.s.settle(ctx, j.acc, r, j.at.n, &j.at)
	}
	return j.s.settle(ctx, j.acc, r, j.at.n, nil)
}

// settle is Settle with the journal, where it is known.
func (s *Store) settle(ctx context.Context, acc goal.Accepted, r goal.Result, n int, known *journalRead) (goal.Result, error) {
	if !r.Status.Terminal() {
		return goal.Result{}, fmt.Errorf("settle %s: state %q is not terminal", acc.Submission.TaskID, r.Status)
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	r.Version, r.TaskID, r.Tenant, r.GoalSeq = goal.ResultVersion, acc.Submission.TaskID, acc.Submission.Tenant, acc.Seq
	winner, err := s.resolve(ctx, acc, r, n, known)
	if err != nil {
		return goal.Result{}, fmt.Errorf("settle %s: %w", acc.Submission.TaskID, err)
	}
	return winner, nil
}

func (s *Store) resolve(ctx context.Context, acc goal.Accepted, r goal.Result, n int, known *journalRead) (goal.Result, error) {
	// The journal first: one that has ended has a result.
	journal, err := s.journalToEnd(ctx, acc, known)
	if err != nil {
		return goal.Result{}, err
	}
	winner, err := s.decide(ctx, acc, r, journal.n-n)
	if err != nil {
		return goal.Result{}, err
	}
	if err := s.durable(ctx); err != nil {
		return goal.Result{}, err
	}
	return winner, s.end(ctx, acc, winner, journal)
}

// journalToEnd reads the journal where it is not known; its events are needed
// for the webhook only.
func (s *Store) journalToEnd(ctx context.Context, acc goal.Accepted, known *journalRead) (journalRead, error) {
	switch {
	case known != nil:
		return *known, nil
	case acc.Submission.Goal.WebhookURL != "":
		return s.readJournal(ctx, acc)
	default:
		return s.readJournalEnd(ctx, acc)
	}
}

// decide creates the result, or reads the one that was first. The caller must
// not be behind the journal to create one.
func (s *Store) decide(ctx context.Context, acc goal.Accepted, r goal.Result, behind int) (goal.Result, error) {
	if behind != 0 {
		have, _, err := s.result(ctx, acc)
		if errors.Is(err, goal.ErrNotFound) {
			err = fmt.Errorf("the journal is %d events ahead: %w", behind, goal.ErrFenced)
		}
		return have, err
	}
	data, err := s.encodeResult(&r)
	if err != nil {
		return goal.Result{}, err
	}
	return s.createResult(ctx, acc, r, data)
}

// createResult replaces nothing but the result of an earlier goal of this id.
func (s *Store) createResult(ctx context.Context, acc goal.Accepted, r goal.Result, data []byte) (goal.Result, error) {
	w := write{subject: resultSubject(acc.Submission.Tenant, acc.Submission.TaskID), data: data, ttl: ttl(acc), goalSeq: acc.Seq}
	for {
		_, err := s.createRecord(ctx, w)
		if !errors.Is(err, goal.ErrExists) {
			return r, err
		}
		have, record, err := s.result(ctx, acc)
		if !errors.Is(err, goal.ErrNotFound) {
			return have, err
		}
		if record.Seq == 0 {
			continue // it expired in between
		}
		if err := s.current(ctx, acc); err != nil {
			return goal.Result{}, err
		}
		_, err = s.updateRecord(ctx, w, record.Seq)
		if !errors.Is(err, goal.ErrFenced) {
			return r, err
		}
	}
}

// encodeResult encodes r, without its State when it would be too large.
func (s *Store) encodeResult(r *goal.Result) ([]byte, error) {
	data, err := goal.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(data)+2*headerRoom > int(s.nc.MaxPayload()) {
		r.State = nil
		return goal.Marshal(r)
	}
	return data, nil
}

// end appends the terminal batch unless it is there. It follows whatever the
// journal holds by then: its number is the last, and nothing comes after it.
func (s *Store) end(ctx context.Context, acc goal.Accepted, r goal.Result, journal journalRead) error {
	writer := newNonce()
	for attempt := 0; ; attempt++ {
		if journal.ended {
			return s.durableRecord(ctx, goal.EventsStream, journal.last)
		}
		batch, err := terminalBatch(acc, journal, r)
		if err != nil {
			return err
		}
		_, err = s.appendBatch(ctx, acc, batch, goal.EndSubject, writer, journal.last.Seq)
		switch {
		case err == nil:
			return s.durable(ctx)
		case !errors.Is(err, goal.ErrFenced):
			return err
		case !pause(ctx, attempt):
			return unavailable(err)
		}
		// Somebody has appended since the journal was read.
		if journal, err = s.readJournal(ctx, acc); err != nil {
			return err
		}
	}
}

// terminalBatch is made from records alone: whoever makes it, it is the same.
func terminalBatch(acc goal.Accepted, journal journalRead, r goal.Result) (goal.Batch, error) {
	ended := goal.Event{
		N: journal.n + 1, Type: goal.TaskEnded, Time: r.EndedAt.UTC(), Worker: r.Worker,
		Ended: &goal.Ended{Status: r.Status, Reason: r.Reason, Detail: r.Detail, Trip: r.Trip, Usage: r.Usage},
	}
	hook, err := goal.NewWebhook(goal.Snapshot{Accepted: acc, Events: journal.events, Result: &r})
	if err != nil {
		return goal.Batch{}, fmt.Errorf("webhook: %w", err)
	}
	return goal.Batch{Events: []goal.Event{ended}, Webhook: hook}, nil
}

package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// journalRead is a task's journal as it was read.
type journalRead struct {
	events  []goal.Event
	last    Record // the last message on the filter, of whatever incarnation
	ended   bool   // the terminal batch is there
	foreign bool   // there are messages of another incarnation of the task
	n       int    // number of the last event
}

// readJournal reads the journal by the word of the leader. Messages of another
// incarnation are left out, but count for the fence.
func (s *Store) readJournal(ctx context.Context, acc goal.Accepted) (journalRead, error) {
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	records, err := s.readAll(ctx, goal.EventsStream, goal.EventsFilter(tenant, task))
	if err != nil {
		return journalRead{}, err
	}
	return journalOf(acc, records)
}

func journalOf(acc goal.Accepted, records []Record) (journalRead, error) {
	var j journalRead
	for _, r := range records {
		j.last = r
		if !ofGoal(r, acc) {
			j.foreign = true
			continue
		}
		b, err := decodeBatch(r)
		if err != nil {
			return journalRead{}, err
		}
		j.events = append(j.events, b.Events...)
		j.ended = j.ended || r.Subject == goal.EndSubject(acc.Submission.Tenant, acc.Submission.TaskID)
	}
	j.n = len(j.events)
	return j, nil
}

// readJournalEnd is readJournal without the events where the last record alone
// says how far the journal goes.
func (s *Store) readJournalEnd(ctx context.Context, acc goal.Accepted) (journalRead, error) {
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	last, err := s.lastOf(ctx, goal.EventsStream, goal.EventsFilter(tenant, task))
	if errors.Is(err, goal.ErrNotFound) {
		return journalRead{}, nil
	}
	if err != nil {
		return journalRead{}, err
	}
	if !ofGoal(last, acc) {
		return s.readJournal(ctx, acc)
	}
	b, err := decodeBatch(last)
	if err != nil {
		return journalRead{}, err
	}
	if len(b.Events) == 0 {
		return s.readJournal(ctx, acc)
	}
	return journalRead{
		last: last, n: b.Events[len(b.Events)-1].N, ended: last.Subject == goal.EndSubject(tenant, task),
	}, nil
}

// ofGoal reports whether the record belongs to this incarnation of the task.
func ofGoal(r Record, acc goal.Accepted) bool {
	return r.Header.Get(goalHeader) == strconv.FormatUint(acc.Seq, 10)
}

func decodeBatch(r Record) (goal.Batch, error) {
	var b goal.Batch
	if err := goal.Unmarshal(r.Data, &b); err != nil {
		return goal.Batch{}, fmt.Errorf("decode %s: %w", r.Subject, err)
	}
	if b.Version != goal.BatchVersion {
		return goal.Batch{}, fmt.Errorf("decode %s: %w: %d", r.Subject, errVersion, b.Version)
	}
	return b, nil
}

// ttl is how long a record of the task is kept: to the end of the goal's
// retention and a margin beyond.
func ttl(acc goal.Accepted) time.Duration { return max(time.Until(acc.Expires), 0) + outlive }

// current reports with goal.ErrFenced that acc is not the task's goal any more.
func (s *Store) current(ctx context.Context, acc goal.Accepted) error {
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	r, err := s.getFresh(ctx, goal.GoalsStream(tenant), goal.QueueSubject(tenant, task))
	if errors.Is(err, goal.ErrNotFound) || err == nil && r.Seq != acc.Seq {
		return fmt.Errorf("goal %d of %s is gone: %w", acc.Seq, task, goal.ErrFenced)
	}
	return err
}

// Journal appends to one task's journal. It is not for concurrent use.
type Journal struct {
	s     *Store
	acc   goal.Accepted
	id    string // tells this journal's writes from those of other workers
	at    journalRead
	lost  bool      // another has appended, or the outcome of an append is another's
	stood time.Time // at is what the store held then; zero: nobody has looked
}

// OpenJournal reads a task's journal, and its result if there is one, and
// returns a Journal that goes on from there. Whoever opened it before and appends
// later than this one's first append is fenced. What is returned is durable.
func (s *Store) OpenJournal(ctx context.Context, acc goal.Accepted) (*Journal, []goal.Event, *goal.Result, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	j, result, err := s.openJournal(ctx, acc)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open journal of %s: %w", acc.Submission.TaskID, err)
	}
	return j, j.at.events, result, nil
}

func (s *Store) openJournal(ctx context.Context, acc goal.Accepted) (*Journal, *goal.Result, error) {
	began := time.Now()
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	results := bucketStream(goal.ResultsBucket)
	read, err := s.round(ctx,
		batchQuestion(goal.EventsStream, goal.EventsFilter(tenant, task), 1),
		lastQuestion(results, resultSubject(tenant, task)),
	)
	if err != nil {
		return nil, nil, err
	}
	at, err := s.journalAnswer(ctx, acc, read[0])
	if err != nil {
		return nil, nil, err
	}
	if at.foreign {
		if err := s.current(ctx, acc); err != nil {
			return nil, nil, err
		}
	}
	if err := s.durableRecord(ctx, goal.EventsStream, at.last); err != nil {
		return nil, nil, err
	}
	record, found, err := s.answered(ctx, acc, read[1], results, resultSubject(tenant, task))
	if err != nil {
		return nil, nil, err
	}
	result, at, err := s.outcome(ctx, acc, record, found, at)
	if err != nil {
		return nil, nil, err
	}
	return &Journal{s: s, acc: acc, id: newNonce(), at: at, stood: began}, result, nil
}

// BeginJournal is OpenJournal for a goal that has most likely never been taken:
// it does not look. Its first append finds out: goal.ErrFenced, and nothing is
// stored, when the task has a journal already; then open it.
func (s *Store) BeginJournal(acc goal.Accepted) *Journal {
	return &Journal{s: s, acc: acc, id: newNonce()}
}

// N is the number of the last event of the journal.
func (j *Journal) N() int { return j.at.n }

// Append stores the events as one record, numbered from N()+1, and returns when
// they are durable. goal.ErrFenced: another has appended, or the task has ended,
// and so will every later append; the caller stops at once. After
// goal.ErrUnavailable the same events may be appended again, and are stored
// once. goal.ErrTooLarge: nothing was sent.
func (j *Journal) Append(ctx context.Context, events ...goal.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := j.append(ctx, events); err != nil {
		return fmt.Errorf("append to %s: %w", j.acc.Submission.TaskID, err)
	}
	return nil
}

func (j *Journal) append(ctx context.Context, events []goal.Event) error {
	if j.lost || j.at.ended {
		return goal.ErrFenced
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	events = slices.Clone(events)
	for i := range events {
		events[i].N = j.at.n + 1 + i
	}
	seq, err := j.s.appendBatch(ctx, j.acc, goal.Batch{Events: events}, goal.LogSubject, j.id, j.at.last.Seq)
	if errors.Is(err, goal.ErrFenced) {
		j.lost = true
	}
	if err != nil {
		return err
	}
	// The journal moves on only when the append is known to be durable: the
	// same events again then make the same record, which is recognised.
	if err := j.s.durable(ctx); err != nil {
		return err
	}
	j.at.last, j.at.n, j.stood = Record{Seq: seq}, j.at.n+len(events), began
	j.at.events = append(j.at.events, events...)
	return nil
}

// appendBatch appends a batch that must follow the message of sequence last.
// The log and the end are fenced on the same filter: a replicated stream checks
// writes in flight by that name, so only then do they exclude one another.
func (s *Store) appendBatch(ctx context.Context, acc goal.Accepted, b goal.Batch, subject func(tenant, task string) string, writer string, last uint64) (uint64, error) {
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	b.Version = goal.BatchVersion
	data, err := goal.Marshal(b)
	if err != nil {
		return 0, err
	}
	w := write{
		subject: subject(tenant, task), data: data, ttl: ttl(acc), goalSeq: acc.Seq,
		nonce: digestKey(writer, string(data)), fenced: true, filter: goal.EventsFilter(tenant, task), last: last,
	}
	for {
		ack, err := s.send(ctx, w)
		if err == nil {
			return ack.Sequence, nil
		}
		lost, ok := errors.AsType[*lostError](err)
		switch {
		case !ok:
			return 0, err
		case lost.record.Seq >= w.last:
			return 0, goal.ErrFenced
		}
		// Nobody has appended, but what was last has expired: the journal of an
		// earlier goal of this id.
		w.last = lost.record.Seq
	}
}

// maxNotes bounds the notes of a task: whoever repeats a conflict does not grow
// the store.
const maxNotes = 100

// Note records what others than the worker have to tell about a task, beside
// its journal: a note never fences the worker. Notes have no number. The first
// 100 of a task are kept; later ones are dropped without an error. A note that
// is repeated after an error may be stored twice.
func (s *Store) Note(ctx context.Context, acc goal.Accepted, e goal.Event) error {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	have, err := s.readNotes(ctx, acc)
	if err != nil {
		return err
	}
	if len(have) >= maxNotes {
		return nil
	}
	e.N = 0
	data, err := goal.Marshal(goal.Batch{Version: goal.BatchVersion, Events: []goal.Event{e}})
	if err != nil {
		return fmt.Errorf("note on %s: %w", task, err)
	}
	_, _, err = s.putRecord(ctx, write{subject: goal.NoteSubject(tenant, task), data: data, ttl: ttl(acc), goalSeq: acc.Seq})
	return err
}

// readNotes reads the task's notes from any replica: they may be a moment old.
func (s *Store) readNotes(ctx context.Context, acc goal.Accepted) ([]goal.Event, error) {
	subject := goal.NoteSubject(acc.Submission.Tenant, acc.Submission.TaskID)
	records, _, err := s.readPart(ctx, goal.EventsStream, subject, 1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject, err)
	}
	return notesOf(acc, records)
}

func notesOf(acc goal.Accepted, records []Record) ([]goal.Event, error) {
	var notes []goal.Event
	for _, r := range records {
		if !ofGoal(r, acc) {
			continue
		}
		b, err := decodeBatch(r)
		if err != nil {
			return nil, err
		}
		notes = append(notes, b.Events...)
	}
	return notes, nil
}

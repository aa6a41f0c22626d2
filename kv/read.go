package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// get is the last record of a literal subject, or goal.ErrNotFound. It is read
// from any replica; when that has none, the leader is asked. It may be older
// than a write that has just been acknowledged on three replicas: whoever
// compares and sets on it is told so by the write.
func (s *Store) get(ctx context.Context, stream, subject string) (Record, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	r, err := s.read(ctx, func(ctx context.Context) (Record, error) { return s.directLast(ctx, stream, subject) })
	if errors.Is(err, goal.ErrNotFound) && s.conf.Replicas > 1 {
		r, err = s.leaderLast(ctx, stream, subject)
	}
	return present(r, err)
}

// getFresh is get by the word of the leader.
func (s *Store) getFresh(ctx context.Context, stream, subject string) (Record, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	return present(s.leaderLast(ctx, stream, subject))
}

// present hides the mark of a removed key.
func present(r Record, err error) (Record, error) {
	if err == nil && r.removed() {
		return Record{}, fmt.Errorf("read %s: %w", r.Subject, goal.ErrNotFound)
	}
	return r, err
}

// leaderLast is the last message that matches filter, marks of removed keys
// included, by the word of the stream's leader.
func (s *Store) leaderLast(ctx context.Context, stream, filter string) (Record, error) {
	return s.read(ctx, func(ctx context.Context) (Record, error) {
		return s.leaderGet(ctx, stream, msgRequest{LastFor: filter})
	})
}

// read repeats a read that got no answer until ctx ends.
func (s *Store) read(ctx context.Context, once func(context.Context) (Record, error)) (Record, error) {
	for attempt := 0; ; attempt++ {
		r, err := once(ctx)
		if err == nil || errors.Is(err, goal.ErrNotFound) {
			return r, err
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return Record{}, fault(err)
		}
	}
}

// msgRequest is the body of the server's get-message calls.
type msgRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	Batch   int    `json:"batch,omitempty"`
}

func (q msgRequest) encode() []byte {
	body, _ := json.Marshal(q) // strings and numbers
	return body
}

// directLast asks any replica for the last message of a literal subject.
func (s *Store) directLast(ctx context.Context, stream, subject string) (Record, error) {
	return s.direct(ctx, lastQuestion(stream, subject))
}

// direct asks one question that is no batch.
func (s *Store) direct(ctx context.Context, q question) (Record, error) {
	m, err := s.request(ctx, &nats.Msg{Subject: q.subject, Data: q.body})
	if err != nil {
		return Record{}, fmt.Errorf("read %s: %w", q.about, err)
	}
	r, err := directRecord(m)
	if err != nil {
		return Record{}, fmt.Errorf("read %s: %w", q.about, err)
	}
	return r, nil
}

// leaderGet asks the stream's leader.
func (s *Store) leaderGet(ctx context.Context, stream string, q msgRequest) (Record, error) {
	m, err := s.request(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: q.encode()})
	if err != nil {
		return Record{}, fmt.Errorf("read %s: %w", stream, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return Record{}, fmt.Errorf("decode read of %s: %w", stream, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return Record{}, fmt.Errorf("read %s %s%s: %w", stream, q.LastFor, q.NextFor, goal.ErrNotFound)
	case answer.Error != nil:
		return Record{}, fmt.Errorf("read %s: %w", stream, answer.Error)
	case answer.Message == nil:
		return Record{}, fmt.Errorf("read %s: the answer holds no message", stream)
	}
	got := answer.Message
	r := Record{Subject: got.Subject, Data: got.Data, Seq: got.Seq, Time: got.Time}
	if len(got.Header) > 0 {
		if r.Header, err = nats.DecodeHeadersMsg(got.Header); err != nil {
			return Record{}, fmt.Errorf("decode headers of %s: %w", got.Subject, err)
		}
	}
	return r, nil
}

// directRecord is the record in the answer to a direct get.
func directRecord(m *nats.Msg) (Record, error) {
	if len(m.Data) == 0 {
		switch status := m.Header.Get("Status"); status {
		case "":
		case "404":
			return Record{}, goal.ErrNotFound
		case "503":
			return Record{}, nats.ErrNoResponders
		default:
			return Record{}, fmt.Errorf("status %s %s", status, m.Header.Get("Description"))
		}
	}
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("sequence of the answer: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return Record{}, fmt.Errorf("time of the answer: %w", err)
	}
	return Record{Subject: m.Header.Get(jetstream.SubjectHeader), Data: m.Data, Seq: seq, Time: at, Header: m.Header}, nil
}

// lastOf is the last record that matches filter, which may have wildcards, as
// the leader has it, or goal.ErrNotFound. It costs much less than reading all.
func (s *Store) lastOf(ctx context.Context, stream, filter string) (Record, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if s.conf.Replicas > 1 {
		return s.leaderLast(ctx, stream, filter)
	}
	return s.read(ctx, func(ctx context.Context) (Record, error) { return s.direct(ctx, lastOfQuestion(stream, filter)) })
}

// readAll is every record that matches filter, in the order of the stream, as
// the leader has them: one round trip for most tasks, and on replicated
// streams a second one that looks whether the replica was behind.
func (s *Store) readAll(ctx context.Context, stream, filter string) ([]Record, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	part, more, err := s.readPart(ctx, stream, filter, 1)
	if err != nil {
		return nil, fmt.Errorf("read all %s: %w", filter, err)
	}
	return s.readRest(ctx, stream, filter, part, more)
}

// readRest completes readAll from its first batch.
func (s *Store) readRest(ctx context.Context, stream, filter string, all []Record, more bool) ([]Record, error) {
	next := func() uint64 {
		if len(all) == 0 {
			return 1
		}
		return all[len(all)-1].Seq + 1
	}
	for more {
		var (
			part []Record
			err  error
		)
		if part, more, err = s.readPart(ctx, stream, filter, next()); err != nil {
			return nil, fmt.Errorf("read all %s: %w", filter, err)
		}
		all = append(all, part...)
	}
	if s.conf.Replicas == 1 {
		return all, nil
	}
	return s.catchUp(ctx, stream, filter, next(), all)
}

// catchUp appends what the leader holds beyond the records in all.
func (s *Store) catchUp(ctx context.Context, stream, filter string, from uint64, all []Record) ([]Record, error) {
	last, err := s.leaderLast(ctx, stream, filter)
	if errors.Is(err, goal.ErrNotFound) {
		return all, nil
	}
	for err == nil && from <= last.Seq {
		var r Record
		r, err = s.read(ctx, func(ctx context.Context) (Record, error) {
			return s.leaderGet(ctx, stream, msgRequest{Seq: from, NextFor: filter})
		})
		if errors.Is(err, goal.ErrNotFound) {
			return all, nil
		}
		if err == nil {
			all, from = append(all, r), r.Seq+1
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read all %s: %w", filter, err)
	}
	return all, nil
}

// readPart is the records of one batch; more: there are others behind.
func (s *Store) readPart(ctx context.Context, stream, filter string, from uint64) (part []Record, more bool, err error) {
	answers, err := s.round(ctx, batchQuestion(stream, filter, from))
	if err != nil {
		return nil, false, err
	}
	return answers[0].records, answers[0].more, nil
}

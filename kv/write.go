package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// write is one logical write; it may be sent several times and is stored once.
type write struct {
	subject string
	data    []byte
	ttl     time.Duration // 0: none; rounded up to whole seconds
	msgID   string        // for streams that dedupe
	goalSeq uint64        // incarnation of the task, 0 for records of none
	header  nats.Header   // more headers
	nonce   string
	fenced  bool   // compare-and-set on the last sequence of filter
	filter  string // may hold wildcards
	last    uint64
}

// over is the write that replaces revision rev of its subject, and nothing else.
func (w write) over(rev uint64) write {
	w.fenced, w.filter, w.last, w.nonce = true, w.subject, rev, newNonce()
	return w
}

// lostError is a compare-and-set that lost to another's record.
type lostError struct {
	filter string
	record Record // the last message by the word of the leader; Seq 0: none
}

func (e *lostError) Error() string {
	return fmt.Sprintf("last sequence of %s is %d", e.filter, e.record.Seq)
}

// errMaxed is goal.ErrFull of a subject or of a stream; the server tells them
// apart by its text only.
var errMaxed = fmt.Errorf("%w: the subject or the stream holds its maximum", goal.ErrFull)

// create stores a record under a subject that has none: goal.ErrExists when it
// has, unless it is what a lost answer of this very call stored. A removed or
// expired key is free. ttl 0 means none; the least is one second. The record is
// durable when it returns.
func (s *Store) create(ctx context.Context, subject string, data []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.createRecord(ctx, write{subject: subject, data: data, ttl: ttl})
	if err != nil {
		return 0, err
	}
	return seq, s.durable(ctx)
}

// createRecord is create without the barrier.
func (s *Store) createRecord(ctx context.Context, w write) (uint64, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	w = w.over(0)
	for attempt := 0; ; attempt++ {
		ack, err := s.send(ctx, w)
		if err == nil {
			return ack.Sequence, nil
		}
		lost, ok := errors.AsType[*lostError](err)
		switch {
		case !ok:
			return 0, fmt.Errorf("create %s: %w", w.subject, err)
		case lost.record.Seq != 0 && !lost.record.removed():
			return 0, fmt.Errorf("create %s: %w", w.subject, goal.ErrExists)
		}
		// Only the mark of a removed key is left, or it went in between.
		w.last = lost.record.Seq
		if !pause(ctx, attempt) {
			return 0, fmt.Errorf("create %s: %w", w.subject, goal.ErrUnavailable)
		}
	}
}

// update replaces the record of revision rev, with a TTL on the same write (a
// plain key-value update would make the key eternal): goal.ErrFenced when rev
// is not the last any more. The record is durable when it returns.
func (s *Store) update(ctx context.Context, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	seq, err := s.updateRecord(ctx, write{subject: subject, data: data, ttl: ttl}, rev)
	if err != nil {
		return 0, err
	}
	return seq, s.durable(ctx)
}

// updateRecord is update without the barrier.
func (s *Store) updateRecord(ctx context.Context, w write, rev uint64) (uint64, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	ack, err := s.send(ctx, w.over(rev))
	if err == nil {
		return ack.Sequence, nil
	}
	if _, ok := errors.AsType[*lostError](err); ok {
		err = goal.ErrFenced
	}
	return 0, fmt.Errorf("update %s: %w", w.subject, err)
}

// removeRecord frees the key of revision rev: goal.ErrFenced when rev is not the
// last any more. The mark that takes its place goes by itself after a second.
func (s *Store) removeRecord(ctx context.Context, subject string, rev uint64) error {
	_, err := s.updateRecord(ctx, removal(subject), rev)
	return err
}

// removal is the write of the mark.
func removal(subject string) write {
	return write{subject: subject, ttl: time.Second, header: nats.Header{operationHeader: {"DEL"}}}
}

// putRecord appends a message to a subject that nobody owns. Within the
// stream's window a message of the same id is stored once; duplicate tells that
// it was there. An empty msgID dedupes the repetitions of this call only. The
// message is durable when it returns, also when it is a duplicate.
func (s *Store) putRecord(ctx context.Context, w write) (seq uint64, duplicate bool, err error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	w.nonce = newNonce()
	if w.msgID == "" {
		w.msgID = w.nonce
	}
	ack, err := s.send(ctx, w)
	if err != nil {
		return 0, false, fmt.Errorf("put %s: %w", w.subject, err)
	}
	return ack.Sequence, ack.Duplicate, s.durable(ctx)
}

// durable returns when everything acknowledged before it was called is durable.
func (s *Store) durable(ctx context.Context) error {
	if s.conf.Barrier == nil {
		return nil
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if err := s.conf.Barrier.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the disk: %w", unavailable(err))
	}
	return nil
}

// send repeats the write until it is answered or ctx ends. A compare-and-set
// that seems lost is looked up at the leader: it may have met its own first
// write, whose answer was lost. Errors: *lostError, errMaxed, goal.ErrFull,
// goal.ErrTooLarge, goal.ErrUnavailable.
func (s *Store) send(ctx context.Context, w write) (*jetstream.PubAck, error) {
	if size, most := w.size(), int(s.nc.MaxPayload()); size > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", goal.ErrTooLarge, size, most)
	}
	for attempt := 0; ; attempt++ {
		ack, err := s.pub(ctx, w.message())
		switch classify(err) {
		case writeStored:
			return ack, nil
		case writeLost:
			return s.whoWon(ctx, w)
		case writeMaxed:
			return nil, errMaxed
		case writeFull:
			return nil, fmt.Errorf("%w: %w", goal.ErrFull, err)
		case writeRefused:
			return nil, fault(err)
		case writeRetry:
			if !pause(ctx, attempt) {
				return nil, unavailable(err)
			}
		}
	}
}

// publish sends one message to a stream, once, and waits for its answer.
func (s *Store) publish(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	a, err := s.request(ctx, m)
	if err != nil {
		return nil, err
	}
	var answer struct {
		jetstream.PubAck

		Error *jetstream.APIError `json:"error"`
	}
	if err := goal.Unmarshal(a.Data, &answer); err != nil {
		return nil, fmt.Errorf("answer to a write: %w", err)
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	if answer.Stream == "" {
		return nil, fmt.Errorf("answer to a write: %w", jetstream.ErrInvalidJSAck)
	}
	return &answer.PubAck, nil
}

// whoWon decides a compare-and-set that lost by the last message of its filter.
func (s *Store) whoWon(ctx context.Context, w write) (*jetstream.PubAck, error) {
	stream, err := streamOf(w.subject)
	if err != nil {
		return nil, err
	}
	last, err := s.leaderLast(ctx, stream, w.filter)
	if err != nil && !errors.Is(err, goal.ErrNotFound) {
		return nil, err
	}
	if last.Seq != 0 && last.Header.Get(nonceHeader) == w.nonce {
		return &jetstream.PubAck{Stream: stream, Sequence: last.Seq}, nil
	}
	return nil, &lostError{filter: w.filter, record: last}
}

// message builds the message anew for every attempt: publishing changes it.
func (w write) message() *nats.Msg {
	m := nats.NewMsg(w.subject)
	m.Data = w.data
	maps.Copy(m.Header, w.header)
	m.Header.Set(nonceHeader, w.nonce)
	if w.goalSeq != 0 {
		m.Header.Set(goalHeader, strconv.FormatUint(w.goalSeq, 10))
	}
	if w.msgID != "" {
		m.Header.Set(jetstream.MsgIDHeader, w.msgID)
	}
	if w.ttl > 0 {
		m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(wholeSeconds(w.ttl), 10))
	}
	if w.fenced {
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(w.last, 10))
		if w.filter != w.subject {
			m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, w.filter)
		}
	}
	return m
}

// headerRoom is more than the headers of a write take, beside the variable ones.
const headerRoom = 1024

func (w write) size() int {
	return len(w.data) + len(w.subject) + len(w.filter) + len(w.msgID) + headerRoom
}

// wholeSeconds rounds up: the server truncates, and a record must not go early.
func wholeSeconds(d time.Duration) int64 {
	return int64(max(1, (d+time.Second-1)/time.Second))
}

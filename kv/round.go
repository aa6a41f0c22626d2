package kv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// question is one read of a round: the last message of a literal subject, or a
// batch of messages in the order of the stream.
type question struct {
	subject string // of the request
	about   string // what is read, for errors
	body    []byte
	batch   bool
}

// answer is what came back; no records: there is none.
type answer struct {
	records []Record
	more    bool // the batch was cut off
	done    bool
	last    string // sequence of the last message of a batch, as the server spells it
}

// directGet begins the subject of a request that any replica answers.
const directGet = "$JS.API.DIRECT.GET."

// lastQuestion asks any replica for the last message of a literal subject. It
// has its own request subject, on which permissions can be given by subject.
func lastQuestion(stream, subject string) question {
	return question{subject: directGet + stream + "." + subject, about: subject}
}

// lastOfQuestion is lastQuestion for a filter with wildcards.
func lastOfQuestion(stream, filter string) question {
	return question{subject: directGet + stream, about: filter, body: msgRequest{LastFor: filter}.encode()}
}

// readBatch is how many messages one question asks for.
const readBatch = 256

// batchQuestion asks any replica for what matches filter from a sequence on.
func batchQuestion(stream, filter string, from uint64) question {
	body := msgRequest{Seq: from, NextFor: filter, Batch: readBatch}.encode()
	return question{subject: directGet + stream, about: filter, body: body, batch: true}
}

// inbox is the one subscription that the answers of all rounds come to: a
// subscription for each would cost more than the reads.
type inbox struct {
	mu     sync.Mutex
	prefix string // empty: not subscribed yet
	next   uint64
	open   map[string]chan<- *nats.Msg // by round
}

// join opens a round: its answers come to the channel, which has room for all
// of them, on the subjects round.<index>, until it is left.
func (b *inbox) join(nc *nats.Conn, answers chan<- *nats.Msg) (round string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.prefix == "" {
		prefix := nc.NewInbox()
		if _, err := nc.Subscribe(prefix+".>", b.deliver); err != nil {
			return "", fmt.Errorf("subscribe: %w", err)
		}
		b.prefix, b.open = prefix, map[string]chan<- *nats.Msg{}
	}
	b.next++
	round = b.prefix + "." + strconv.FormatUint(b.next, 36)
	b.open[round] = answers
	return round, nil
}

func (b *inbox) leave(round string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, round)
}

func (b *inbox) deliver(m *nats.Msg) {
	b.mu.Lock()
	answers := b.open[m.Subject[:strings.LastIndexByte(m.Subject, '.')]]
	b.mu.Unlock()
	if answers == nil {
		return // of a round that was given up
	}
	select {
	case answers <- m:
	default: // more than was asked for
	}
}

// round asks all questions at once and repeats them until all are answered or
// ctx ends. The answers are of one time or another: whoever needs an order asks
// again. Errors: goal.ErrUnavailable.
func (s *Store) round(ctx context.Context, questions ...question) ([]answer, error) {
	for attempt := 0; ; attempt++ {
		answers, err := s.roundOnce(ctx, questions)
		if err == nil {
			return answers, nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return nil, fault(err)
		}
	}
}

func (s *Store) roundOnce(ctx context.Context, questions []question) ([]answer, error) {
	room := len(questions)
	for _, q := range questions {
		if q.batch {
			room += readBatch
		}
	}
	arrived := make(chan *nats.Msg, room)
	prefix, err := s.inbox.join(s.nc, arrived)
	if err != nil {
		return nil, err
	}
	defer s.inbox.leave(prefix)
	late := time.NewTimer(attemptTime(ctx, attemptTimeout))
	defer late.Stop()
	for i, q := range questions {
		if err := s.nc.PublishRequest(q.subject, prefix+"."+strconv.Itoa(i), q.body); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", q.about, err)
		}
	}
	answers := make([]answer, len(questions))
	for missing := len(questions); missing > 0; {
		m, err := await(ctx, late, arrived)
		if err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(m.Subject[len(prefix)+1:])
		if err != nil || i < 0 || i >= len(questions) || answers[i].done {
			continue // not ours to understand
		}
		if err := answers[i].take(m, questions[i].batch); err != nil {
			return nil, fmt.Errorf("answer about %s: %w", questions[i].about, err)
		}
		if answers[i].done {
			missing--
		}
	}
	return answers, nil
}

// await waits for an answer for as long as one attempt may take.
func await(ctx context.Context, late *time.Timer, arrived <-chan *nats.Msg) (*nats.Msg, error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("answer: %w", context.Cause(ctx))
	case <-late.C:
		return nil, fmt.Errorf("answer: %w", nats.ErrTimeout)
	case m := <-arrived:
		return m, nil
	}
}

// request sends one message, once, and waits for its answer. It is what the
// connection's own request is, with the time of one attempt for its deadline
// and without a context for that.
func (s *Store) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	arrived := make(chan *nats.Msg, 1)
	round, err := s.inbox.join(s.nc, arrived)
	if err != nil {
		return nil, err
	}
	defer s.inbox.leave(round)
	late := time.NewTimer(attemptTime(ctx, attemptTimeout))
	defer late.Stop()
	m.Reply = round + ".0"
	if err := s.nc.PublishMsg(m); err != nil {
		return nil, fmt.Errorf("ask %s: %w", m.Subject, err)
	}
	a, err := await(ctx, late, arrived)
	if err == nil && len(a.Data) == 0 && a.Header.Get("Status") == "503" {
		err = nats.ErrNoResponders
	}
	return a, err
}

// take adds one message to the answer.
func (a *answer) take(m *nats.Msg, batch bool) error {
	if batch {
		// A reconnect may swallow a part of the answer: a journal with a hole
		// must not be taken for a whole one.
		previous := a.last
		if previous == "" {
			previous = "0"
		}
		if before := m.Header.Get(jetstream.LastSequenceHeader); before != "" && before != previous {
			return fmt.Errorf("answer has a gap after %s: %w", previous, nats.ErrTimeout)
		}
		if len(m.Data) == 0 && m.Header.Get("Status") == "204" {
			pending, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
			if err != nil {
				return fmt.Errorf("end of batch: %w", err)
			}
			a.done, a.more = true, pending > 0 && len(a.records) > 0
			return nil
		}
	}
	r, err := directRecord(m)
	switch {
	case errors.Is(err, goal.ErrNotFound):
		a.done = true
		return nil
	case err != nil:
		return err
	}
	a.records = append(a.records, r)
	a.last, a.done = m.Header.Get(jetstream.SequenceHeader), !batch
	return nil
}

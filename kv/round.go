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

const (
	// readBatch is how many messages one question asks for.
	readBatch = 256
	// roundRoom is how many answers a round may get: two batches with their ends,
	// and some single ones.
	roundRoom = 2*(readBatch+1) + 8
)

// batchQuestion asks any replica for what matches filter from a sequence on.
func batchQuestion(stream, filter string, from uint64) question {
	body := msgRequest{Seq: from, NextFor: filter, Batch: readBatch}.encode()
	return question{subject: directGet + stream, about: filter, body: body, batch: true}
}

// mailbox takes the answers to one exchange at a time, straight from the reader of
// the connection.
type mailbox struct {
	sub     *nats.Subscription
	prefix  string
	n       uint64 // exchanges so far
	arrived chan *nats.Msg
}

// address is a subject for answers that no earlier exchange had. What has come
// unasked since is thrown away.
func (b *mailbox) address() string {
	for len(b.arrived) > 0 {
		<-b.arrived
	}
	b.n++
	return b.prefix + strconv.FormatUint(b.n, 36)
}

// mailboxes keeps mailboxes for the next exchange: a subscription for each would
// cost more than the exchange.
type mailboxes struct {
	room int // answers that one exchange may get
	mu   sync.Mutex
	idle []*mailbox
}

// keptMailboxes bounds those that wait. More exchanges at a time each cost a
// subscription.
const keptMailboxes = 256

func (p *mailboxes) take(nc *nats.Conn) (*mailbox, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		b := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return b, nil
	}
	p.mu.Unlock()
	b := &mailbox{prefix: nc.NewInbox() + ".", arrived: make(chan *nats.Msg, p.room)}
	var err error
	if b.sub, err = nc.ChanSubscribe(b.prefix+">", b.arrived); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return b, nil
}

// putBack keeps a mailbox to which nothing comes any more; one whose exchange was
// given up may get an answer still, and is closed.
func (p *mailboxes) putBack(b *mailbox, done bool) {
	if done {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.idle) < keptMailboxes {
			p.idle = append(p.idle, b)
			return
		}
	}
	_ = b.sub.Unsubscribe() // fails only when the connection is closed
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

func (s *Store) roundOnce(ctx context.Context, questions []question) (answers []answer, err error) {
	box, err := s.rounds.take(s.nc)
	if err != nil {
		return nil, err
	}
	defer func() { s.rounds.putBack(box, err == nil) }()
	late := time.NewTimer(attemptTime(ctx, attemptTimeout))
	defer late.Stop()
	address := box.address() + "."
	for i, q := range questions {
		if err := s.nc.PublishRequest(q.subject, address+strconv.Itoa(i), q.body); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", q.about, err)
		}
	}
	answers = make([]answer, len(questions))
	for missing := len(questions); missing > 0; {
		m, err := await(ctx, late, box.arrived)
		if err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(strings.TrimPrefix(m.Subject, address))
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
// connection's own request is, with the time of one attempt for its deadline,
// without a context for that, and without a goroutine between reader and waiter.
func (s *Store) request(ctx context.Context, m *nats.Msg) (a *nats.Msg, err error) {
	box, err := s.singles.take(s.nc)
	if err != nil {
		return nil, err
	}
	answered := false
	defer func() { s.singles.putBack(box, answered) }()
	late := time.NewTimer(attemptTime(ctx, attemptTimeout))
	defer late.Stop()
	m.Reply = box.address()
	if err := s.nc.PublishMsg(m); err != nil {
		return nil, fmt.Errorf("ask %s: %w", m.Subject, err)
	}
	for !answered {
		if a, err = await(ctx, late, box.arrived); err != nil {
			return nil, err
		}
		answered = a.Subject == m.Reply
	}
	if len(a.Data) == 0 && a.Header.Get("Status") == "503" {
		return nil, nats.ErrNoResponders
	}
	return a, nil
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

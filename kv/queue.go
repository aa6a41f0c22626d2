package kv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// workersConsumer is the durable consumer that all workers of a tenant share.
const workersConsumer = "workers"

// QueueConfig sizes a tenant's queue. The zero value is the default. All
// processes should agree on it: the last one to open the queue decides.
type QueueConfig struct {
	// AckWait is the silence after which a goal is handed to another worker;
	// 0 means 15 s.
	AckWait time.Duration
	// MaxAckPending bounds goals with workers or waiting for a later attempt;
	// 0 means 10,000.
	MaxAckPending int
	// MaxWaiting bounds idle worker slots over all processes; 0 means 4,096.
	MaxWaiting int
}

// consumer is the configuration of the durable consumer. MaxDeliver has no
// bound (attempts are counted in the journal) and there is no back-off list
// (it would add to the delay of a Nak).
func (c QueueConfig) consumer() jetstream.ConsumerConfig {
	def := func(v, d int) int {
		if v > 0 {
			return v
		}
		return d
	}
	if c.AckWait <= 0 {
		c.AckWait = 15 * time.Second
	}
	return jetstream.ConsumerConfig{
		Durable: workersConsumer, Description: "hands accepted goals to workers",
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.AckWait,
		MaxDeliver: -1, MaxAckPending: def(c.MaxAckPending, 10_000), MaxWaiting: def(c.MaxWaiting, 4096),
	}
}

// Queue hands out a tenant's goals. Next may be called concurrently.
type Queue struct {
	s      *Store
	tenant string

	mu   sync.Mutex
	idle []*puller // at most as many as there were calls of Next at a time
}

// Queue opens the tenant's queue.
func (s *Store) Queue(ctx context.Context, tenant string, c QueueConfig) (*Queue, error) {
	if err := checkTenant(tenant); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if _, err := s.js.CreateOrUpdateConsumer(ctx, goal.GoalsStream(tenant), c.consumer()); err != nil {
		return nil, fmt.Errorf("kv: open queue of %s: %w", tenant, fault(err))
	}
	return &Queue{s: s, tenant: tenant}, nil
}

// ensureWorkers creates the tenant's consumer where there is none, so that the
// queue's length is known before the first worker comes.
func (s *Store) ensureWorkers(ctx context.Context, tenant string) error {
	for attempt := 0; ; attempt++ {
		err := func() error {
			ctx, cancel := attemptContext(ctx, provisionTimeout)
			defer cancel()
			// Looking first lets processes in that may not create it.
			_, err := s.js.Consumer(ctx, goal.GoalsStream(tenant), workersConsumer)
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				_, err = s.js.CreateConsumer(ctx, goal.GoalsStream(tenant), QueueConfig{}.consumer())
			}
			return err
		}()
		if err == nil || errors.Is(err, jetstream.ErrConsumerExists) {
			return nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return fmt.Errorf("kv: provision queue of %s: %w", tenant, fault(err))
		}
	}
}

// Next waits for a goal and takes exactly one. It ends with ctx, whose error it
// then returns (a goal that was on its way comes again after AckWait);
// goal.ErrUnavailable means that the store does not answer and that Next may be
// called again, after a pause.
func (q *Queue) Next(ctx context.Context) (*Delivery, error) {
	p, err := q.puller()
	if err != nil {
		return nil, fmt.Errorf("next goal of %s: %w", q.tenant, unavailable(err))
	}
	for {
		m, err := p.next(ctx)
		switch {
		case err == nil:
			if d := q.open(ctx, m); d != nil {
				q.keep(p)
				return d, nil
			}
		case ctx.Err() != nil:
			p.close()
			return nil, context.Cause(ctx)
		case errors.Is(err, errNothing):
		default:
			p.close()
			return nil, fmt.Errorf("next goal of %s: %w", q.tenant, unavailable(err))
		}
	}
}

func (q *Queue) puller() (*puller, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.idle); n > 0 {
		p := q.idle[n-1]
		q.idle = q.idle[:n-1]
		return p, nil
	}
	return newPuller(q.s.nc, goal.GoalsStream(q.tenant), workersConsumer)
}

func (q *Queue) keep(p *puller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, p)
}

// open decodes a delivery. What nobody can read is logged and taken out, except
// for a newer version, which a newer worker will understand.
func (q *Queue) open(ctx context.Context, m *nats.Msg) *Delivery {
	d, err := q.s.delivery(m)
	if err == nil {
		return d
	}
	q.s.log.ErrorContext(ctx, "unreadable goal in the queue", "subject", m.Subject, "err", err)
	reply := ackTerm + " unreadable"
	if errors.Is(err, errVersion) {
		reply = ackLater(time.Minute)
	}
	if err := q.s.nc.Publish(m.Reply, []byte(reply)); err != nil {
		// Safe to go on: it is delivered again after AckWait.
		q.s.log.WarnContext(ctx, "goal not taken out", "subject", m.Subject, "err", err)
	}
	return nil
}

// Delivery is a goal in the hands of a worker. Its methods may be called
// concurrently. They are liveness only: a worker that was taken over can still
// acknowledge, and only the journal fences it.
type Delivery struct {
	goal.Accepted
	// Delivered counts deliveries from 1; they are not attempts.
	Delivered int
	nc        *nats.Conn
	reply     string // subject of the answers to this delivery
}

func (s *Store) delivery(m *nats.Msg) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	acc, err := s.accepted(Record{Subject: m.Subject, Data: m.Data, Seq: meta.Sequence.Stream, Time: meta.Timestamp, Header: m.Header})
	if err != nil {
		return nil, err
	}
	return &Delivery{Accepted: acc, Delivered: int(meta.NumDelivered), nc: s.nc, reply: m.Reply}, nil //nolint:gosec // far below
}

var errVersion = errors.New("record of an unknown version")

// accepted decodes a queue entry.
func (s *Store) accepted(r Record) (goal.Accepted, error) {
	var sub goal.Submission
	if err := goal.Unmarshal(r.Data, &sub); err != nil {
		return goal.Accepted{}, fmt.Errorf("decode %s: %w", r.Subject, err)
	}
	if sub.Version != goal.SubmissionVersion {
		return goal.Accepted{}, fmt.Errorf("decode %s: %w: %d", r.Subject, errVersion, sub.Version)
	}
	if goal.QueueSubject(sub.Tenant, sub.TaskID) != r.Subject {
		return goal.Accepted{}, fmt.Errorf("decode %s: the submission is of another task", r.Subject)
	}
	return s.acceptance(sub, r), nil
}

// acceptance is the submission with what the store knows about it. The goal
// carries its retention as its TTL, so that a change of the setting does not
// let a goal outlive its result.
func (s *Store) acceptance(sub goal.Submission, r Record) goal.Accepted {
	kept := s.conf.Retention
	if seconds, err := strconv.ParseInt(r.Header.Get(jetstream.MsgTTLHeader), 10, 64); err == nil {
		kept = min(kept, time.Duration(seconds)*time.Second)
	}
	at := sub.AcceptedAt
	if at.IsZero() { // stored by an earlier release
		at = r.Time.UTC()
	}
	return goal.Accepted{Submission: sub, Seq: r.Seq, At: at, Stored: r.Time, Expires: at.Add(kept)}
}

// Ack takes the goal out of the queue for good. It is sent and not confirmed: an
// ack that is lost, as it also can be in the last 100 ms before a server crashes,
// lets the goal come again, and its result is there. It may be repeated.
func (d *Delivery) Ack() error { return d.answer("ack", ackDone) }

// Nak hands the goal back, to be delivered again after delay.
func (d *Delivery) Nak(delay time.Duration) error { return d.answer("nak", ackLater(delay)) }

// InProgress restarts AckWait. Call it every third of AckWait.
func (d *Delivery) InProgress() error { return d.answer("heartbeat", ackProgress) }

func (d *Delivery) answer(what, reply string) error {
	if err := d.nc.Publish(d.reply, []byte(reply)); err != nil {
		return fmt.Errorf("%s %s: %w", what, d.Submission.TaskID, fault(err))
	}
	return nil
}

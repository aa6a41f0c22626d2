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
	s        *Store
	tenant   string
	consumer jetstream.Consumer
}

// Queue opens the tenant's queue.
func (s *Store) Queue(ctx context.Context, tenant string, c QueueConfig) (*Queue, error) {
	if err := checkTenant(tenant); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	consumer, err := s.js.CreateOrUpdateConsumer(ctx, goal.GoalsStream(tenant), c.consumer())
	if err != nil {
		return nil, fmt.Errorf("kv: open queue of %s: %w", tenant, fault(err))
	}
	return &Queue{s: s, tenant: tenant, consumer: consumer}, nil
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

// fetchWait is how long one pull waits at the server. Very short pulls lose
// deliveries to inboxes that are gone.
const fetchWait = 30 * time.Second

// fetchHeartbeat tells that the pull is still there: a server that was
// restarted, or that leads the consumer in place of one that died, knows nothing
// of it. Two missing ones end the pull: until then nothing is taken.
const fetchHeartbeat = 2 * time.Second

// Next waits for a goal and takes exactly one. It ends with ctx, whose error it
// then returns (a goal that was on its way comes again after AckWait); goal.ErrUnavailable means that the store does not answer and
// that Next may be called again, after a pause.
func (q *Queue) Next(ctx context.Context) (*Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		m, err := q.fetch(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages), errors.Is(err, context.DeadlineExceeded):
			continue
		default:
			return nil, fmt.Errorf("next goal of %s: %w", q.tenant, unavailable(err))
		}
		if d := q.open(ctx, m); d != nil {
			return d, nil
		}
	}
}

func (q *Queue) fetch(ctx context.Context) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	end, _ := ctx.Deadline()
	left := time.Until(end)
	if left <= 0 {
		return nil, context.DeadlineExceeded
	}
	opts := []jetstream.FetchOpt{jetstream.FetchContext(ctx)}
	if left > 3*fetchHeartbeat {
		opts = append(opts, jetstream.FetchHeartbeat(fetchHeartbeat))
	}
	return q.consumer.Next(opts...)
}

// open decodes a delivery. What nobody can read is logged and taken out, except
// for a newer version, which a newer worker will understand.
func (q *Queue) open(ctx context.Context, m jetstream.Msg) *Delivery {
	d, err := q.s.delivery(m)
	if err == nil {
		return d
	}
	q.s.log.ErrorContext(ctx, "unreadable goal in the queue", "subject", m.Subject(), "err", err)
	if errors.Is(err, errVersion) {
		err = m.NakWithDelay(time.Minute)
	} else {
		err = m.TermWithReason("unreadable")
	}
	if err != nil {
		// Safe to go on: it is delivered again after AckWait.
		q.s.log.WarnContext(ctx, "goal not taken out", "subject", m.Subject(), "err", err)
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
	msg       jetstream.Msg
}

func (s *Store) delivery(m jetstream.Msg) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	acc, err := s.accepted(Record{Subject: m.Subject(), Data: m.Data(), Seq: meta.Sequence.Stream, Time: meta.Timestamp, Header: m.Headers()})
	if err != nil {
		return nil, err
	}
	return &Delivery{Accepted: acc, Delivered: int(meta.NumDelivered), msg: m}, nil //nolint:gosec // far below
}

var errVersion = errors.New("record of an unknown version")

// accepted decodes a queue entry.
func (s *Store) accepted(r Record) (goal.Accepted, error) {
	var sub goal.Submission
	if err := json.Unmarshal(r.Data, &sub); err != nil {
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
	return goal.Accepted{Submission: sub, Seq: r.Seq, At: at, Expires: at.Add(kept)}
}

// Ack takes the goal out of the queue for good and returns when the server has
// confirmed it. An ack can be lost in the last 100 ms before a crash: the goal
// then comes again, and its result is there. It gives up after 5 s whatever the
// deadline is, since that costs no more than a lost ack. It may be repeated.
func (d *Delivery) Ack(ctx context.Context) error {
	if err := confirmAck(ctx, d.msg); err != nil {
		return fmt.Errorf("ack %s: %w", d.Submission.TaskID, err)
	}
	return nil
}

// confirmAck acknowledges until the server has confirmed it, for 5 s at most.
func confirmAck(ctx context.Context, m jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		err := func() error {
			ctx, cancel := attemptContext(ctx, attemptTimeout)
			defer cancel()
			return m.DoubleAck(ctx)
		}()
		if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return nil
		}
		if classify(err) != writeRetry || !pause(ctx, attempt) {
			return fault(err)
		}
	}
}

// Nak hands the goal back, to be delivered again after delay.
func (d *Delivery) Nak(delay time.Duration) error {
	err := d.msg.NakWithDelay(delay)
	if err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return fmt.Errorf("nak %s: %w", d.Submission.TaskID, fault(err))
	}
	return nil
}

// InProgress restarts AckWait. Call it every third of AckWait.
func (d *Delivery) InProgress() error {
	if err := d.msg.InProgress(); err != nil {
		return fmt.Errorf("heartbeat %s: %w", d.Submission.TaskID, fault(err))
	}
	return nil
}

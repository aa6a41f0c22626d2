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

const (
	// intakeConsumer is the durable consumer, and the queue group, that all
	// processes of a tenant's intake share.
	intakeConsumer = "ingest"
	// intakeSlots is how many direct goals of a tenant one process works on at a
	// time. Many, so that they share the barrier.
	intakeSlots = 64
	// intakeBuffer is how many more it holds.
	intakeBuffer = 64
	// intakeTime bounds the work on one; intakeWait, after which it is given to
	// another process, covers a full buffer before it.
	intakeTime = 20 * time.Second
	intakeWait = time.Minute
	// intakePending bounds goals that are worked on or wait to come again.
	intakePending = 10_000
	// requestsPending bounds requests that wait for a slot; the server drops
	// what comes beyond, and its sender's request times out.
	requestsPending = 1024
	// drainTime is how long requests that wait for a slot are served at the end.
	drainTime = 5 * time.Second
	// deadBytes bounds what is kept of goals that no task can be made of; the
	// oldest go first.
	deadBytes = 64 << 20
)

// Headers of a dead letter.
const (
	deadReasonHeader = "Goalkeeper-Reason"
	deadKeyHeader    = "Goalkeeper-Key"
	deadSizeHeader   = "Goalkeeper-Size" // of the whole body, where it was cut to goal.MaxBody
)

// ConsumeIntake hands every goal that is published to the tenant's submit
// subject to take, which runs concurrently, with a context that outlives ctx and
// ends after 20 s. take returns 0 when the goal is dealt with for good, else
// after how long it should come again. A goal also comes again when the process
// ends before its acknowledgement. ConsumeIntake blocks until ctx ends, gives
// back what it holds, and returns when the last take has; or it returns
// goal.ErrUnavailable when it is cut off, and may be called again. Several
// processes share the goals.
func (s *Store) ConsumeIntake(ctx context.Context, tenant string, take func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) (again time.Duration)) error {
	it, err := s.openIntake(ctx, tenant)
	if err != nil {
		return err
	}
	defer giveBack(it)
	defer context.AfterFunc(ctx, it.Drain)()
	slots := newSlots(intakeSlots)
	defer slots.wait()
	for {
		m, err := it.Next(jetstream.NextContext(ctx))
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = m.Nak() // comes again after intakeWait if that is lost
			}
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("intake of %s: %w", tenant, unavailable(err))
		}
		slots.run(func() { s.takeIntake(ctx, m, take) })
	}
}

func (s *Store) openIntake(ctx context.Context, tenant string) (jetstream.MessagesContext, error) {
	if err := checkTenant(tenant); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if err := s.ensure(ctx, s.deadStream()); err != nil {
		return nil, err
	}
	consumer, err := s.js.CreateOrUpdateConsumer(ctx, goal.IntakeStream(tenant), jetstream.ConsumerConfig{
		Durable: intakeConsumer, Description: "admits goals that were published directly",
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, AckWait: intakeWait,
		MaxDeliver: -1, MaxAckPending: intakePending,
	})
	if err != nil {
		return nil, fmt.Errorf("intake of %s: %w", tenant, fault(err))
	}
	it, err := consumer.Messages(jetstream.PullMaxMessages(intakeBuffer))
	if err != nil {
		return nil, fmt.Errorf("intake of %s: %w", tenant, unavailable(err))
	}
	return it, nil
}

// giveBack returns what is in the buffer, so that another process has it at once.
func giveBack(it jetstream.MessagesContext) {
	it.Drain()
	for {
		m, err := it.Next(jetstream.NextMaxWait(time.Second))
		if err != nil {
			break
		}
		_ = m.Nak() // comes again after intakeWait if that is lost
	}
	it.Stop()
}

// takeIntake is the work on one goal. The acknowledgement is last; it may be
// lost, and then the goal comes again and meets its own task.
func (s *Store) takeIntake(ctx context.Context, m jetstream.Msg, take func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), intakeTime)
	defer cancel()
	var at time.Time
	if meta, err := m.Metadata(); err == nil {
		at = meta.Timestamp.UTC()
	}
	h := m.Headers()
	var err error
	if again := take(ctx, h.Values(jetstream.MsgIDHeader), m.Data(), at, traceHeader(h)); again > 0 {
		err = m.NakWithDelay(again)
	} else {
		err = m.Ack()
	}
	if err != nil { // safe: it comes again after intakeWait
		s.log.WarnContext(ctx, "direct goal not acknowledged", "subject", m.Subject(), "err", err)
	}
}

// traceHeader is the W3C trace context, which is written in either case: names
// of NATS headers are case-sensitive.
func traceHeader(h nats.Header) string {
	if v := h.Get("traceparent"); v != "" {
		return v
	}
	return h.Get("Traceparent")
}

// ServeRequests answers core requests to the tenant's request subject. answer
// runs concurrently, with a context that outlives ctx and ends after 20 s. The
// key is the lines of the header Idempotency-Key or, without it, of Nats-Msg-Id.
// A message without a reply subject is dropped: nobody would learn what became
// of it. ServeRequests blocks until ctx ends, and returns when the last answer
// is given; or goal.ErrUnavailable when the connection is closed.
func (s *Store) ServeRequests(ctx context.Context, tenant string, answer func(ctx context.Context, key []string, body []byte, traceparent string) (status int, header map[string]string, reply []byte)) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	slots := newSlots(intakeSlots)
	defer slots.wait()
	sub, err := s.nc.QueueSubscribe(goal.RequestSubject(tenant), intakeConsumer, func(m *nats.Msg) {
		if m.Reply != "" {
			slots.run(func() { s.answerRequest(ctx, m, answer) })
		}
	})
	if err != nil {
		return fmt.Errorf("requests of %s: %w", tenant, unavailable(err))
	}
	closed := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(closed) })
	if err := sub.SetPendingLimits(requestsPending, requestsPending*goal.MaxBody); err != nil {
		return fmt.Errorf("requests of %s: %w", tenant, unavailable(errors.Join(err, sub.Unsubscribe())))
	}
	select {
	case <-closed:
		return fmt.Errorf("requests of %s: subscription closed: %w", tenant, goal.ErrUnavailable)
	case <-ctx.Done():
	}
	if !s.nc.IsConnected() { // nothing comes any more, and a drain would wait for the server
		_ = sub.Unsubscribe() // fails only when the connection is closed
	} else if sub.Drain() == nil {
		select {
		case <-closed:
		case <-time.After(drainTime): // who was not served by then sends the request again
		}
	}
	return context.Cause(ctx)
}

func (s *Store) answerRequest(ctx context.Context, m *nats.Msg, answer func(ctx context.Context, key []string, body []byte, traceparent string) (int, map[string]string, []byte)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), intakeTime)
	defer cancel()
	key := m.Header.Values("Idempotency-Key")
	if len(key) == 0 {
		key = m.Header.Values(jetstream.MsgIDHeader)
	}
	status, header, reply := answer(ctx, key, m.Data, traceHeader(m.Header))
	r := nats.NewMsg(m.Reply)
	r.Data = reply
	for name, value := range header {
		r.Header.Set(name, value)
	}
	r.Header.Set("Status", strconv.Itoa(status))
	if err := m.RespondMsg(r); err != nil { // the sender's request times out, and may be repeated
		s.log.WarnContext(ctx, "request not answered", "subject", m.Subject, "err", err)
	}
}

// DeadLetter keeps a goal that no task can be made of, with the reason. It may
// be repeated; it is durable when it returns.
func (s *Store) DeadLetter(ctx context.Context, tenant, reason string, key []string, body []byte) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	h := nats.Header{deadReasonHeader: {reason}}
	if len(key) > 0 {
		h[deadKeyHeader] = key
	}
	id := goal.Digest(append([]string{tenant, string(body)}, key...)...)
	if len(body) > goal.MaxBody {
		h.Set(deadSizeHeader, strconv.Itoa(len(body)))
		body = body[:goal.MaxBody]
	}
	_, _, err := s.putRecord(ctx, write{subject: goal.DeadSubject(tenant), data: body, msgID: id, header: h})
	return err
}

func (s *Store) deadStream() jetstream.StreamConfig {
	c := s.stream(goal.DeadStream, s.conf.Retention, goal.DeadSubject("*"))
	c.MaxBytes = deadBytes
	return c
}

// slots runs work concurrently, up to a bound. A goroutine that has done its work
// waits for the next, because its stack has the size by then.
type slots struct {
	free chan struct{} // one for every goroutine
	next chan func()   // to one that waits
	done chan struct{}
	all  sync.WaitGroup

	mu    sync.Mutex // held while a slot is waited for
	ended bool       // guarded by mu
}

func newSlots(n int) *slots {
	return &slots{free: make(chan struct{}, n), next: make(chan func()), done: make(chan struct{})}
}

// run waits for a slot and starts f in it; after wait it drops f.
func (s *slots) run(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	select {
	case s.next <- f:
		return
	default: // nobody waits
	}
	select {
	case s.next <- f:
	case s.free <- struct{}{}:
		s.all.Go(func() { s.work(f) })
	}
}

func (s *slots) work(f func()) {
	for {
		f()
		select {
		case f = <-s.next:
		case <-s.done:
			return
		}
	}
}

// wait returns when everything that was started has ended.
func (s *slots) wait() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	close(s.done)
	s.all.Wait()
}

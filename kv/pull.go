package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	// pullWait is how long one pull waits at the server. Very short pulls lose
	// deliveries to inboxes that are gone.
	pullWait = 30 * time.Second
	// pullHeartbeat tells that the pull is still there: a server that was
	// restarted, or that leads the consumer in place of one that died, knows
	// nothing of it. Two missing ones end the pull: until then nothing is taken.
	pullHeartbeat = 2 * time.Second
)

// pullRequest is the body of a request for the next message of a consumer (NATS
// JetStream pull protocol). Times are in nanoseconds.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

// errNothing: the pull ended without a message.
var errNothing = errors.New("no message")

// puller pulls one message at a time into an inbox that it keeps: a subscription
// for every pull would cost more than the pull. It is for one goroutine at a
// time.
type puller struct {
	nc      *nats.Conn
	subject string
	inbox   string
	sub     *nats.Subscription
	arrived chan *nats.Msg
}

func newPuller(nc *nats.Conn, stream, consumer string) (*puller, error) {
	p := &puller{
		nc: nc, subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer,
		inbox: nc.NewInbox(), arrived: make(chan *nats.Msg, 8),
	}
	var err error
	if p.sub, err = nc.ChanSubscribe(p.inbox, p.arrived); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return p, nil
}

// close ends the interest, and with it a pull that still waits at the server.
func (p *puller) close() { _ = p.sub.Unsubscribe() } // fails only when the connection is gone

// next waits for one message. After any error but errNothing a pull may still
// wait at the server: close the puller then.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	wait := pullWait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end))
	}
	if wait <= 0 {
		return nil, context.DeadlineExceeded
	}
	q := pullRequest{Batch: 1, Expires: wait}
	silence := wait + time.Second
	if wait > 3*pullHeartbeat {
		q.Heartbeat, silence = pullHeartbeat, 2*pullHeartbeat
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	if err := p.nc.PublishRequest(p.subject, p.inbox, body); err != nil {
		return nil, err
	}
	silent := time.NewTimer(silence)
	defer silent.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-silent.C:
			return nil, fmt.Errorf("the pull fell silent: %w", goal.ErrUnavailable)
		case m := <-p.arrived:
			if m.Reply != "" && m.Header.Get("Status") == "" {
				return m, nil
			}
			switch status := m.Header.Get("Status"); status {
			case "100":
				silent.Reset(silence)
			case "404", "408":
				return nil, errNothing
			default:
				return nil, fmt.Errorf("pull: %w: status %s %s", goal.ErrUnavailable, status, m.Header.Get("Description"))
			}
		}
	}
}

// Answers to a delivered message (NATS JetStream acknowledgement protocol).
const (
	ackDone     = "+ACK"
	ackProgress = "+WPI"
	ackTerm     = "+TERM"
)

func ackLater(delay time.Duration) string {
	return fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds())
}

package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The state machine of a record. Every arrow is one compare-and-set on the
// record's revision, with the new time to live on the same write.
//
//	            claim (create-only)                 renew, every third of the lease
//	  nothing ───────────────────────> IN_PROGRESS ───┐
//	     ^  ^                          ^  │  │  │  ^──┘
//	     │  │ claim, attempt+1         │  │  │  │
//	     │  └──── trace <── lease ends ┼──┤  │  └─────────────> HELD (may have taken effect)
//	     │          ^                  │  │  │                   │  │
//	     │          └── lease ends ────┼──┼──┼───────────────────┘  │ operator
//	     │                             │  │  │ complete             v
//	     │       release               │  │  └────────────────> COMPLETED ──> result TTL ends ──┐
//	     │     ┌───────────────────────┼──┘                                                     │
//	     │     v                       │                                                        │
//	     │  RELEASED ── claim, attempt+1                                                        │
//	     │     └── an hour passes ──> trace <───────────────────────────────────────────────────┘
//	     └───────────────── the store forgets the trace
//
// A holder that lost its lease finds another revision. It may still complete
// when nobody took the call over (the record is a trace or nothing), so that an
// effect that did happen is known; it never changes another attempt's record.

// errLost says that the record is another attempt's by now.
var errLost = errors.New("the lease was taken over")

const (
	// releasedTTL keeps the attempt counter of a released call.
	releasedTTL = time.Hour
	// partGrace lets the parts of a body outlive the record that names them.
	partGrace = time.Minute
	// rounds bounds how often a lost race is looked at again; each round means
	// that somebody else made progress.
	rounds = 4
)

// ledger makes the transitions. It knows no HTTP and reads no clock.
type ledger struct{ store Store }

// claim is the right to run a call, as long as rev is the record's revision.
// It is not safe for concurrent use.
type claim struct {
	id  string
	rec Record
	rev uint64
}

// found is a record as it was read.
type found struct {
	*Record
	rev uint64
}

// claim tries to make the caller the holder of the call. It returns the claim,
// or the record that stands in the way, or an error, after which the call is
// not held (an unacknowledged write dies by its ttl). known: there is a record,
// most likely; it is then read before anything is written.
func (l ledger) claim(ctx context.Context, id string, want Record, ttl time.Duration, known bool) (*claim, found, error) {
	want.State, want.Attempt = InProgress, 1
	c := &claim{id: id, rec: want}
	for round := range rounds {
		if !known || round > 0 {
			err := l.write(ctx, c, ttl)
			if err == nil {
				return c, found{}, nil
			}
			if !raced(err) {
				return nil, found{}, err
			}
		}
		cur, err := l.read(ctx, id)
		switch {
		case errors.Is(err, goal.ErrNotFound):
			// It vanished in between, or only a trace is left: an earlier attempt
			// that nobody finished, so the backend is told that there was one.
			c.rev = cur.rev
			if cur.rev > 0 {
				c.rec.Attempt = max(c.rec.Attempt, 2)
			}
		case err != nil:
			return nil, found{}, err
		case cur.Owner == want.Owner:
			c.rev, c.rec = cur.rev, *cur.Record // our own write, whose ack was lost
			return c, found{}, nil
		case cur.Fingerprint != want.Fingerprint || cur.State != Released:
			return nil, cur, nil
		default:
			c.rev, c.rec.Attempt = cur.rev, cur.Attempt+1
		}
	}
	// Others win every race: one of them holds it.
	return nil, found{Record: &want}, nil
}

// abandon releases a call whose claim failed and may have been written.
func (l ledger) abandon(ctx context.Context, id, owner string) error {
	cur, err := l.read(ctx, id)
	switch {
	case errors.Is(err, goal.ErrNotFound):
		return nil
	case err != nil:
		return err
	case cur.Owner != owner || cur.State != InProgress:
		return nil
	}
	return l.release(ctx, &claim{id: id, rec: *cur.Record, rev: cur.rev}, "the claim was not acknowledged")
}

// renew extends the holder's lease.
func (l ledger) renew(ctx context.Context, c *claim, until time.Time, ttl time.Duration) error {
	next := c.rec
	next.LeaseUntil = until
	return l.move(ctx, c, next, ttl)
}

// hold marks the outcome as unknown.
func (l ledger) hold(ctx context.Context, c *claim, reason string, ttl time.Duration) error {
	next := c.rec
	next.State, next.Reason = Held, reason
	return l.move(ctx, c, next, ttl)
}

// release lets the next attempt run.
func (l ledger) release(ctx context.Context, c *claim, reason string) error {
	next := c.rec
	next.State, next.Reason, next.LeaseUntil = Released, reason, time.Time{}
	return l.move(ctx, c, next, releasedTTL)
}

// complete stores the answer, its body's parts first. It may be called again
// by the same holder, to replace a dropped body by the whole one.
func (l ledger) complete(ctx context.Context, c *claim, a Answer, ttl time.Duration) error {
	a.Size, a.Parts = len(a.Body), 0
	if a.Dropped {
		a.Size, a.Body = 0, nil
	}
	if len(a.Body) > inlineBody {
		if err := l.writeParts(ctx, c, &a, ttl); err != nil {
			return err
		}
	}
	next := c.rec
	next.State, next.LeaseUntil, next.Answer = Completed, time.Time{}, &a
	return l.move(ctx, c, next, ttl)
}

func (l ledger) writeParts(ctx context.Context, c *claim, a *Answer, ttl time.Duration) error {
	for rest := a.Body; len(rest) > 0; a.Parts++ {
		part := rest[:min(len(rest), bodyPart)]
		rest = rest[len(part):]
		key := partKey(c.id, c.rec.Owner, a.Parts)
		if _, err := l.store.Create(ctx, key, part, ttl+partGrace); err != nil && !errors.Is(err, goal.ErrExists) {
			return fmt.Errorf("store part %d of an answer: %w", a.Parts, err)
		}
	}
	return nil
}

// body returns the answer's body; goal.ErrNotFound when a part is gone.
func (l ledger) body(ctx context.Context, id, owner string, a *Answer) ([]byte, error) {
	if a.Parts == 0 {
		return a.Body, nil
	}
	body := make([]byte, 0, a.Size)
	for n := range a.Parts {
		part, _, err := l.store.Get(ctx, partKey(id, owner, n))
		if err != nil {
			return nil, fmt.Errorf("read part %d of an answer: %w", n, err)
		}
		body = append(body, part...)
	}
	if len(body) != a.Size {
		return nil, fmt.Errorf("%w: %d bytes of body, want %d", errRecord, len(body), a.Size)
	}
	return body, nil
}

// move replaces the record by next if c still holds it, or, for an answer,
// if nobody does. errLost means that another attempt has it.
func (l ledger) move(ctx context.Context, c *claim, next Record, ttl time.Duration) error {
	try := &claim{id: c.id, rec: next, rev: c.rev}
	for range rounds {
		err := l.write(ctx, try, ttl)
		if err == nil {
			*c = *try
			return nil
		}
		if !raced(err) {
			return err
		}
		cur, err := l.read(ctx, c.id)
		switch {
		case errors.Is(err, goal.ErrNotFound) && next.State == Completed:
			try.rev = cur.rev
		case errors.Is(err, goal.ErrNotFound):
			return errLost
		case err != nil:
			return err
		case cur.Owner != c.rec.Owner, cur.State == Completed && next.State != Completed:
			return errLost // an answer is final, also for its owner
		default:
			try.rev = cur.rev // an earlier write of ours, whose ack was lost
		}
	}
	return errLost
}

func (l ledger) write(ctx context.Context, c *claim, ttl time.Duration) error {
	data, err := c.rec.encode()
	if err != nil {
		return err
	}
	rev := c.rev
	if rev == 0 {
		rev, err = l.store.Create(ctx, c.id, data, ttl)
	} else {
		rev, err = l.store.Update(ctx, c.id, data, rev, ttl)
	}
	if err != nil {
		return fmt.Errorf("write the record of a call: %w", err)
	}
	c.rev = rev
	return nil
}

// read returns the record; on goal.ErrNotFound the revision of its trace.
func (l ledger) read(ctx context.Context, id string) (found, error) {
	data, rev, err := l.store.Get(ctx, id)
	if err != nil {
		return found{rev: rev}, fmt.Errorf("read the record of a call: %w", err)
	}
	rec, err := decodeRecord(data)
	return found{rec, rev}, err
}

func raced(err error) bool {
	return errors.Is(err, goal.ErrExists) || errors.Is(err, goal.ErrFenced)
}

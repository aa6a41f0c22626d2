package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// lease is the stored form of a lock.
type lease struct {
	Owner string      `json:"owner"`
	TTL   goal.Millis `json:"ttl_ms"`
}

// Lock is a lease on a task. It spares a second worker the start; it does not
// fence: the journal does. Its writes are acknowledged but not waited for on
// the disk: a lease that is lost in a crash has expired. Methods are not for
// concurrent use.
type Lock struct {
	s       *Store
	subject string
	value   []byte
	ttl     time.Duration
	rev     uint64
}

// Lock takes the lease for ttl (at least 1 s, whole seconds, rounded up), or
// returns a *goal.LockedError that says who has it and for how long. owner
// names one attempt, not a process: a second delivery of the same goal to the
// same process is another owner.
func (s *Store) Lock(ctx context.Context, tenant, task, owner string, ttl time.Duration) (*Lock, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	ttl = time.Duration(wholeSeconds(ttl)) * time.Second
	value, err := goal.Marshal(lease{Owner: owner, TTL: goal.Millis(ttl)})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", task, err)
	}
	l := &Lock{s: s, subject: bucketSubject(goal.LocksBucket, digestKey(tenant, task)), value: value, ttl: ttl}
	for {
		l.rev, err = s.createRecord(ctx, write{subject: l.subject, data: value, ttl: ttl})
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, goal.ErrExists) {
			return nil, fmt.Errorf("lock %s: %w", task, err)
		}
		held, err := s.holder(ctx, l.subject)
		if errors.Is(err, goal.ErrNotFound) {
			continue // it ended in between
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", task, err)
		}
		return nil, fmt.Errorf("lock %s: %w", task, held)
	}
}

func (s *Store) holder(ctx context.Context, subject string) (*goal.LockedError, error) {
	r, err := s.getFresh(ctx, bucketStream(goal.LocksBucket), subject)
	if err != nil {
		return nil, err
	}
	var have lease
	if err := goal.Unmarshal(r.Data, &have); err != nil {
		return nil, fmt.Errorf("decode lock: %w", err)
	}
	ttl := time.Duration(have.TTL)
	// The store's clock against ours: never more than the whole lease.
	return &goal.LockedError{Holder: have.Owner, Left: min(ttl, max(0, ttl-time.Since(r.Time)))}, nil
}

// Renew starts the lease's time anew: goal.ErrFenced when it has been lost.
func (l *Lock) Renew(ctx context.Context) error {
	rev, err := l.s.updateRecord(ctx, write{subject: l.subject, data: l.value, ttl: l.ttl}, l.rev)
	if err != nil {
		return fmt.Errorf("renew lock: %w", err)
	}
	l.rev = rev
	return nil
}

// Drop is Release without waiting for an answer, for a task that has ended: a
// lease that stays behind ends by itself and keeps nobody from anything.
func (l *Lock) Drop() error {
	if err := l.s.nc.PublishMsg(removal(l.subject).over(l.rev).message()); err != nil {
		return fmt.Errorf("drop lock: %w", fault(err))
	}
	return nil
}

// Release gives the lease back, by its revision: it never takes another's. A
// lease that was lost before is goal.ErrFenced, which a caller that is done may
// ignore.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.s.removeRecord(ctx, l.subject, l.rev); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

package kv

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	// holdFor is how long a reservation that nobody settles is kept: longer
	// than any task may run, so that clocks that differ do not matter.
	holdFor = time.Hour
	// balanceSettled is how many settled ids a balance remembers.
	balanceSettled = 128
	// balanceHolds bounds the reservations in flight of one tenant.
	balanceHolds = 4096
	// balanceVersion is the version of the stored balance.
	balanceVersion = 1
	// Unlimited is what Left answers for a tenant that has no balance.
	Unlimited = math.MaxInt64
)

// balanceRecord is a tenant's balance: one record, so that every change of it
// is one compare-and-set. Left does not hold what is reserved.
type balanceRecord struct {
	Version int             `json:"version"` // balanceVersion
	Left    int64           `json:"left"`
	Holds   map[string]hold `json:"holds,omitempty"`   // by digest of the id
	Settled []string        `json:"settled,omitempty"` // digests of ids, oldest first
}

// hold is a reservation in flight.
type hold struct {
	Tokens int64 `json:"tokens"`
	Until  int64 `json:"until"` // Unix seconds; released by the next write after it
}

// Balances are the tenants' token balances. A tenant that was granted none is
// not limited. All methods may be called concurrently, by any number of
// processes; a balance never falls below zero. Reserve, Settle and Grant may
// be repeated with the same id. A change is durable when it returns.
type Balances struct{ s *Store }

// Balances returns the token balances.
func (s *Store) Balances() *Balances { return &Balances{s: s} }

// Left is what a tenant may still reserve.
func (b *Balances) Left(ctx context.Context, tenant string) (int64, error) {
	if err := checkTenant(tenant); err != nil {
		return 0, err
	}
	r, rev, err := b.load(ctx, balanceSubject(tenant))
	if err != nil {
		return 0, err
	}
	if rev == 0 {
		return Unlimited, nil
	}
	return r.Left, nil
}

// Grant adds tokens, which may be zero: it makes a tenant limited. The id
// names the grant.
func (b *Balances) Grant(ctx context.Context, tenant, id string, tokens int64) error {
	if tokens < 0 {
		return fmt.Errorf("grant of %d tokens", tokens)
	}
	return b.change(ctx, tenant, func(r *balanceRecord, _ bool) (bool, error) {
		if !r.settle(grantID(id)) {
			return false, nil
		}
		r.Left += min(tokens, math.MaxInt64-r.Left)
		return true, nil
	})
}

// Reserve holds tokens for a planner call, or returns goal.ErrBalance when the
// tenant has fewer or none. An id that holds a reservation already keeps it.
func (b *Balances) Reserve(ctx context.Context, tenant, id string, tokens int64) error {
	return b.change(ctx, tenant, func(r *balanceRecord, limited bool) (bool, error) {
		key := holdID(id)
		if _, held := r.Holds[key]; !limited || held {
			return false, nil
		}
		if tokens = max(tokens, 0); r.Left <= 0 || r.Left < tokens || len(r.Holds) >= balanceHolds {
			return false, goal.ErrBalance
		}
		r.Left -= tokens
		if r.Holds == nil {
			r.Holds = map[string]hold{}
		}
		r.Holds[key] = hold{Tokens: tokens, Until: time.Now().Add(holdFor).Unix()}
		return true, nil
	})
}

// Settle replaces a reservation by what was spent. What was spent beyond it is
// taken from what is left, down to zero. Without a reservation, because it was
// settled already or the tenant was not limited, nothing happens.
func (b *Balances) Settle(ctx context.Context, tenant, id string, spent int64) error {
	return b.change(ctx, tenant, func(r *balanceRecord, _ bool) (bool, error) {
		key := holdID(id)
		h, held := r.Holds[key]
		if !held {
			return false, nil
		}
		delete(r.Holds, key)
		r.Left = max(0, r.Left+h.Tokens-max(spent, 0))
		return true, nil
	})
}

func holdID(id string) string { return digestKey("hold", id)[:24] }

func grantID(id string) string { return digestKey("grant", id)[:24] }

// settle notes an id; false when it was noted before.
func (r *balanceRecord) settle(id string) bool {
	if slices.Contains(r.Settled, id) {
		return false
	}
	r.Settled = append(r.Settled, id)
	r.Settled = r.Settled[max(0, len(r.Settled)-balanceSettled):]
	return true
}

// release gives back what is held by workers that are gone.
func (r *balanceRecord) release(now time.Time) {
	for id, h := range r.Holds {
		if h.Until < now.Unix() {
			delete(r.Holds, id)
			r.Left += h.Tokens
		}
	}
}

func balanceSubject(tenant string) string { return bucketSubject(goal.BalancesBucket, tenant) }

func (b *Balances) load(ctx context.Context, subject string) (balanceRecord, uint64, error) {
	stored, err := b.s.getFresh(ctx, bucketStream(goal.BalancesBucket), subject)
	if errors.Is(err, goal.ErrNotFound) {
		return balanceRecord{Version: balanceVersion}, 0, nil
	}
	if err != nil {
		return balanceRecord{}, 0, err
	}
	var r balanceRecord
	if err := goal.Unmarshal(stored.Data, &r); err != nil {
		return balanceRecord{}, 0, fmt.Errorf("decode balance %s: %w", subject, err)
	}
	if r.Version != balanceVersion {
		return balanceRecord{}, 0, fmt.Errorf("decode balance %s: %w: %d", subject, errVersion, r.Version)
	}
	return r, stored.Seq, nil
}

// change is a compare-and-set on a tenant's record. The function says whether
// it changed the record, and may be called again when another writer was
// faster; limited tells that the tenant has a balance.
func (b *Balances) change(ctx context.Context, tenant string, f func(r *balanceRecord, limited bool) (changed bool, err error)) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	subject := balanceSubject(tenant)
	for attempt := 0; ; attempt++ {
		r, rev, err := b.load(ctx, subject)
		if err != nil {
			return err
		}
		r.release(time.Now())
		changed, err := f(&r, rev > 0)
		if err != nil {
			return err
		}
		if !changed {
			// What it rests on may have been written by a call that did not
			// live to see it durable.
			return b.s.durable(ctx)
		}
		err = b.write(ctx, subject, r, rev)
		if !errors.Is(err, goal.ErrExists) && !errors.Is(err, goal.ErrFenced) {
			return err
		}
		if !pause(ctx, attempt) {
			return fmt.Errorf("balance of %s: %w", tenant, goal.ErrUnavailable)
		}
	}
}

func (b *Balances) write(ctx context.Context, subject string, r balanceRecord, rev uint64) error {
	data, err := goal.Marshal(r)
	if err != nil {
		return err
	}
	if rev == 0 {
		_, err = b.s.create(ctx, subject, data, 0)
	} else {
		_, err = b.s.update(ctx, subject, data, rev, 0)
	}
	return err
}

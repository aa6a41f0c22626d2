package idempotency

import (
	"context"
	"time"
)

// Store keeps records by key, each write compare-and-set. A key is a digest of
// 64 hexadecimal characters, for parts of a large answer followed by
// ".<owner>.<number>". Data has at most 600 KiB. A ttl is in whole seconds; 0
// means until it is replaced. kv.Calls implements it.
//
// Every method may be called concurrently. A write returns only when it is
// durable; after an error other than the ones named here it may have happened.
type Store interface {
	// Create stores the first record of the key. It returns [goal.ErrExists]
	// when there is one, or the trace of one that expired.
	Create(ctx context.Context, key string, data []byte, ttl time.Duration) (rev uint64, err error)
	// Update replaces the record, or the trace, that has the revision, and
	// returns [goal.ErrFenced] when it is another one by now. The ttl starts
	// anew with the same write.
	Update(ctx context.Context, key string, data []byte, rev uint64, ttl time.Duration) (uint64, error)
	// Get returns the record and its revision, or [goal.ErrNotFound], then with
	// the revision of the trace that an expired record left, or 0. What it
	// returns is durable.
	Get(ctx context.Context, key string) (data []byte, rev uint64, err error)
}

// Lister is what the operator's view needs beyond [Store].
type Lister interface {
	// Each calls fn for the records of all calls, without parts, in no
	// particular order, until it returns false.
	Each(ctx context.Context, fn func(key string, data []byte, rev uint64) bool) error
}

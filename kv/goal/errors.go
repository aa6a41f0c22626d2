package goal

import (
	"errors"
	"fmt"
	"time"
)

// The closed list of errors of the store that callers act on. Everything else
// is wrapped with %w and means that the store could not do its work.
var (
	// ErrNotFound: there is no such record, also by the word of the stream's leader.
	ErrNotFound = errors.New("not found")
	// ErrExists: a create-only write met a record that is not the writer's own.
	ErrExists = errors.New("exists already")
	// ErrFenced: a compare-and-set lost. The writer was superseded and must stop.
	ErrFenced = errors.New("superseded by another writer")
	// ErrFull: the store or the tenant's queue takes no more.
	ErrFull = errors.New("store is full")
	// ErrTooLarge: the record is larger than the server takes, and was not sent.
	ErrTooLarge = errors.New("record is too large")
	// ErrBalance: a tenant's tokens are used up.
	ErrBalance = errors.New("the token balance is used up")
	// ErrUnavailable: the store did not answer in time; the write may or may
	// not have happened. Every write may be repeated as it is.
	ErrUnavailable = errors.New("store is unavailable")
)

// LockedError says who holds a lock and for how long at most.
type LockedError struct {
	Holder string
	Left   time.Duration
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("locked by %s for at most %s", e.Holder, e.Left)
}

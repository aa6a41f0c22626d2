package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// writeOutcome is what the server's answer to a write means. One and three
// replicas answer differently; everything else in this package sees only this.
type writeOutcome int

const (
	writeStored  writeOutcome = iota
	writeRetry                // no answer, no leader, or a twin in flight: repeat it as it is
	writeLost                 // a compare-and-set found another sequence: maybe the writer's own first write
	writeMaxed                // the subject has its message, or the stream is full
	writeFull                 // the account or the disk is full
	writeRefused              // will never be stored
)

// Error codes of the server that nats.go has no name for.
const (
	codeDuplicateInProcess jetstream.ErrorCode = 10158 // R3: a twin with the same message id is in flight
	codeDuplicateInBatch   jetstream.ErrorCode = 10201
	codeStoreFailed        jetstream.ErrorCode = 10077 // per-subject or stream limit, by its text only
	codeInsufficient       jetstream.ErrorCode = 10023
	codeMemoryExceeded     jetstream.ErrorCode = 10028
	codeStorageExceeded    jetstream.ErrorCode = 10047
	codeStreamBytes        jetstream.ErrorCode = 10122
	codeClusterNotAvail    jetstream.ErrorCode = 10008
	codeClusterNoPeers     jetstream.ErrorCode = 10005
	codeClusterNotLeader   jetstream.ErrorCode = 10009
	codeTooManyRequests    jetstream.ErrorCode = 10167
)

// classify maps an error of a publish or of an API call.
func classify(err error) writeOutcome {
	if err == nil {
		return writeStored
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return classifyTransport(err)
	}
	switch api.ErrorCode { //nolint:exhaustive // every other code is refused or temporary, by its status below
	case jetstream.JSErrCodeStreamWrongLastSequence:
		return writeLost
	case jetstream.JSErrCodeStreamWrongLastSequenceConstant, codeDuplicateInProcess,
		codeClusterNotAvail, codeClusterNoPeers, codeClusterNotLeader, codeTooManyRequests:
		// A rival of a replicated write is in flight: it may still fail.
		return writeRetry
	case codeDuplicateInBatch:
		return writeLost
	case codeStoreFailed:
		return writeMaxed
	case codeInsufficient, codeMemoryExceeded, codeStorageExceeded, codeStreamBytes:
		return writeFull
	}
	if api.Code == 503 || api.Code == 408 {
		return writeRetry
	}
	return writeRefused
}

func classifyTransport(err error) writeOutcome {
	for _, temporary := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
	} {
		if errors.Is(err, temporary) {
			return writeRetry
		}
	}
	return writeRefused
}

// unavailable wraps the cause with goal.ErrUnavailable.
func unavailable(err error) error {
	if err == nil || errors.Is(err, goal.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", goal.ErrUnavailable, err)
}

// fault is a final error of an operation: what the store could not answer is
// unavailable, the rest stays as it is.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case classify(err) == writeRetry, errors.Is(err, context.Canceled), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining):
		return unavailable(err)
	default:
		return err
	}
}

// pause waits before another attempt, with jitter; false when ctx ends first.
func pause(ctx context.Context, attempt int) bool {
	const first, most = 2 * time.Millisecond, 250 * time.Millisecond
	d := min(most, first<<min(attempt, 10))
	d = d/2 + rand.N(d) //nolint:gosec // jitter
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// One attempt is bounded however late the deadline is: when a leader dies, what
// was on its way to it is never answered, and who waits for the answer holds a
// worker's slot.
const (
	attemptTimeout   = 2 * time.Second
	provisionTimeout = 10 * time.Second // a stream is placed and chooses its leader
)

// attemptContext bounds one attempt.
func attemptContext(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, attemptTime(ctx, most))
}

// attemptTime is how long one attempt may take, so that a lost answer leaves time
// to ask again.
func attemptTime(ctx context.Context, most time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return callTimeout
	}
	left := time.Until(end)
	return min(left, max(left/3, 300*time.Millisecond), most)
}

package idempotency

import (
	"context"
	"sync"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// fate is what a handler knows about its outcome beyond the status.
type fate struct {
	mu      sync.Mutex
	kind    fateKind
	reason  string        // for operators
	problem *goal.Problem // answered in place of what the handler wrote
}

type fateKind int

const (
	fateOK      fateKind = iota // the status tells
	fateNothing                 // nothing happened
	fateUnknown                 // the effect may have happened
)

type fateKey struct{}

func fateOf(ctx context.Context) *fate {
	f, _ := ctx.Value(fateKey{}).(*fate)
	return f
}

// set keeps the first word, except that unknown overrides nothing-happened.
func (f *fate) set(kind fateKind, reason string, p *goal.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind > f.kind {
		f.kind, f.reason, f.problem = kind, reason, p
	}
}

func (f *fate) get() (fateKind, string, *goal.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kind, f.reason, f.problem
}

// MarkUnknown tells, from inside a protected handler, that the call may have
// taken effect whatever status is answered, for example because a request to a
// third party timed out. The call is then held (see [Ambiguous]). The reason is
// shown to operators. It reports whether ctx is that of a protected handler.
func MarkUnknown(ctx context.Context, reason string) bool {
	f := fateOf(ctx)
	if f != nil {
		f.set(fateUnknown, reason, nil)
	}
	return f != nil
}

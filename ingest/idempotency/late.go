package idempotency

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// retry repeats a write to a store that did not take it, until it succeeds, is
// superseded, the deadline passes or the guard closes; then it calls end. Beyond
// maxUnrecorded at one time it gives up at once.
func (g *Guard) retry(deadline time.Time, end func(), move func(context.Context) error) {
	select {
	case g.lateSlot <- struct{}{}:
	default:
		end()
		return
	}
	g.late.Go(func() {
		ctx, cancel := context.WithDeadline(g.ctx, deadline)
		defer func() { <-g.lateSlot }()
		defer cancel()
		defer end()
		for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
			select {
			case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // jitter
			case <-ctx.Done():
				return
			}
			err := g.try(ctx, move)
			if err == nil || errors.Is(err, errLost) {
				return
			}
		}
	})
}

func (g *Guard) try(ctx context.Context, move func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.StoreTimeout)
	defer cancel()
	return move(ctx)
}

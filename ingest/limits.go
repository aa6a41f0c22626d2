package ingest

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// limits holds one limiter per tenant. Tenants come from the configuration, so
// the map is bounded by it.
type limits struct {
	common Limit
	own    map[string]Limit

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newLimits(common Limit, own map[string]Limit) *limits {
	return &limits{common: common, own: own, of: map[string]*rate.Limiter{}}
}

// take takes one submission out of the tenant's rate, or says how long to wait.
func (l *limits) take(tenant string) *goal.Problem {
	lim := l.limiter(tenant)
	if lim == nil {
		return nil
	}
	r := lim.Reserve()
	if !r.OK() {
		return retryLater(goal.NewProblem(goal.RateLimited, "The tenant's rate of submissions is used up."), 60)
	}
	wait := r.Delay()
	if wait <= 0 {
		return nil
	}
	r.Cancel()
	return retryLater(goal.NewProblem(goal.RateLimited, "The tenant's rate of submissions is used up."), seconds(wait))
}

func (l *limits) limiter(tenant string) *rate.Limiter {
	limit, ok := l.own[tenant]
	if !ok {
		limit = l.common
	}
	if limit.PerSecond <= 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lim := l.of[tenant]
	if lim == nil {
		burst := limit.Burst
		if burst == 0 {
			burst = max(1, int(math.Ceil(limit.PerSecond)))
		}
		lim = rate.NewLimiter(rate.Limit(limit.PerSecond), burst)
		l.of[tenant] = lim
	}
	return lim
}

// seconds is d in whole seconds, at least 1, as Retry-After wants it.
func seconds(d time.Duration) int {
	return max(1, int(math.Ceil(d.Seconds())))
}

package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Ambiguous says what happens to a call whose outcome is unknown.
type Ambiguous string

// The two ways. Expire favours availability, Hold never runs such a call again
// by itself.
const (
	// Expire holds the call until its lease ends; then the next attempt runs.
	Expire Ambiguous = "expire"
	// Hold keeps the call until an operator decides, also when the process died
	// while it ran: the record has no time to live before it is completed.
	Hold Ambiguous = "hold"
)

// The bounds and defaults of the contract.
const (
	MinLease      = 30 * time.Second
	MaxLease      = 60 * time.Second
	MinResultTTL  = 24 * time.Hour
	MaxResultTTL  = 7 * 24 * time.Hour
	MaxWait       = 10 * time.Second // of Prefer: wait
	defaultMaxRun = 15 * time.Minute
	defaultBody   = 1 << 20
	maxBody       = 64 << 20
	// defaultWaiters bounds the polls that waiters cost the store.
	defaultWaiters = 256
	// A store that is down answers nothing; 2 s are what a caller should spend on that.
	defaultStoreTimeout = 2 * time.Second
	// maxUnrecorded bounds the answers that wait in memory for a store that is down.
	maxUnrecorded = 64
)

// Config makes a [Guard]. Only Store is required; the zero value of everything
// else means its default.
type Config struct {
	Store Store
	// Name labels the guard in logs and metrics. Default "calls".
	Name string
	// Tenant returns the verified subject whose keys these are: what a
	// credential stands for, never the credential itself, so that a new token
	// finds the old records. A *goal.Problem is answered as it is, any other
	// error with 401. Default: everybody is the tenant "default".
	Tenant func(*http.Request) (string, error)

	Lease       time.Duration // 30 s to 60 s, whole seconds; default 30 s
	ResultTTL   time.Duration // 24 h to 7 d, whole seconds; default 24 h
	MaxRun      time.Duration // then the handler's context ends; default 15 min
	MaxRequest  int64         // body, bytes, also after decoding; default 1 MiB, at most 64 MiB
	MaxResponse int64         // kept body, bytes; default 1 MiB, at most 64 MiB
	// StreamTypes are media types whose answers pass through as they are made.
	// While one lasts, a repetition gets 409 from the process that runs it and
	// 410 from others; once it ended within MaxResponse, the whole of it is
	// replayed. Default text/event-stream.
	StreamTypes []string
	OnAmbiguous Ambiguous // default Expire
	// RequireDerivedKey takes only keys that can be recomputed: the request must
	// carry Goalkeeper-Session, -Step and -Tool.
	RequireDerivedKey bool
	// SlotGuard refuses a slot (session, step, tool) that was used with another
	// payload. It costs one more write for each call that names its slot.
	SlotGuard bool
	// MaxWaiters bounds the requests that wait by Prefer: wait at one time;
	// further ones get 409 at once. Default 256.
	MaxWaiters   int
	StoreTimeout time.Duration         // of each access to the store; default 2 s
	Registerer   prometheus.Registerer // nil: no metrics
	Log          *slog.Logger          // default slog.Default()
}

func (c Config) withDefaults() (Config, error) {
	if c.Tenant == nil {
		c.Tenant = func(*http.Request) (string, error) { return "default", nil }
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if len(c.StreamTypes) == 0 {
		c.StreamTypes = []string{"text/event-stream"}
	}
	fill(&c.Name, "calls")
	fill(&c.Lease, MinLease)
	fill(&c.ResultTTL, MinResultTTL)
	fill(&c.MaxRun, defaultMaxRun)
	fill(&c.MaxRequest, defaultBody)
	fill(&c.MaxResponse, defaultBody)
	fill(&c.OnAmbiguous, Expire)
	fill(&c.MaxWaiters, defaultWaiters)
	fill(&c.StoreTimeout, defaultStoreTimeout)
	return c, c.validate()
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	switch {
	case c.Store == nil:
		return errors.New("idempotency: Store is missing")
	case c.Lease < MinLease || c.Lease > MaxLease || c.Lease%time.Second != 0:
		return fmt.Errorf("idempotency: Lease %s is not whole seconds between %s and %s", c.Lease, MinLease, MaxLease)
	case c.ResultTTL < MinResultTTL || c.ResultTTL > MaxResultTTL || c.ResultTTL%time.Second != 0:
		return fmt.Errorf("idempotency: ResultTTL %s is not whole seconds between %s and %s", c.ResultTTL, MinResultTTL, MaxResultTTL)
	case c.MaxRun < 0:
		return fmt.Errorf("idempotency: MaxRun %s is negative", c.MaxRun)
	case c.MaxRequest < 0 || c.MaxRequest > maxBody:
		return fmt.Errorf("idempotency: MaxRequest %d is not between 1 and %d", c.MaxRequest, maxBody)
	case c.MaxResponse < 0 || c.MaxResponse > maxBody:
		return fmt.Errorf("idempotency: MaxResponse %d is not between 1 and %d", c.MaxResponse, maxBody)
	case c.OnAmbiguous != Expire && c.OnAmbiguous != Hold:
		return fmt.Errorf("idempotency: OnAmbiguous %q is neither %q nor %q", c.OnAmbiguous, Expire, Hold)
	case c.MaxWaiters < 0:
		return fmt.Errorf("idempotency: MaxWaiters %d is negative", c.MaxWaiters)
	case c.StoreTimeout < 0 || c.StoreTimeout > c.Lease/3:
		return fmt.Errorf("idempotency: StoreTimeout %s is not between 0 and a third of the lease", c.StoreTimeout)
	}
	return nil
}

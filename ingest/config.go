package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Queue takes submissions. Both methods may be called concurrently and
// repeated.
type Queue interface {
	// Submit stores the goal durably, or returns what lies under the same task
	// id already, with created false. goal.ErrFull, goal.ErrUnavailable.
	Submit(ctx context.Context, sub goal.Submission) (acc goal.Accepted, created bool, err error)
	// Load reads all that is known about a task, also what was written an
	// instant ago; the goal is durable. goal.ErrNotFound.
	Load(ctx context.Context, tenant, task string) (goal.Snapshot, error)
	// Trace reads the events of the goal with that sequence, as Load has them.
	Trace(ctx context.Context, tenant, task string, seq uint64) ([]goal.Event, error)
}

// Ender ends tasks that no worker works on. The methods may be called
// concurrently and repeated.
type Ender interface {
	RequestCancel(ctx context.Context, acc goal.Accepted) error
	// Settle decides how the task ended, if nobody has, and returns the result
	// that was decided. n is the number of the journal's last event.
	Settle(ctx context.Context, acc goal.Accepted, r goal.Result, n int) (goal.Result, error)
	// Note records an event beside the journal.
	Note(ctx context.Context, acc goal.Accepted, e goal.Event) error
}

// Store is what ingest needs of the store.
type Store interface {
	Queue
	Ender
}

// Deliveries are the webhook deliveries of a task. Both may be called
// concurrently. goal.ErrNotFound where there is none.
type Deliveries interface {
	List(ctx context.Context, tenant, task string) ([]goal.DeliveryView, error)
	// Redeliver has the task's webhook sent again, also when it was delivered.
	Redeliver(ctx context.Context, tenant, task string) (goal.DeliveryView, error)
}

// Limit is how many submissions a tenant may make.
type Limit struct {
	PerSecond float64 // 0: no limit
	Burst     int     // 0: one second's worth, at least 1
}

// Config is what a Server needs. Zero means the default.
type Config struct {
	Store Store         // required
	Auth  Authenticator // required: NewKeys or Anonymous
	// Preflight checks what the schema cannot: environment, tools, roles,
	// probes, balance, pre-conditions. nil: no such checks. It is called
	// concurrently and must end with its context. An error that is a
	// *goal.Problem refuses the goal with it; any other error is a dependency
	// that did not answer. dry: the report will be shown; otherwise only its
	// Refusal counts, and checks that refuse nothing may be left out.
	Preflight func(ctx context.Context, p Principal, g goal.Goal, dry bool) (Report, error)
	// CheckWebhook refuses a webhook_url. nil: none is refused here.
	CheckWebhook func(url string) error

	Tenants []string // whose queues the list and the direct way in read
	// Alone: no other process accepts goals into this store, so that the list
	// needs to read the queue at the start only.
	Alone      bool
	Tail       Tail       // nil: no list; waits ask the store again every PollAfter, event streams end with what there is
	Deliveries Deliveries // nil: no deliveries
	Catalog    Catalog    // nil: no environments, no tools
	Intake     Intake     // nil: no direct submissions
	// DirectRoles are the roles of a tenant's direct submissions, which carry
	// no API key. nil: none.
	DirectRoles func(tenant string) []string
	// Ready says whether the store can be reached. nil: it can.
	Ready func(ctx context.Context) error

	Limit       Limit            // per tenant
	Limits      map[string]Limit // of single tenants
	CORSOrigins []string         // "https://app.example.com", or "*"

	Metrics    http.Handler          // GET /metrics; nil: none
	Pages      http.Handler          // what browsers ask for outside of the API; nil: none
	Admin      http.Handler          // /v1/admin/*, for the role admin; nil: none
	Registerer prometheus.Registerer // nil: nothing is counted
	Log        *slog.Logger          // nil: slog.Default

	StoreTimeout     time.Duration // of one call to the store, default 1.5 s so that the 503 comes within 2 s
	PreflightTimeout time.Duration // default 10 s
	Heartbeat        time.Duration // between comments on an idle event stream, default 15 s
	PollAfter        time.Duration // Retry-After of an unfinished task, default 1 s
	DrainGrace       time.Duration // between readyz turning and the streams' end, default 0
	MaxInFlight      int           // submissions worked on at a time, default 1024; more are answered 503
	MaxWatchers      int           // event streams and waits of one tenant, default 5000; more are answered 429
	ListSize         int           // newest tasks of a tenant that the list shows, default 10000
}

// Defaults and limits that are no setting.
const (
	maxWait         = 60 * time.Second // of Prefer: wait, public contract section 2.1
	bodyTimeout     = 30 * time.Second // to send a body of at most goal.MaxBody
	answerTimeout   = 90 * time.Second // to answer and to write the answer: longer than maxWait
	frameTimeout    = 15 * time.Second // to take one frame of an event stream
	watchBuffer     = 64               // batches that a watcher may lag behind before it is dropped
	defaultListPage = 50
	maxListPage     = 200
	roleAdmin       = "admin"
)

func (c Config) withDefaults() Config {
	c.StoreTimeout = cmp.Or(c.StoreTimeout, 1500*time.Millisecond)
	c.PreflightTimeout = cmp.Or(c.PreflightTimeout, 10*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.PollAfter = cmp.Or(c.PollAfter, time.Second)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 1024)
	c.MaxWatchers = cmp.Or(c.MaxWatchers, 5000)
	c.ListSize = cmp.Or(c.ListSize, 10_000)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.DirectRoles == nil {
		c.DirectRoles = func(string) []string { return nil }
	}
	return c
}

func (c Config) validate() error {
	if c.Store == nil {
		return errors.New("ingest: Store is missing")
	}
	if c.Auth == nil {
		return errors.New("ingest: Auth is missing")
	}
	if _, open := c.Auth.(anonymous); open && slices.Contains(c.CORSOrigins, "*") {
		return errors.New("ingest: without API keys CORS must name its origins: any page could use the server")
	}
	for _, t := range c.Tenants {
		if !goal.ValidTenant(t) {
			return fmt.Errorf("ingest: tenant %q: a name is 1 to 64 of A-Z a-z 0-9 - _", t)
		}
	}
	for tenant, l := range c.Limits {
		if l.PerSecond < 0 || l.Burst < 0 {
			return fmt.Errorf("ingest: limit of %q is negative", tenant)
		}
	}
	return nil
}

package kv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits and defaults of a store.
const (
	DefaultRetention = 7 * 24 * time.Hour
	// DefaultTenant is the one tenant of a store that was given none.
	DefaultTenant = "default"
	// callTimeout bounds a call whose context has no deadline.
	callTimeout = 5 * time.Second
	// submitTimeout bounds Submit: its caller promises a 503 within 2 s.
	submitTimeout = 1800 * time.Millisecond
	// openTimeout bounds Open and AddTenant, which wait for elections.
	openTimeout = 60 * time.Second
)

// Config says where a store lies and what it promises.
type Config struct {
	// Conn is the connection to the server. The store does not close it.
	Conn *nats.Conn
	// Replicas of every stream: 1, 3 or 5; 0 means 1.
	Replicas int
	// Retention is how long a goal, its journal and its result are kept,
	// counted from acceptance; 0 means DefaultRetention.
	Retention time.Duration
	// Tenants to provision; none means DefaultTenant.
	Tenants []string
	// Barrier makes acknowledged writes durable; nil means that the server's
	// acknowledgement is the durability.
	Barrier Barrier
	// Log may be nil: slog.Default.
	Log *slog.Logger
	// LocksInMemory keeps locks in memory: a lease that dies with the server
	// is an expired lease.
	LocksInMemory bool
	// MaxQueued bounds the unfinished goals (waiting and running) of single
	// tenants; Submit answers goal.ErrFull beyond. 0, or no entry, means no
	// bound.
	MaxQueued map[string]int
}

// withDefaults returns the settings in force, or names the one that is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Conn == nil {
		return c, errors.New("kv: Config.Conn is nil")
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Replicas < 1 || c.Replicas > 5 || c.Replicas%2 == 0 {
		return c, fmt.Errorf("kv: Config.Replicas is %d, must be 1, 3 or 5", c.Replicas)
	}
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.Retention < time.Second {
		return c, fmt.Errorf("kv: Config.Retention is %s, must be at least 1s", c.Retention)
	}
	for t, most := range c.MaxQueued {
		if most < 0 {
			return c, fmt.Errorf("kv: Config.MaxQueued of %q is %d, must not be negative", t, most)
		}
	}
	if len(c.Tenants) == 0 {
		c.Tenants = []string{DefaultTenant}
	}
	for _, t := range c.Tenants {
		if err := checkTenant(t); err != nil {
			return c, err
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c, nil
}

func checkTenant(name string) error {
	if !goal.ValidTenant(name) {
		return fmt.Errorf("kv: tenant %q is not 1 to 64 characters of A-Z, a-z, 0-9, - and _", name)
	}
	return nil
}

// Store is the whole storage. All methods may be called concurrently.
type Store struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	pub       publisher
	conf      Config
	log       *slog.Logger
	mu        sync.Mutex             // guards queueStats
	queueInfo map[string]*queueGauge // by tenant
	objects   jetstream.ObjectStore
	presence  presence
	terms     terms
	singles   mailboxes
	rounds    mailboxes
	synced    synced
}

// publisher is the one call through which every write goes; tests lose answers
// here.
type publisher func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error)

// connect makes the store ready to ask.
func (s *Store) connect() {
	s.pub, s.singles.room, s.rounds.room = s.publish, 1, roundRoom
}

// Open provisions streams and buckets (create or update; it may be repeated
// and run by several processes at once) and refuses a server that is older
// than 2.12 or has no JetStream.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, openTimeout)
	defer cancel()
	if err := VersionOK(c.Conn.ConnectedServerVersion()); err != nil {
		return nil, err
	}
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return nil, fmt.Errorf("kv: open JetStream: %w", err)
	}
	s := &Store{nc: c.Conn, js: js, conf: c, log: c.Log, queueInfo: map[string]*queueGauge{}}
	s.connect()
	if err := s.provision(ctx); err != nil {
		return nil, err
	}
	for _, t := range c.Tenants {
		if err := s.AddTenant(ctx, t); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// AddTenant provisions the streams of a tenant. It may be repeated.
func (s *Store) AddTenant(ctx context.Context, tenant string) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, openTimeout)
	defer cancel()
	if err := s.ensureAll(ctx, s.tenantStreams(tenant)); err != nil {
		return err
	}
	return s.ensureWorkers(ctx, tenant)
}

// Retention is how long a goal is kept.
func (s *Store) Retention() time.Duration { return s.conf.Retention }

// minMajor and minMinor are the first server with message schedules and
// per-message TTL in the form that the streams need.
const (
	minMajor = 2
	minMinor = 12
)

// VersionOK returns an error that names the version when the server is too old.
func VersionOK(version string) error {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) >= 2 {
		major, err1 := strconv.Atoi(parts[0])
		minor, err2 := strconv.Atoi(strings.SplitN(parts[1], "-", 2)[0])
		if err1 == nil && err2 == nil {
			if slices.Compare([]int{major, minor}, []int{minMajor, minMinor}) >= 0 {
				return nil
			}
			return fmt.Errorf("kv: NATS server %s is too old: at least %d.%d is needed", version, minMajor, minMinor)
		}
	}
	return fmt.Errorf("kv: NATS server version %q is not understood: at least %d.%d is needed", version, minMajor, minMinor)
}

// bounded gives ctx a deadline at most d away when it has none.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// Nonces are made of a random name of this process and a number.
var (
	nonceOfProcess = rand.Text() + "-"
	nonces         atomic.Uint64
)

// newNonce names one logical write, over all its repetitions.
func newNonce() string { return nonceOfProcess + strconv.FormatUint(nonces.Add(1), 36) }

package kv

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Older is older.
var Older = older

// The low-level writes, for the external tests.

func (s *Store) Create(ctx context.Context, subject string, data []byte, ttl time.Duration) (uint64, error) {
	return s.create(ctx, subject, data, ttl)
}

func (s *Store) Update(ctx context.Context, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	return s.update(ctx, subject, data, rev, ttl)
}

func (s *Store) Get(ctx context.Context, stream, subject string) (Record, error) {
	return s.get(ctx, stream, subject)
}

func (s *Store) Remove(ctx context.Context, subject string, rev uint64) error {
	return s.removeRecord(ctx, subject, rev)
}

func (s *Store) Put(ctx context.Context, subject string, data []byte, msgID string, ttl time.Duration) (uint64, bool, error) {
	return s.putRecord(ctx, write{subject: subject, data: data, msgID: msgID, ttl: ttl})
}

func (s *Store) GetFresh(ctx context.Context, stream, subject string) (Record, error) {
	return s.getFresh(ctx, stream, subject)
}

func (s *Store) CreateResult(ctx context.Context, acc goal.Accepted, r goal.Result) error {
	data, err := s.encodeResult(&r)
	if err == nil {
		_, err = s.createResult(ctx, acc, r, data)
	}
	return err
}

// Request is request.
func (s *Store) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return s.request(ctx, m)
}

// DigestKey is digestKey.
var DigestKey = digestKey

func (s *Store) ReadAll(ctx context.Context, stream, filter string) ([]Record, error) {
	return s.readAll(ctx, stream, filter)
}

// Losing is the store whose next n answers to writes are lost: the server has
// stored them.
func (s *Store) Losing(n int64) *Store {
	var left atomic.Int64
	left.Store(n)
	losing := func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
		ack, err := s.pub(ctx, m)
		if left.Add(-1) >= 0 {
			return nil, nats.ErrTimeout
		}
		return ack, err
	}
	out := &Store{nc: s.nc, js: s.js, conf: s.conf, log: s.log, objects: s.objects, queueInfo: map[string]*queueGauge{}}
	out.connect()
	out.pub = losing
	return out
}

// StartGroupCommit is a group commit with a sync of the test's own.
func StartGroupCommit(dir *os.File, sync func() error) *GroupCommit {
	return startGroupCommit(dir, sync)
}

// SyncFileSystem is syncFileSystem.
var SyncFileSystem = syncFileSystem

// Classify is classify, by name.
func Classify(err error) string {
	return map[writeOutcome]string{
		writeStored: "stored", writeRetry: "retry", writeLost: "lost", writeMaxed: "maxed", writeFull: "full", writeRefused: "refused",
	}[classify(err)]
}

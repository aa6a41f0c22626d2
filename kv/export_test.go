package kv

import (
	"context"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

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
	return s.remove(ctx, subject, rev)
}

func (s *Store) Put(ctx context.Context, subject string, data []byte, msgID string, ttl time.Duration) (uint64, bool, error) {
	return s.put(ctx, subject, data, msgID, ttl)
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

// DigestKey is digestKey.
var DigestKey = digestKey

package kv

import (
	"context"
	"errors"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Result reads the result of this very goal, or nil while there is none. It
// may be repeated and called concurrently.
func (s *Store) Result(ctx context.Context, acc goal.Accepted) (*goal.Result, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	r, _, err := s.result(ctx, acc)
	if errors.Is(err, goal.ErrNotFound) {
		return nil, nil //nolint:nilnil // no result yet is an ordinary answer
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

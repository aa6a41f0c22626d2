package main

import (
	"context"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The steps of a submission between which a crash test ends the process. The
// worker's own are worker.Config.Hook's.
const (
	crashParsed   = "ingest:parsed"   // nothing was read or written
	crashChecked  = "ingest:checked"  // looked for, checked, not written
	crashStored   = "ingest:stored"   // written, not answered
	crashSettled  = "ingest:settled"  // refused: its end is written as well
	crashAnswered = "ingest:answered" // dealt with, not acknowledged to the stream
)

// crashingStore ends the process at a step.
type crashingStore struct {
	submitStore

	crash func(point string)
}

// Submit implements ingest.Queue.
func (s crashingStore) Submit(ctx context.Context, sub goal.Submission) (goal.Accepted, bool, error) {
	s.crash(crashChecked)
	acc, created, err := s.submitStore.Submit(ctx, sub)
	if err == nil {
		s.crash(crashStored)
	}
	return acc, created, err
}

// Settle implements ingest.Ender.
func (s crashingStore) Settle(ctx context.Context, acc goal.Accepted, r goal.Result, n int) (goal.Result, error) {
	won, err := s.submitStore.Settle(ctx, acc, r, n)
	if err == nil {
		s.crash(crashSettled)
	}
	return won, err
}

// crashingIntake ends the process before it acknowledges.
type crashingIntake struct {
	ingest.Intake

	crash func(point string)
}

// ConsumeIntake implements ingest.Intake.
func (i crashingIntake) ConsumeIntake(ctx context.Context, tenant string, take func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration) error {
	return i.Intake.ConsumeIntake(ctx, tenant, func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration {
		again := take(ctx, key, body, at, traceparent)
		if again == 0 {
			i.crash(crashAnswered)
		}
		return again
	})
}

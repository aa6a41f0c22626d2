package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// cancelMark is the stored form of a wish to cancel.
type cancelMark struct {
	GoalSeq uint64    `json:"goal_seq"`
	AskedAt time.Time `json:"asked_at"` // clock of whoever took the request
}

func cancelSubject(tenant, task string) string {
	return bucketSubject(goal.CancelsBucket, digestKey(tenant, task))
}

// RequestCancel leaves a mark that the task is to be cancelled, and wakes the
// worker that runs it. The mark is durable when it returns. It may be repeated.
func (s *Store) RequestCancel(ctx context.Context, acc goal.Accepted) error {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	err := s.markCancel(ctx, acc)
	if err == nil {
		err = s.durable(ctx)
	}
	if err != nil {
		return fmt.Errorf("cancel %s: %w", task, err)
	}
	// The message only saves time: the worker looks at the mark by itself.
	if err := s.nc.Publish(goal.CancelSubject(tenant, task), nil); err != nil {
		s.log.WarnContext(ctx, "cancel message not sent", "task", task, "err", err)
	}
	return nil
}

func (s *Store) markCancel(ctx context.Context, acc goal.Accepted) error {
	data, err := goal.Marshal(cancelMark{GoalSeq: acc.Seq, AskedAt: time.Now().UTC()})
	if err != nil {
		return err
	}
	w := write{subject: cancelSubject(acc.Submission.Tenant, acc.Submission.TaskID), data: data, ttl: ttl(acc), goalSeq: acc.Seq}
	for {
		_, err := s.createRecord(ctx, w)
		if !errors.Is(err, goal.ErrExists) {
			return err
		}
		have, err := s.getFresh(ctx, bucketStream(goal.CancelsBucket), w.subject)
		switch {
		case errors.Is(err, goal.ErrNotFound):
			continue // it expired in between
		case err != nil:
			return err
		case ofGoal(have, acc):
			return nil
		}
		// An earlier goal of this id was cancelled.
		if err := s.current(ctx, acc); err != nil {
			return err
		}
		if _, err = s.updateRecord(ctx, w, have.Seq); !errors.Is(err, goal.ErrFenced) {
			return err
		}
	}
}

// Over reports whether nothing more may be started for the goal: its
// cancellation was asked for, or it has a result.
func (s *Store) Over(ctx context.Context, acc goal.Accepted) (bool, error) {
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	tenant, task := acc.Submission.Tenant, acc.Submission.TaskID
	of := []struct{ stream, subject string }{
		{bucketStream(goal.CancelsBucket), cancelSubject(tenant, task)},
		{bucketStream(goal.ResultsBucket), resultSubject(tenant, task)},
	}
	read, err := s.round(ctx, lastQuestion(of[0].stream, of[0].subject), lastQuestion(of[1].stream, of[1].subject))
	if err != nil {
		return false, fmt.Errorf("ask whether %s is over: %w", task, err)
	}
	for i, record := range of {
		if _, found, err := s.answered(ctx, acc, read[i], record.stream, record.subject); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// cancelBacklog bounds the messages that wait for a slow callback; later ones
// are dropped, and the worker finds the mark by itself.
const cancelBacklog = 1024

// OnCancel calls f, one call at a time, for every cancel message of any tenant.
// stop ends it and waits for the call that runs.
func (s *Store) OnCancel(f func(tenant, task string)) (stop func(), err error) {
	messages := make(chan *nats.Msg, cancelBacklog)
	sub, err := s.nc.ChanSubscribe(goal.CancelSubject("*", "*"), messages)
	if err != nil {
		return nil, fmt.Errorf("watch cancels: %w", fault(err))
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case m := <-messages:
				if token := strings.Split(m.Subject, "."); len(token) == 4 {
					f(token[2], token[3])
				}
			}
		}
	}()
	return func() {
		_ = sub.Unsubscribe() // fails only when the connection is gone
		close(quit)
		<-done
	}, nil
}

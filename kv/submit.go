package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Submit puts a goal into its tenant's queue, once per task id for as long as
// it is retained. created is false when the task was there: acc is then the
// first submission, whose fingerprint the caller compares. It ends within 2 s,
// and may be repeated as it is after any error: goal.ErrFull (only for a task
// that is new), goal.ErrUnavailable, goal.ErrTooLarge. What it returns is
// durable, also when this call did not write it.
func (s *Store) Submit(ctx context.Context, sub goal.Submission) (acc goal.Accepted, created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	if err := checkTask(sub.Tenant, sub.TaskID); err != nil {
		return goal.Accepted{}, false, err
	}
	sub.Version = goal.SubmissionVersion
	data, err := goal.Marshal(sub)
	if err != nil {
		return goal.Accepted{}, false, fmt.Errorf("submit %s: %w", sub.TaskID, err)
	}
	w := write{
		subject: goal.QueueSubject(sub.Tenant, sub.TaskID), data: data,
		nonce: newNonce(), msgID: messageID(sub.Key),
	}
	acc, created, err = s.submit(ctx, sub.Tenant, w)
	if err != nil {
		return goal.Accepted{}, false, fmt.Errorf("submit %s: %w", sub.TaskID, err)
	}
	return acc, created, nil
}

func (s *Store) submit(ctx context.Context, tenant string, w write) (goal.Accepted, bool, error) {
	room, err := s.reserve(ctx, tenant)
	if err != nil {
		return goal.Accepted{}, false, err
	}
	stored, err := uint64(0), goal.ErrFull
	if room {
		stored, err = s.enqueue(ctx, w)
	}
	full := errors.Is(err, goal.ErrFull)
	if err != nil && !full {
		return goal.Accepted{}, false, err
	}
	r, err := s.queued(ctx, tenant, w.subject, stored)
	switch {
	case full && errors.Is(err, goal.ErrNotFound):
		return goal.Accepted{}, false, goal.ErrFull
	case err != nil:
		return goal.Accepted{}, false, unavailable(err)
	}
	acc, err := s.accepted(r)
	if err != nil {
		return goal.Accepted{}, false, err
	}
	created := r.Header.Get(nonceHeader) == w.nonce
	if room && !created {
		s.unreserve(tenant)
	}
	return acc, created, s.durableRecord(ctx, r)
}

// queued reads back what is there: the first submission, or our own with the
// time that the store gave it. stored is the sequence that our own was given.
func (s *Store) queued(ctx context.Context, tenant, subject string, stored uint64) (Record, error) {
	r, err := s.get(ctx, goal.GoalsStream(tenant), subject)
	if err == nil && stored > r.Seq {
		// A replica that is behind still shows an earlier goal of this id.
		r, err = s.getFresh(ctx, goal.GoalsStream(tenant), subject)
	}
	return r, err
}

// enqueue publishes the submission and returns its sequence. goal.ErrFull: the
// stream took no more, because the task is there or because the queue is full.
func (s *Store) enqueue(ctx context.Context, w write) (uint64, error) {
	for {
		ack, err := s.send(ctx, w)
		switch {
		case err != nil:
			return 0, err
		case !ack.Duplicate || w.msgID == "":
			return ack.Sequence, nil
		}
		// The server remembers the id. The goal itself may have gone: an
		// operator removed it.
		_, err = s.getFresh(ctx, ack.Stream, w.subject)
		if !errors.Is(err, goal.ErrNotFound) {
			return ack.Sequence, err
		}
		w.msgID = ""
	}
}

// messageID is the Nats-Msg-Id of a key: the key itself where it can be a
// header as it is, else a digest.
func messageID(key string) string {
	if key == "" || len(key) > 255 {
		return digestKey("key", key)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return digestKey("key", key)
		}
	}
	return key
}

// checkTask makes sure that tenant and task are one subject token each.
func checkTask(tenant, task string) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	if len(task) > 128 || !goal.ValidTenant(task[:min(len(task), 64)]) || len(task) > 64 && !goal.ValidTenant(task[64:]) {
		return fmt.Errorf("kv: task id %.140q is not 1 to 128 characters of A-Z, a-z, 0-9, - and _", task)
	}
	return nil
}

// settledAge is an age at which a record is durable without a barrier: the
// server syncs by itself at least every few seconds.
const settledAge = 15 * time.Second

// durableRecord is durable for a record that was read, perhaps before its
// writer's barrier has passed.
func (s *Store) durableRecord(ctx context.Context, r Record) error {
	if time.Since(r.Time) > settledAge {
		return nil
	}
	return s.durable(ctx)
}

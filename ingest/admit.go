package ingest

import (
	"context"
	"errors"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// request is a submission as it arrived, by whichever way.
type request struct {
	who         Principal
	via         string // "http" or "nats"
	key         string // parsed
	body        []byte
	traceparent string
}

// outcome is an admitted submission: the task as it is now, and whether it was
// there before.
type outcome struct {
	snapshot goal.Snapshot
	replayed bool
}

// admit is the one way into the queue. It checks, looks whether the task exists,
// and submits. Nothing is stored for a goal that is refused, so its key stays
// free. It may be repeated and called concurrently with the same key: the queue
// itself is create-only.
//
// A key that exists is never refused by the preflight: its goal may have changed
// the very state that its own pre-conditions named. One that this process knows
// of is answered before it; any other meets its first goal in the queue, or is
// looked for before a refusal. So a new goal costs no look.
func (s *Server) admit(ctx context.Context, q request) (outcome, error) {
	g, fingerprint, problem := goal.ParseGoal(q.body)
	if problem != nil {
		return outcome{}, problem
	}
	sub := goal.Submission{
		Version: goal.SubmissionVersion, TaskID: goal.TaskID(q.who.Tenant, q.key), Tenant: q.who.Tenant, Key: q.key,
		Fingerprint: fingerprint, Roles: q.who.Roles, Via: q.via, Traceparent: q.traceparent, Goal: g,
	}
	if snap, ok := s.finished.get(sub.Tenant, sub.TaskID); ok {
		return replay(snap, sub)
	}
	if _, _, listed := s.lists.sequence(sub.Tenant, sub.TaskID, time.Now()); listed {
		snap, err := s.load(ctx, sub.Tenant, sub.TaskID)
		if !errors.Is(err, goal.ErrNotFound) {
			return s.replayed(snap, sub, err)
		}
	}
	if err := s.preflight(ctx, q.who, g); err != nil {
		return s.lookAgain(ctx, sub, err)
	}
	return s.submit(ctx, sub)
}

// lookAgain asks for certain before a refusal: the key may be that of a task that
// this process does not list, or a twin may have been admitted, and even have
// reached its target, meanwhile.
func (s *Server) lookAgain(ctx context.Context, sub goal.Submission, refusal error) (outcome, error) {
	snap, err := s.load(ctx, sub.Tenant, sub.TaskID)
	if errors.Is(err, goal.ErrNotFound) {
		return outcome{}, refusal
	}
	return s.replayed(snap, sub, err)
}

// submit stores the submission, or meets the one that was first.
func (s *Server) submit(ctx context.Context, sub goal.Submission) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	acc, created, err := s.cfg.Store.Submit(ctx, sub)
	if err != nil {
		return outcome{}, err
	}
	if !created {
		snap, err := s.load(ctx, sub.Tenant, sub.TaskID)
		if errors.Is(err, goal.ErrNotFound) {
			// The goal's retention ended between two reads.
			snap, err = goal.Snapshot{Accepted: acc}, nil
		}
		return s.replayed(snap, sub, err)
	}
	s.lists.accept(acc)
	return outcome{snapshot: goal.Snapshot{Accepted: acc}}, nil
}

// replayed answers a submission whose task was looked for, and remembers it if it
// has ended.
func (s *Server) replayed(snap goal.Snapshot, sub goal.Submission, err error) (outcome, error) {
	if err != nil {
		return outcome{}, err
	}
	s.finished.put(snap)
	return replay(snap, sub)
}

// replay answers a submission whose task exists.
func replay(snap goal.Snapshot, sub goal.Submission) (outcome, error) {
	if snap.Submission.Fingerprint != sub.Fingerprint {
		return outcome{}, goal.NewProblem(goal.KeyReused, "The key was first used with another payload; the first task is unchanged.")
	}
	return outcome{snapshot: snap, replayed: true}, nil
}

func (s *Server) load(ctx context.Context, tenant, task string) (goal.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	return s.cfg.Store.Load(ctx, tenant, task)
}

// preflight returns the problem that the goal is refused with, or nil.
func (s *Server) preflight(ctx context.Context, who Principal, g goal.Goal) error {
	report, err := s.report(ctx, who, g, false)
	if err != nil {
		return err
	}
	if p := report.Problem(); p != nil {
		return p
	}
	return nil
}

// report runs every check that the schema cannot make.
func (s *Server) report(ctx context.Context, who Principal, g goal.Goal, dry bool) (Report, error) {
	if g.WebhookURL != "" && s.cfg.CheckWebhook != nil {
		if err := s.cfg.CheckWebhook(g.WebhookURL); err != nil {
			p := goal.NewProblem(goal.GoalInvalid, "The webhook_url is refused.")
			p.Errors = []goal.FieldError{{Pointer: "/webhook_url", Detail: err.Error()}}
			return Report{}, p
		}
	}
	if s.cfg.Preflight == nil {
		return Report{Verdict: Ready, Checks: []Check{}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PreflightTimeout)
	defer cancel()
	report, err := s.cfg.Preflight(ctx, who, g, dry)
	var p *goal.Problem
	switch {
	case err == nil:
	case errors.As(err, &p):
		return Report{}, p
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Report{}, err
	default:
		s.cfg.Log.WarnContext(ctx, "preflight failed", "tenant", who.Tenant, "environment", g.EnvironmentName(), "error", err)
		return Report{}, retryLater(goal.NewProblem(goal.DependencyNotAvailable, "A check before the start did not get an answer."), 5)
	}
	if report.Checks == nil {
		report.Checks = []Check{}
	}
	return report, nil
}

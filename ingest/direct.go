package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// direct is a goal that came over NATS.
type direct struct {
	key         []string // lines of Nats-Msg-Id, or of Idempotency-Key for a request
	body        []byte
	at          time.Time // when it was stored; zero for a request
	traceparent string
}

// Intake is the direct way in. Both methods serve one tenant until ctx ends:
// then they take nothing more and wait for what they took. The functions they
// are given are called concurrently, with a context that outlives ctx.
type Intake interface {
	// ConsumeIntake hands over every published goal until it was taken: take
	// returns 0 for one that is dealt with, or when it should come again. A goal
	// comes again also when the process ends before its acknowledgement.
	ConsumeIntake(ctx context.Context, tenant string, take func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) (again time.Duration)) error
	// ServeRequests answers core requests.
	ServeRequests(ctx context.Context, tenant string, answer func(ctx context.Context, key []string, body []byte, traceparent string) (status int, header map[string]string, reply []byte)) error
	// DeadLetter keeps a published goal that no task can be made of, with the
	// reason. It may be repeated.
	DeadLetter(ctx context.Context, tenant, reason string, key []string, body []byte) error
}

// directPatience is how long a direct submission is tried again when a
// dependency of its preflight does not answer, before it fails with that.
const directPatience = time.Minute

func (s *Server) runIntake(ctx context.Context, tenant string) {
	ctx, cancel := s.untilDrain(ctx)
	defer cancel()
	s.keep(ctx, "intake of "+tenant, func(ctx context.Context) error {
		return s.cfg.Intake.ConsumeIntake(ctx, tenant, func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration {
			return s.takeDirect(ctx, tenant, direct{key: key, body: body, at: at, traceparent: traceparent})
		})
	})
}

func (s *Server) runRequests(ctx context.Context, tenant string) {
	ctx, cancel := s.untilDrain(ctx)
	defer cancel()
	s.keep(ctx, "requests of "+tenant, func(ctx context.Context) error {
		return s.cfg.Intake.ServeRequests(ctx, tenant, func(ctx context.Context, key []string, body []byte, traceparent string) (int, map[string]string, []byte) {
			return s.answerRequest(ctx, tenant, direct{key: key, body: body, traceparent: traceparent})
		})
	})
}

// untilDrain ends with ctx and with the drain.
func (s *Server) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.drained:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (s *Server) directPrincipal(tenant string) Principal {
	return Principal{Tenant: tenant, Name: "nats", Roles: s.cfg.DirectRoles(tenant)}
}

// takeDirect admits a published goal, or makes a failed task of it, or puts it
// aside. It returns 0 when the goal is dealt with: whatever it did is durable.
func (s *Server) takeDirect(ctx context.Context, tenant string, d direct) (again time.Duration) {
	key, problem := goal.ParseKey(d.key)
	if problem != nil {
		s.metrics.submission("nats", problem)
		return s.putAside(ctx, tenant, problem, d)
	}
	q := request{who: s.directPrincipal(tenant), via: "nats", key: key, body: d.body, traceparent: traceparent(d.traceparent)}
	out, err := s.admitDirect(ctx, q)
	s.metrics.submissionOutcome("nats", out, err)
	var p *goal.Problem
	switch {
	case err == nil:
		return 0
	case errors.Is(err, goal.ErrTooLarge):
		return s.putAside(ctx, tenant, err, d)
	case !errors.As(err, &p):
		return s.retried(ctx, tenant, err)
	case p.Kind() == goal.KeyReused:
		return s.retried(ctx, tenant, s.noteConflict(ctx, q))
	case p.Kind() == goal.RateLimited, p.Kind() == goal.DependencyNotAvailable && time.Since(d.at) < directPatience:
		return time.Duration(max(1, p.RetryAfter)) * time.Second
	default:
		return s.retried(ctx, tenant, s.refuse(ctx, q, p))
	}
}

func (s *Server) admitDirect(ctx context.Context, q request) (outcome, error) {
	if p := s.limits.take(q.who.Tenant); p != nil {
		return outcome{}, p
	}
	if len(q.body) > goal.MaxBody { // before anything else looks at it
		return outcome{}, goal.NewProblem(goal.PayloadTooLarge, "A goal has at most "+strconv.Itoa(goal.MaxBody)+" bytes.")
	}
	return s.admit(ctx, q)
}

// putAside keeps a goal that no task can be made of.
func (s *Server) putAside(ctx context.Context, tenant string, reason error, d direct) (again time.Duration) {
	return s.retried(ctx, tenant, s.store(ctx, func(ctx context.Context) error {
		return s.cfg.Intake.DeadLetter(ctx, tenant, reason.Error(), d.key, d.body)
	}))
}

// retried is how long to wait after an error of the store; 0 when there is none.
func (s *Server) retried(ctx context.Context, tenant string, err error) time.Duration {
	if err == nil {
		return 0
	}
	s.cfg.Log.WarnContext(ctx, "direct submission comes again", "tenant", tenant, "error", err)
	return time.Duration(max(1, problemOf(err).RetryAfter)) * time.Second
}

// refuse stores a direct submission that HTTP would have refused, as a task that
// failed with the problem, and its webhook if it named a usable one. Both writes
// may be repeated: the first decides.
func (s *Server) refuse(ctx context.Context, q request, p *goal.Problem) error {
	fingerprint, err := goal.Fingerprint(q.body)
	if err != nil { // no JSON: the bytes themselves
		sum := sha256.Sum256(q.body)
		fingerprint = "raw:" + hex.EncodeToString(sum[:])
	}
	sub := goal.Submission{
		Version: goal.SubmissionVersion, TaskID: goal.TaskID(q.who.Tenant, q.key), Tenant: q.who.Tenant, Key: q.key,
		Fingerprint: fingerprint, Roles: q.who.Roles, Via: q.via, Traceparent: q.traceparent, Goal: s.salvage(q.body), Refused: p,
	}
	out, err := s.submit(ctx, sub)
	if _, reused := errors.AsType[*goal.Problem](err); reused {
		return s.noteConflict(ctx, q)
	}
	if err != nil || out.snapshot.Result != nil || out.snapshot.Submission.Refused == nil {
		return err
	}
	refused := out.snapshot.Submission.Refused
	return s.settle(ctx, out.snapshot, goal.Result{
		Status: goal.Failed, Reason: refused.Kind().Reason(), Detail: refused.Detail, HTTPStatus: refused.Status,
		Problem: refused, Checks: refused.Checks,
	})
}

// salvage keeps what can be shown of a refused goal: its intent, and where its
// end is to be reported.
func (s *Server) salvage(body []byte) goal.Goal {
	g, _, problem := goal.ParseGoal(body)
	if problem != nil {
		var loose struct {
			Goal struct {
				Intent any `json:"intent"`
			} `json:"goal"`
			Environment any `json:"environment"`
			WebhookURL  any `json:"webhook_url"`
		}
		g = goal.Goal{}
		if len(body) <= goal.MaxBody && json.Unmarshal(body, &loose) == nil {
			g.Objective.Intent, g.Environment, g.WebhookURL = text(loose.Goal.Intent), text(loose.Environment), text(loose.WebhookURL)
		}
		g.Objective.TargetState = json.RawMessage(`{}`)
	}
	if g.WebhookURL != "" && s.cfg.CheckWebhook != nil && s.cfg.CheckWebhook(g.WebhookURL) != nil {
		g.WebhookURL = ""
	}
	return g
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// noteConflict records beside the first task's journal that its key came again
// with another payload.
func (s *Server) noteConflict(ctx context.Context, q request) error {
	snap, err := s.load(ctx, q.who.Tenant, goal.TaskID(q.who.Tenant, q.key))
	if errors.Is(err, goal.ErrNotFound) {
		return nil // its retention ended meanwhile: nothing is left to note it beside
	}
	if err != nil {
		return err
	}
	return s.store(ctx, func(ctx context.Context) error {
		return s.cfg.Store.Note(ctx, snap.Accepted, goal.Event{Type: goal.KeyConflict, Time: time.Now().UTC()})
	})
}

// answerRequest answers a core request as HTTP would answer the submission.
func (s *Server) answerRequest(ctx context.Context, tenant string, d direct) (status int, header map[string]string, reply []byte) {
	header = map[string]string{}
	out, err := s.directRequest(ctx, tenant, d)
	s.metrics.submissionOutcome("nats", out, err)
	var body any
	if err != nil {
		p := *problemOf(err)
		if p.RetryAfter > 0 {
			header["Retry-After"] = strconv.Itoa(p.RetryAfter)
		}
		if p.Kind() == goal.KeyReused {
			header["X-Should-Retry"] = "false"
		}
		header["Content-Type"] = "application/problem+json"
		status, body = p.Status, p
	} else {
		t := out.snapshot.Task()
		h := http.Header{}
		status, body = s.taskStatus(h, t), t
		header["Location"], header["Content-Type"] = t.Links.Self, "application/json"
		if out.replayed {
			header["Idempotent-Replayed"] = "true"
		}
		if after := h.Get("Retry-After"); after != "" {
			header["Retry-After"] = after
		}
	}
	header["Status"] = strconv.Itoa(status)
	reply, err = goal.Marshal(body)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "answer cannot be encoded", "error", err)
	}
	return status, header, reply
}

func (s *Server) directRequest(ctx context.Context, tenant string, d direct) (outcome, error) {
	key, problem := goal.ParseKey(d.key)
	if problem != nil {
		return outcome{}, problem
	}
	return s.admitDirect(ctx, request{who: s.directPrincipal(tenant), via: "nats", key: key, body: d.body, traceparent: traceparent(d.traceparent)})
}

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// far is a target that no step of these tests reaches by itself.
const far = `{"far":{"1":1}}`

// differently answers every question with another useless step.
func differently(s agent.Situation) (agent.Answer, error) {
	return agent.Answer{Actions: []goal.Action{put("a", "1", strconv.Itoa(len(s.Steps)), "")}, Tokens: 10}, nil
}

// same answers every question with the same useless step.
func same(agent.Situation) (agent.Answer, error) {
	return agent.Answer{Actions: []goal.Action{action("get", "a", "1", "0", "")}}, nil
}

// cycling answers with n useless steps in turn.
func cycling(n int) func(agent.Situation) (agent.Answer, error) {
	return func(s agent.Situation) (agent.Answer, error) {
		return agent.Answer{Actions: []goal.Action{action("get", "a", strconv.Itoa(len(s.Steps)%n), "0", "")}}, nil
	}
}

// TestGuardrails trips each guardrail, and just does not trip it: then the
// planner reaches the target with its next step.
func TestGuardrails(t *testing.T) {
	t.Parallel()
	forbidden := action("charge", "a", "1", "1", "")
	useful := put("far", "1", "1", "")
	broken := goal.Action{Tool: "put", Malformed: "not JSON"}
	missing := action("nosuch", "a", "1", "1", "")
	for _, c := range []struct {
		name   string
		limits goal.Guardrails
		decide func(agent.Situation) (agent.Answer, error)
		steps  int // after so many steps it trips; with one step less it does not
		trip   goal.Trip
	}{
		{
			"max_steps",
			goal.Guardrails{MaxSteps: 3},
			differently, 3,
			goal.Trip{Guardrail: goal.GuardrailMaxSteps, Limit: 3, Observed: 4, Step: 3},
		},
		{
			"max_tokens",
			goal.Guardrails{MaxTokens: 30},
			differently, 4,
			goal.Trip{Guardrail: goal.GuardrailMaxTokens, Limit: int64(30), Observed: int64(40), Step: 4},
		},
		{
			"tool_not_allowed",
			goal.Guardrails{AllowedTools: []string{"put", "get"}},
			script(forbidden, forbidden), 2,
			goal.Trip{Guardrail: goal.GuardrailToolNotAllowed, Limit: []string{"put", "get"}, Observed: "charge", Step: 2},
		},
		{
			"tool outside allowed_tools that does not exist",
			goal.Guardrails{AllowedTools: []string{"put"}},
			script(missing, missing), 2,
			goal.Trip{Guardrail: goal.GuardrailToolNotAllowed, Limit: []string{"put"}, Observed: "nosuch", Step: 2},
		},
		{
			"tool not allowed, where one error is enough",
			goal.Guardrails{AllowedTools: []string{"put"}, MaxConsecutiveErrors: 1},
			script(forbidden, forbidden), 2,
			goal.Trip{Guardrail: goal.GuardrailToolNotAllowed, Limit: []string{"put"}, Observed: "charge", Step: 2},
		},
		{
			"the same step",
			goal.Guardrails{},
			same, 3,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 3, Observed: 3, Step: 3},
		},
		{
			"the same step, four times",
			goal.Guardrails{MaxRepeats: 4},
			same, 4,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 4, Observed: 4, Step: 4},
		},
		{
			"the same step, once",
			goal.Guardrails{MaxRepeats: 1},
			same, 2,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 2, Observed: 2, Step: 2},
		},
		{
			"a cycle of two",
			goal.Guardrails{},
			cycling(2), 6,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 3, Observed: 3, Step: 6},
		},
		{
			"a cycle of three",
			goal.Guardrails{},
			cycling(3), 9,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 3, Observed: 3, Step: 9},
		},
		{
			"arguments that cannot be read",
			goal.Guardrails{MaxRepeats: 9},
			script(broken, broken, broken), 3,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 3, Observed: 3, Step: 3},
		},
		{
			"unknown tools",
			goal.Guardrails{MaxConsecutiveErrors: 2},
			script(missing, missing), 2,
			goal.Trip{Guardrail: goal.GuardrailNoProgress, Limit: 2, Observed: 2, Step: 2},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, far, c.limits)
			w.decide = c.decide
			r := w.end(c.trip.Guardrail)
			if r.Trip == nil || !reflect.DeepEqual(*r.Trip, c.trip) {
				t.Errorf("trip %+v, want %+v", r.Trip, c.trip)
			}
			if r.Usage.Steps != c.steps || r.Status != goal.Failed || r.LeftTotal != 1 || len(r.Left) != 1 {
				t.Errorf("result %+v, want %d steps", r, c.steps)
			}
			for _, call := range w.calls {
				if call.Tool == "charge" || call.Tool == "nosuch" {
					t.Errorf("%s was called", call.Tool)
				}
			}
			// Whoever takes the task over comes to the same end.
			if again := w.end(c.trip.Guardrail); !reflect.DeepEqual(again.Trip, r.Trip) || again.Usage != r.Usage {
				t.Errorf("once more: trip %+v, usage %+v", again.Trip, again.Usage)
			}

			w = newWorld(t, far, c.limits)
			w.decide = func(s agent.Situation) (agent.Answer, error) {
				if len(s.Steps) == c.steps-1 {
					return agent.Answer{Actions: []goal.Action{useful}}, nil
				}
				return c.decide(s)
			}
			if r := w.end(goal.TargetStateReached); r.Usage.Steps != c.steps {
				t.Errorf("just not: usage %+v, want %d steps", r.Usage, c.steps)
			}
		})
	}
}

// TestAnswerThatPassesMaxTokens: it is paid for, and not carried out.
func TestAnswerThatPassesMaxTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{MaxTokens: 9})
	r := w.end(goal.GuardrailMaxTokens)
	if len(w.calls) != 0 || r.Usage != (goal.Usage{Steps: 1, Tokens: 10}) {
		t.Errorf("%d calls, usage %+v", len(w.calls), r.Usage)
	}
}

func TestToolForOtherRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, far, goal.Guardrails{})
	w.tools[0].Roles, w.roles = []string{"finance"}, []string{"support"}
	w.decide = script(action("charge", "a", "1", "1", ""), action("charge", "a", "1", "1", ""))
	if w.end(goal.GuardrailToolNotAllowed); len(w.calls) != 0 {
		t.Errorf("%d calls", len(w.calls))
	}
}

// TestNoProgressWithALateLook: an observation that comes after the outcome
// closes the step, although it shows nothing new.
func TestNoProgressWithALateLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, far, goal.Guardrails{})
		w.decide = same
		w.watch = func(look int) error {
			if look%2 == 0 {
				return errors.New("away")
			}
			return nil
		}
		if r := w.end(goal.GuardrailNoProgress); r.Usage.Steps != 3 {
			t.Errorf("usage %+v", r.Usage)
		}
	})
}

// TestGuardrailsLookOnceMore: a target that holds after the trip is a success,
// whoever made it so.
func TestGuardrailsLookOnceMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limits goal.Guardrails
		decide func(agent.Situation) (agent.Answer, error)
		looks  int
	}{
		{"max_steps", goal.Guardrails{MaxSteps: 1}, differently, 3},
		{"max_tokens", goal.Guardrails{MaxTokens: 1}, differently, 3},
		{"no progress", goal.Guardrails{MaxRepeats: 2}, same, 4},
		{"planner sees nothing to do", goal.Guardrails{}, script(), 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, far, c.limits)
			w.decide = c.decide
			w.watch = func(look int) error {
				if look == c.looks {
					w.set("far", "1", json.Number("1"))
				}
				return nil
			}
			r := w.end(goal.TargetStateReached)
			last := w.events[len(w.events)-1]
			if w.looks != c.looks || r.Trip != nil || last.Type != goal.StateObserved || last.Observed.LeftTotal != 0 {
				t.Errorf("%d looks, trip %+v, last event %s; want the %d. look journaled", w.looks, r.Trip, last.Type, c.looks)
			}
		})
	}
}

func TestPollingIsNotStandingStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, far, goal.Guardrails{MaxSteps: 8})
	w.decide = same
	w.watch = func(look int) error {
		w.set("far", "1", json.Number(strconv.Itoa(10-look))) // the world moves while we poll
		return nil
	}
	w.end(goal.TargetStateReached)
}

func TestToolErrorsAreShownAndCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, far, goal.Guardrails{})
	w.decide = differently
	kinds := []goal.OutcomeKind{goal.CallToolError, goal.CallUnavailable, goal.CallPrecondition, goal.CallTimeout}
	w.call = func(c agent.Call) (goal.Outcome, error) {
		return goal.Outcome{Kind: kinds[c.Step-1], Message: "no"}, nil
	}
	r := w.end(goal.GuardrailNoProgress)
	if r.Usage.Steps != 3 || r.Trip.Observed != 3 {
		t.Errorf("usage %+v, trip %+v", r.Usage, r.Trip)
	}
	if got := w.asked[2].Steps[1].Outcome; got == nil || got.Kind != goal.CallUnavailable || got.Message != "no" {
		t.Errorf("the planner is shown %+v", got)
	}
	if len(r.Effects) != 1 || r.Effects[0] != (goal.Effect{Step: 2, Tool: "put", Outcome: "unknown"}) {
		t.Errorf("effects %+v", r.Effects)
	}
}

func TestUnsafeToolWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, kind := range []goal.OutcomeKind{goal.CallTimeout, goal.CallUnknown} {
		for _, took := range []bool{true, false} {
			w := newWorld(t, `{"paid":{"W1":1}}`, goal.Guardrails{})
			w.decide = func(agent.Situation) (agent.Answer, error) {
				return agent.Answer{Actions: []goal.Action{action("charge", "paid", "W1", "0", "")}}, nil
			}
			w.call = func(agent.Call) (goal.Outcome, error) {
				if took {
					w.set("paid", "W1", json.Number("1"))
				}
				return goal.Outcome{Kind: kind}, nil
			}
			want := goal.OutcomeUnknown
			if took {
				want = goal.TargetStateReached
			}
			r := w.end(want)
			if len(w.calls) != 1 || len(w.asked) != 1 || !took && len(r.Effects) != 1 {
				t.Errorf("%s: %d calls, %d questions, effects %+v", kind, len(w.calls), len(w.asked), r.Effects)
			}
		}
	}
}

func TestToolboxRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		kind string
	}{
		{"arguments", fmt.Errorf("put: %w", &agent.ArgumentsError{Detail: "/id must be a string"}), agent.RefusedArguments},
		{"unknown tool", fmt.Errorf("put: %w", agent.ErrUnknownTool), agent.RefusedUnknownTool},
		{"anything else", errors.New("template is broken"), agent.RefusedNotSent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, refund, goal.Guardrails{})
			w.call = func(call agent.Call) (goal.Outcome, error) {
				if call.Step == 1 {
					return goal.Outcome{}, c.err
				}
				return goal.Outcome{}, nil
			}
			r := w.end(goal.TargetStateReached)
			s := w.asked[1]
			if first := s.Steps[0]; first.Refusal == nil || first.Refusal.Kind != c.kind || first.Outcome != nil || !strings.Contains(s.Notice, first.Refusal.Message) {
				t.Errorf("the planner is shown %+v with notice %q", first, s.Notice)
			}
			if r.Usage != (goal.Usage{Steps: 2, ToolCalls: 1, Tokens: 20}) {
				t.Errorf("usage %+v", r.Usage)
			}
		})
	}
}

func TestNotices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limits goal.Guardrails
		decide func(agent.Situation) (agent.Answer, error)
		asked  int // the question that carries the notice
		notice string
	}{
		{"none", goal.Guardrails{MaxSteps: 1}, differently, 0, ""},
		{"not allowed", goal.Guardrails{AllowedTools: []string{"put", "get"}}, script(action("charge", "a", "1", "1", "")), 1, `"charge" is not allowed. Allowed: get, put.`},
		{"nothing allowed", goal.Guardrails{AllowedTools: []string{}}, script(action("charge", "a", "1", "1", "")), 1, `no tool is`},
		{"no action", goal.Guardrails{}, script(), 1, "1 differences are left"},
		{"repeats", goal.Guardrails{}, same, 2, "the same step came 2 times in a row"},
		{"arguments", goal.Guardrails{}, script(goal.Action{Tool: "put", Arguments: json.RawMessage(`[]`)}), 1, "not a JSON object"},
		{"arguments given twice", goal.Guardrails{}, script(goal.Action{Tool: "put", Arguments: json.RawMessage(`{"a":1,"a":2}`)}), 1, "twice"},
		{"arguments too large", goal.Guardrails{}, script(put("a", "1", "1", strings.Repeat("x", 200_000))), 1, "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, far, c.limits)
			w.decide = c.decide
			if _, err := w.run(t.Context()); err != nil {
				t.Fatalf("Run() error %v", err)
			}
			got := strings.ToLower(w.asked[c.asked].Notice)
			if !strings.Contains(got, strings.ToLower(c.notice)) || c.notice == "" && got != "" {
				t.Errorf("notice %q, want %q", got, c.notice)
			}
		})
	}
}

func TestPlannerSeesNothingToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"far":{"1":1,"2":2}}`, goal.Guardrails{})
	w.decide = script()
	r := w.end(goal.PlannerFailed)
	if r.Detail != "the planner sees nothing to do, 2 differences are left" || len(w.asked) != 2 {
		t.Errorf("detail %q after %d questions", r.Detail, len(w.asked))
	}
}

// TestDeadline: it is counted from the first start by every worker, whatever
// happens, and the state is looked at once more after it.
func TestDeadline(t *testing.T) {
	t.Parallel()
	slow := func(d time.Duration) func(context.Context) {
		return func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(d):
			}
		}
	}
	for _, c := range []struct {
		name string
		hang string // what does not come back in time
	}{{"planner", "planner"}, {"tool", "tool"}, {"state", "state"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, far, goal.Guardrails{TimeoutSeconds: 30})
				h := &hanging{world: w, what: c.hang, hang: slow(time.Hour)}
				began := time.Now()
				r, err := h.run(t.Context())
				if err != nil || r.Reason != goal.GuardrailTimeout {
					t.Fatalf("Run() = %s %s, %v", r.Reason, r.Detail, err)
				}
				want := goal.Trip{Guardrail: goal.GuardrailTimeout, Limit: 30, Observed: 30, Step: r.Usage.Steps}
				if !reflect.DeepEqual(*r.Trip, want) {
					t.Errorf("trip %+v, want %+v", r.Trip, want)
				}
				// The state source hangs in its grace, too.
				if took := time.Since(began); took < 30*time.Second || took > 36*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// hanging is a world in which something does not come back.
type hanging struct {
	*world
	what string
	hang func(context.Context)
}

func (h *hanging) run(ctx context.Context) (goal.Result, error) {
	task := agent.Task{Accepted: h.accepted, History: h.events, Worker: "w1"}
	return agent.Run(ctx, task, agent.Environment{State: h, Tools: h, Planner: h}, h, h.opts)
}

func (h *hanging) Observe(ctx context.Context, e []agent.Entity) (agent.Observation, error) {
	if h.what == "state" {
		h.hang(ctx)
	}
	return h.world.Observe(ctx, e)
}

func (h *hanging) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	if h.what == "tool" {
		h.hang(ctx)
		select {
		case <-ctx.Done():
			return goal.Outcome{Kind: goal.CallTimeout}, nil
		default:
		}
	}
	return h.world.Call(ctx, c)
}

func (h *hanging) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	if h.what == "planner" {
		h.hang(ctx)
	}
	return planner{h.world}.Decide(ctx, s)
}

func TestDeadlineSurvivesTakeover(t *testing.T) {
	t.Parallel()
	c := newClock()
	w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{TimeoutSeconds: 30})
	w.opts.Clock = c.Now
	if !crashes(t, w, agent.AfterCall, 1) {
		t.Fatal("no crash")
	}
	c.Advance(31 * time.Second)
	r := w.end(goal.GuardrailTimeout)
	if len(w.calls) != 1 || r.Trip.Observed != 31 || len(r.Effects) != 1 || r.Effects[0].Outcome != "unknown" {
		t.Errorf("%d calls, trip %+v, effects %+v: nothing may be called after the deadline", len(w.calls), r.Trip, r.Effects)
	}
	for _, e := range w.events {
		if e.Started != nil && !e.Started.Deadline.Equal(w.events[0].Started.Deadline) {
			t.Errorf("attempt %d has deadline %s", e.Started.Attempt, e.Started.Deadline)
		}
	}
}

func TestTimeoutThatReachedTheTarget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, refund, goal.Guardrails{TimeoutSeconds: 30})
		h := &hanging{world: w, what: "tool", hang: func(ctx context.Context) {
			w.set("orders", "W1", "refunded")
			<-ctx.Done()
		}}
		if r, err := h.run(t.Context()); err != nil || r.Status != goal.Succeeded {
			t.Errorf("Run() = %s %s, %v", r.Reason, r.Detail, err)
		}
	})
}

func TestStateThatCannotBeRead(t *testing.T) {
	t.Parallel()
	t.Run("for a while", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, refund, goal.Guardrails{})
			w.watch = func(look int) error {
				if look%4 != 0 {
					return errors.New("away")
				}
				return nil
			}
			w.end(goal.TargetStateReached)
			if got := w.types(); got[0] != goal.TaskStarted || got[1] != goal.StateObserved || got[3] != goal.StepCompleted || got[4] != goal.StateObserved {
				t.Errorf("journal %v: what is known must not wait for the observation", got)
			}
		})
	})
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, refund, goal.Guardrails{})
			w.watch = func(look int) error {
				if look > 1 {
					return errors.New("away")
				}
				return nil
			}
			r := w.end(goal.DependencyUnavailable)
			if len(r.Effects) != 1 || r.Effects[0].Outcome != "done" || r.State == nil {
				t.Errorf("effects %+v, state %s", r.Effects, r.State)
			}
		})
	})
	t.Run("and is never taken for a success", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, `{"orders":{"W1":null}}`, goal.Guardrails{})
			w.watch = func(int) error { return errors.New("away") }
			if r := w.end(goal.DependencyUnavailable); r.State != nil || r.StateHash != "" {
				t.Errorf("result %+v", r)
			}
		})
	})
}

func TestPlannerErrors(t *testing.T) {
	t.Parallel()
	unavailable := func(wait time.Duration) error {
		return &agent.PlannerError{Kind: agent.PlannerUnavailable, Err: errors.New("503"), Retry: wait}
	}
	for _, c := range []struct {
		name   string
		errs   []error // then answers
		reason goal.Reason
		asked  int
		least  time.Duration
	}{
		{"unavailable for a while", []error{unavailable(0), unavailable(0)}, goal.TargetStateReached, 3, 0},
		{"asks to wait", []error{unavailable(20 * time.Second)}, goal.TargetStateReached, 2, 20 * time.Second},
		{"asks to wait too long", []error{unavailable(2 * time.Minute)}, goal.PlannerFailed, 1, 0},
		{"unavailable for good", []error{unavailable(0), unavailable(0), unavailable(0), unavailable(0), unavailable(0)}, goal.PlannerFailed, 5, 0},
		{"not classified", []error{errors.New("odd")}, goal.TargetStateReached, 2, 0},
		{"quota", []error{&agent.PlannerError{Kind: agent.PlannerQuota}}, goal.PlannerFailed, 1, 0},
		{"context length", []error{&agent.PlannerError{Kind: agent.PlannerContext}}, goal.PlannerFailed, 1, 0},
		{"settings", []error{&agent.PlannerError{Kind: agent.PlannerConfig}}, goal.PlannerFailed, 1, 0},
		{"bad answer", []error{&agent.PlannerError{Kind: agent.PlannerBadAnswer}}, goal.PlannerFailed, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, refund, goal.Guardrails{})
				w.decide = func(s agent.Situation) (agent.Answer, error) {
					if n := len(w.asked); n <= len(c.errs) {
						return agent.Answer{}, c.errs[n-1]
					}
					return w.reach(s)
				}
				began := time.Now()
				r := w.end(c.reason)
				if took := time.Since(began); len(w.asked) != c.asked || took < c.least || took > c.least+10*time.Second {
					t.Errorf("%d questions in %s, want %d (%s)", len(w.asked), took, c.asked, r.Detail)
				}
			})
		})
	}
}

// purse is a balance in memory.
type purse struct {
	left     int64
	held     map[string]int64
	reserves int
	err      error
}

func (p *purse) Reserve(_ context.Context, _, id string, tokens int64) error {
	p.reserves++
	if p.err != nil {
		return p.err
	}
	if _, ok := p.held[id]; ok {
		return nil
	}
	if p.left < tokens {
		return agent.ErrBalance
	}
	p.held[id], p.left = tokens, p.left-tokens
	return nil
}

func (p *purse) Settle(_ context.Context, _, id string, spent int64) error {
	p.left += p.held[id] - spent
	p.held[id] = spent
	return p.err
}

func TestBalance(t *testing.T) {
	t.Parallel()
	t.Run("is charged what was spent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
		p := &purse{left: 1000, held: map[string]int64{}}
		w.opts.Balance, w.opts.Reserve = p, 100
		w.end(goal.TargetStateReached)
		if p.left != 980 || p.reserves != 2 {
			t.Errorf("%d tokens are left after %d reservations", p.left, p.reserves)
		}
	})
	t.Run("trips when used up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
		w.opts.Balance, w.opts.Reserve = &purse{left: 10, held: map[string]int64{}}, 10
		r := w.end(goal.GuardrailMaxTokens)
		if r.Trip.Limit != "token balance" || r.Trip.Observed != int64(10) || r.Trip.Step != 1 || len(w.asked) != 1 {
			t.Errorf("trip %+v after %d questions", r.Trip, len(w.asked))
		}
	})
	t.Run("is used to its end", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
		p := &purse{left: 30, held: map[string]int64{}}
		w.opts.Balance = p
		w.end(goal.TargetStateReached)
		if p.left != 10 {
			t.Errorf("%d tokens are left", p.left)
		}
	})
	t.Run("is given back when the planner fails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		p := &purse{left: 100, held: map[string]int64{}}
		w.opts.Balance, w.opts.Reserve = p, 60
		w.decide = func(agent.Situation) (agent.Answer, error) {
			return agent.Answer{}, &agent.PlannerError{Kind: agent.PlannerConfig}
		}
		w.end(goal.PlannerFailed)
		if p.left != 100 {
			t.Errorf("%d tokens are left", p.left)
		}
	})
	t.Run("cannot be reached", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		w.opts.Balance = &purse{err: goal.ErrUnavailable}
		if _, err := w.run(t.Context()); !errors.Is(err, goal.ErrUnavailable) {
			t.Errorf("Run() error %v", err)
		}
	})
	t.Run("is reserved once though the worker crashes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		p := &purse{left: 100, held: map[string]int64{}}
		w.opts.Balance, w.opts.Reserve = p, 60
		if !crashes(t, w, agent.AfterDecide, 1) {
			t.Fatal("no crash")
		}
		w.end(goal.TargetStateReached)
		if p.left != 90 {
			t.Errorf("%d tokens are left, want 90", p.left)
		}
	})
}

// TestLastLook: what the look after a trip may not do.
func TestLastLook(t *testing.T) {
	t.Parallel()
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, far, goal.Guardrails{MaxSteps: 1})
			w.decide = differently
			w.watch = func(look int) error {
				if look > 2 {
					return errors.New("away")
				}
				return nil
			}
			r := w.end(goal.GuardrailMaxSteps)
			if !strings.Contains(r.Detail, "could not be observed once more") || r.LeftTotal != 1 {
				t.Errorf("detail %q, left %d", r.Detail, r.LeftTotal)
			}
		})
	})
	t.Run("is interrupted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, far, goal.Guardrails{MaxSteps: 1})
		w.decide = differently
		ctx, cancel := context.WithCancel(t.Context())
		w.watch = func(look int) error {
			if look > 2 {
				cancel()
			}
			return nil
		}
		if _, err := w.run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() error %v", err)
		}
	})
	t.Run("does not excuse a pre-condition", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, refund, goal.Guardrails{TimeoutSeconds: 10})
			w.set("orders", "W1", "refunded")
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"account":{"version":12}}`)
			began := time.Now()
			w.watch = func(int) error {
				if time.Since(began) < 10*time.Second {
					time.Sleep(4 * time.Second)
					return errors.New("away")
				}
				return nil
			}
			w.opts.ObserveTries = 100
			w.end(goal.GuardrailTimeout)
		})
	})
}

func TestToolsThatCannotBeListed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fails  int
		reason goal.Reason
	}{{"for a while", 3, goal.TargetStateReached}, {"for good", 1000, goal.DependencyUnavailable}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, refund, goal.Guardrails{})
				w.listErrors = c.fails
				w.end(c.reason)
			})
		})
	}
}

// TestUnclassifiedTool: what nobody classified is never repeated.
func TestUnclassifiedTool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.tools[2].Replay = ""
	if !crashes(t, w, agent.BeforeCall, 1) {
		t.Fatal("no crash")
	}
	if w.end(goal.OutcomeUnknown); len(w.calls) != 0 {
		t.Errorf("%d calls", len(w.calls))
	}
}

func TestNoticeAfterAnUnknownEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.call = func(c agent.Call) (goal.Outcome, error) {
		if c.Step == 1 {
			return goal.Outcome{Kind: goal.CallTimeout}, nil
		}
		return goal.Outcome{}, nil
	}
	w.end(goal.TargetStateReached)
	if got := w.asked[1].Notice; !strings.Contains(got, "not known whether step 1 took effect") {
		t.Errorf("notice %q", got)
	}
}

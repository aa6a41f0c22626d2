package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

const refund = `{"orders":{"W1":"refunded"}}`

func TestRunReachesTheTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"orders":{"W1":"refunded","W2":"paid"}}`, goal.Guardrails{})
	w.set("orders", "W2", "open")
	r := w.end(goal.TargetStateReached)

	want := []goal.EventType{
		goal.TaskStarted, goal.StateObserved, goal.StepDecided, goal.StepCompleted, goal.StepDecided, goal.StepCompleted,
	}
	if got := w.types(); !slices.Equal(got, want) {
		t.Errorf("journal is %v, want %v", got, want)
	}
	if w.appends != 5 {
		t.Errorf("%d durable writes, want 1 for the start and 2 for each step", w.appends)
	}
	if want := (goal.Usage{Steps: 2, ToolCalls: 2, Tokens: 20}); r.Usage != want {
		t.Errorf("usage is %+v, want %+v", r.Usage, want)
	}
	if string(r.State) != `{"orders":{"W1":"refunded","W2":"paid"}}` || !strings.HasPrefix(r.StateHash, "sha256:") {
		t.Errorf("state is %s, hash %s", r.State, r.StateHash)
	}
	if r.LeftTotal != 0 || r.Left == nil || r.Effects != nil || r.StartedAt == nil || r.GoalSeq != 7 || r.TaskID != w.accepted.Submission.TaskID {
		t.Errorf("result is %+v", r)
	}
	for i, c := range w.calls {
		key, err := goal.ToolCallKey(w.accepted.Submission.TaskID, i+1, "put", c.Arguments)
		if err != nil || c.Key != key || c.Repeated || c.Step != i+1 || c.Traceparent != w.accepted.Submission.Traceparent {
			t.Errorf("call %d is %+v, want key %s", i, c, key)
		}
	}
}

func TestRunAlreadySatisfied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.set("orders", "W1", "refunded")
	w.set("orders", "W2", "open")
	r := w.end(goal.TargetStateReached)
	if r.Usage != (goal.Usage{}) || len(w.asked) != 0 || len(w.calls) != 0 || w.appends != 1 || w.looks != 1 {
		t.Errorf("usage %+v, %d questions, %d calls, %d writes, %d looks; want one write and one look",
			r.Usage, len(w.asked), len(w.calls), w.appends, w.looks)
	}
}

func TestRunNeverTrustsAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{MaxSteps: 2})
	w.call = func(agent.Call) (goal.Outcome, error) {
		return goal.Outcome{Kind: goal.CallOK, Result: json.RawMessage(refund)}, nil
	}
	r := w.end(goal.GuardrailMaxSteps)
	if r.LeftTotal != 1 || r.Left[0].Pointer != "/orders/W1" {
		t.Errorf("left is %+v", r.Left)
	}
}

func TestRunContinuesPlannedActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"a":{"1":1,"2":2,"3":3}}`, goal.Guardrails{})
	w.decide = func(s agent.Situation) (agent.Answer, error) {
		var all []goal.Action
		for _, d := range s.Left {
			all = append(all, w.put(d))
		}
		return agent.Answer{Actions: all, Tokens: 30}, nil
	}
	r := w.end(goal.TargetStateReached)
	if len(w.asked) != 1 || r.Usage != (goal.Usage{Steps: 3, ToolCalls: 3, Tokens: 30}) {
		t.Errorf("%d questions, usage %+v; want one answer for three steps", len(w.asked), r.Usage)
	}
}

func TestRunStopsPlannedActions(t *testing.T) {
	t.Parallel()
	bad := goal.Action{Tool: "nothing", Arguments: json.RawMessage(`{}`)}
	for _, c := range []struct {
		name   string
		answer []goal.Action
		calls  int
	}{
		{"when the target is reached", []goal.Action{put("a", "1", "1", ""), put("b", "2", "2", "")}, 1},
		{"when one fails", []goal.Action{action("touch", "a", "1", "2", ""), put("b", "2", "2", "")}, 2},
		{"when one is refused", []goal.Action{bad, put("b", "2", "2", "")}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, `{"a":{"1":1}}`, goal.Guardrails{})
			w.call = func(c agent.Call) (goal.Outcome, error) {
				if c.Tool == "touch" {
					return goal.Outcome{Kind: goal.CallToolError, Status: 404}, nil
				}
				return goal.Outcome{}, nil
			}
			w.decide = func(s agent.Situation) (agent.Answer, error) {
				if len(s.Steps) == 0 {
					return agent.Answer{Actions: c.answer}, nil
				}
				return w.reach(s)
			}
			w.end(goal.TargetStateReached)
			if len(w.calls) != c.calls || w.docs["b"] != nil {
				t.Errorf("calls %+v, want %d", w.calls, c.calls)
			}
		})
	}
}

func TestRunOneAnswerNeverPassesMaxSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"x":{"1":1}}`, goal.Guardrails{MaxSteps: 5})
	w.decide = func(agent.Situation) (agent.Answer, error) {
		all := make([]goal.Action, 500)
		for i := range all {
			all[i] = put("a", "1", "1", strings.Repeat("x", i))
		}
		return agent.Answer{Actions: all}, nil
	}
	r := w.end(goal.GuardrailMaxSteps)
	if len(w.calls) != 5 || r.Usage.Steps != 5 || len(w.asked) != 1 {
		t.Errorf("%d calls, usage %+v, %d questions", len(w.calls), r.Usage, len(w.asked))
	}
	if n := len(w.events[2].Decision.Planned); n != 4 {
		t.Errorf("%d actions are journaled as planned, want 4", n)
	}
}

func TestRunFencedStopsAtOnce(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		w := newWorld(t, refund, goal.Guardrails{})
		w.onAppend = func(i int, _ []goal.Event) (bool, error) {
			if i == n {
				return false, goal.ErrFenced
			}
			return true, nil
		}
		_, err := w.run(t.Context())
		if !errors.Is(err, goal.ErrFenced) || w.appends != n {
			t.Errorf("append %d fenced: error %v after %d appends", n, err, w.appends)
		}
		if n < 3 && len(w.calls) != 0 {
			t.Errorf("append %d fenced: a tool was called", n)
		}
	}
}

func TestRunStopsBetweenSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
	stop := make(chan struct{})
	w.opts.Stop = stop
	w.call = func(agent.Call) (goal.Outcome, error) {
		close(stop)
		return goal.Outcome{}, nil
	}
	_, err := w.run(t.Context())
	if !errors.Is(err, agent.ErrStopped) || w.events[len(w.events)-1].Type != goal.StepCompleted {
		t.Fatalf("error %v, journal %v", err, w.types())
	}
	w.opts.Stop, w.call = nil, nil
	w.end(goal.TargetStateReached)
	if len(w.calls) != 2 {
		t.Errorf("%d calls, want 2", len(w.calls))
	}
}

func TestRunGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	ctx, cancel := context.WithCancelCause(t.Context())
	lost := errors.New("the lock was lost")
	w.call = func(agent.Call) (goal.Outcome, error) {
		cancel(lost)
		return goal.Outcome{Kind: goal.CallTimeout}, nil
	}
	if _, err := w.run(ctx); !errors.Is(err, lost) {
		t.Fatalf("Run() error %v, want the cause", err)
	}
	if last := w.events[len(w.events)-1]; last.Type != goal.StepDecided {
		t.Fatalf("last event is %s: a call that our stop cut off must stay in flight", last.Type)
	}
	w.call = nil
	w.end(goal.TargetStateReached)
	if c := w.calls[1]; !c.Repeated || c.Key != w.calls[0].Key {
		t.Errorf("second call is %+v, want the first one repeated", c)
	}
}

func TestRunWritesAKnownOutcomeThoughItMustStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	ctx, cancel := context.WithCancel(t.Context())
	w.call = func(agent.Call) (goal.Outcome, error) {
		cancel()
		return goal.Outcome{}, nil
	}
	if _, err := w.run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Run() error %v", err)
	}
	if last := w.events[len(w.events)-1]; last.Type != goal.StepCompleted {
		t.Fatalf("last event is %s", last.Type)
	}
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	t.Run("before the start", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		asked, ask := context.WithCancel(t.Context())
		ask()
		w.opts = agent.Options{Cancel: asked}
		r := w.end(goal.CancelRequested)
		if r.Status != goal.Cancelled || w.looks != 0 || len(w.events) != 0 || r.StartedAt != nil {
			t.Errorf("result %+v, %d looks, journal %v", r, w.looks, w.types())
		}
	})
	t.Run("before the start, as the store knows", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		w.opts.Over = func(context.Context) (bool, error) { return true, nil }
		r := w.end(goal.CancelRequested)
		if r.Status != goal.Cancelled || len(w.asked)+len(w.calls) > 0 {
			t.Errorf("result %+v, %d questions, %d calls", r, len(w.asked), len(w.calls))
		}
	})
	t.Run("while a tool is called", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
		asked, ask := context.WithCancel(t.Context())
		w.opts = agent.Options{Cancel: asked}
		w.call = func(agent.Call) (goal.Outcome, error) {
			ask()
			return goal.Outcome{}, nil
		}
		r := w.end(goal.CancelRequested)
		if len(w.calls) != 1 || len(r.Effects) != 1 || r.Effects[0] != (goal.Effect{Step: 1, Tool: "put", Outcome: "done"}) {
			t.Errorf("%d calls, effects %+v", len(w.calls), r.Effects)
		}
	})
	t.Run("though the target is reached by then", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		w.opts.Over = func(context.Context) (bool, error) { return len(w.calls) > 0, nil }
		w.end(goal.TargetStateReached)
	})
	t.Run("while the planner thinks", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		asked, ask := context.WithCancel(t.Context())
		w.opts = agent.Options{Cancel: asked}
		w.decide = func(agent.Situation) (agent.Answer, error) {
			ask()
			return agent.Answer{}, context.Canceled
		}
		if r := w.end(goal.CancelRequested); len(r.Effects) != 0 {
			t.Errorf("effects %+v", r.Effects)
		}
	})
	t.Run("with a call in flight at a crash", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		if !crashes(t, w, agent.AfterCall, 1) {
			t.Fatal("no crash")
		}
		w.opts = agent.Options{Over: func(context.Context) (bool, error) { return true, nil }}
		r := w.end(goal.CancelRequested)
		if len(w.calls) != 1 || len(r.Effects) != 1 || r.Effects[0].Outcome != "unknown" {
			t.Errorf("%d calls, effects %+v", len(w.calls), r.Effects)
		}
	})
	t.Run("the store cannot say", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, refund, goal.Guardrails{})
		w.opts.Over = func(context.Context) (bool, error) { return false, goal.ErrUnavailable }
		if _, err := w.run(t.Context()); !errors.Is(err, goal.ErrUnavailable) {
			t.Errorf("Run() error %v", err)
		}
	})
}

func TestRunRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*world)
		reason goal.Reason
	}{
		{"environment is not for the roles", func(w *world) { w.envRoles, w.roles = []string{"finance"}, []string{"support"} }, goal.PermissionDenied},
		{"allowed tool is not for the roles", func(w *world) {
			w.tools[2].Roles = []string{"finance"}
			w.accepted.Submission.Goal.Guardrails.AllowedTools = []string{"put"}
		}, goal.PermissionDenied},
		{"allowed tool does not exist", func(w *world) { w.accepted.Submission.Goal.Guardrails.AllowedTools = []string{"putt"} }, goal.InvalidGoal},
		{"target cannot be read", func(w *world) { w.accepted.Submission.Goal.Objective.TargetState = json.RawMessage(`[1`) }, goal.InvalidGoal},
		{"pre-conditions cannot be read", func(w *world) {
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"etag":1}`)
		}, goal.InvalidGoal},
		{"submission was refused", func(w *world) {
			w.accepted.Submission.Refused = goal.NewProblem(goal.Forbidden, "no")
		}, goal.PermissionDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, refund, goal.Guardrails{})
			c.change(w)
			r := w.end(c.reason)
			if len(w.calls) != 0 || len(w.asked) != 0 || r.Left == nil {
				t.Errorf("%d calls, %d questions, left %v", len(w.calls), len(w.asked), r.Left)
			}
			if p := w.accepted.Submission.Refused; p != nil && (r.Problem != p || len(w.events) != 0) {
				t.Errorf("problem %v, journal %v", r.Problem, w.types())
			}
		})
	}
}

func TestRunOffersOnlyWhatMayBeCalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{AllowedTools: []string{"put", "get"}})
	w.end(goal.TargetStateReached)
	var names []string
	for _, s := range w.asked[0].Tools {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"get", "put"}) {
		t.Errorf("tools %v", names)
	}
	if b := w.asked[0].Budget; b.Steps != 12 || b.Tokens != -1 || b.Time <= 0 {
		t.Errorf("budget %+v", b)
	}
}

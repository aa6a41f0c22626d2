package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// observation is what the checks of these tests see.
func observation(tb testing.TB) agent.Observation {
	tb.Helper()
	return agent.Observation{
		State:     tree(tb, `{"account_version":12,"orders":{"W1":{"status":"open","total":30.0}}}`),
		Revisions: map[string]uint64{"orders/W1": 9007199254740993, "orders/W2": 0},
		ETag:      `"v1"`,
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	target := tree(t, `{"orders":{"W1":{"status":"refunded"}}}`)
	hash, err := goal.StateHash(tree(t, `{"orders":{"W1":{"status":"open","total":30}}}`))
	if err != nil {
		t.Fatal(err)
	}
	other := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct{ name, pre, want string }{
		{"none", ``, `[]`},
		{"all hold", `{"state_hash":"` + hash + `","etag":"\"v1\"","revisions":{"orders/W1":9007199254740993,"orders/W2":0},` +
			`"match":{"orders":{"W1":{"total":30}}},"account_version":12.0,"gone":null}`, `[]`},
		{"root member", `{"account_version":13}`, `[{"pointer":"/account_version","want":13,"have":12}]`},
		{"root member that is absent", `{"x":{"y":1}}`, `[{"pointer":"/x/y","want":1}]`},
		{"match", `{"match":{"orders":{"W1":{"status":"paid"}}}}`, `[{"pointer":"/orders/W1/status","want":"paid","have":"open"}]`},
		{"etag", `{"etag":"\"v2\""}`, `[{"pointer":"/etag","want":"\"v2\"","have":"\"v1\""}]`},
		{"revision, exactly", `{"revisions":{"orders/W1":9007199254740992}}`, `[{"pointer":"/revisions/orders~1W1","want":9007199254740992,"have":9007199254740993}]`},
		{"revision that the source does not tell", `{"revisions":{"orders/W3":0}}`, `[{"pointer":"/revisions/orders~1W3","want":0}]`},
		{"state_hash", `{"state_hash":"` + other + `"}`, `[{"pointer":"/state_hash","want":"` + other + `","have":"` + hash + `"}]`},
		{
			"all fail, in order", `{"b":1,"a":1,"match":{"c":1},"revisions":{"orders/W2":1},"etag":"\"v0\""}`,
			`[{"pointer":"/etag","want":"\"v0\"","have":"\"v1\""},{"pointer":"/revisions/orders~1W2","want":1,"have":0},` +
				`{"pointer":"/c","want":1},{"pointer":"/a","want":1},{"pointer":"/b","want":1}]`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pre, err := goal.ParsePreConditions(json.RawMessage(c.pre))
			if err != nil {
				t.Fatalf("ParsePreConditions: %v", err)
			}
			got, err := goal.Marshal(agent.Check(target, pre, observation(t)))
			if err != nil || string(got) != c.want {
				t.Errorf("Check(%s) is\n%s, want\n%s", c.pre, got, c.want)
			}
		})
	}
}

func TestCheckETagIsStrong(t *testing.T) {
	t.Parallel()
	pre := goal.PreConditions{ETag: `W/"v1"`}
	if got := agent.Check(nil, pre, agent.Observation{ETag: `W/"v1"`}); len(got) != 1 {
		t.Errorf("a weak tag matched: %+v", got)
	}
	if got := agent.Check(nil, goal.PreConditions{ETag: `"v1"`}, agent.Observation{}); len(got) != 1 || got[0].Have != nil {
		t.Errorf("no tag matched: %+v", got)
	}
}

func TestGuardedEntities(t *testing.T) {
	t.Parallel()
	target := tree(t, `{"orders":{"W1":1}}`)
	for raw, want := range map[string]string{
		`{}`:                      ``,
		`{"account_version":12}`:  `account_version`,
		`{"match":{"a":{"b":1}}}`: `a/b`,
		`{"revisions":{"a/b":1}}`: `a/b`,
		`{"state_hash":"sha256:` + strings.Repeat("0", 64) + `","match":{"m":1}}`: `m orders/W1`,
	} {
		pre, err := goal.ParsePreConditions(json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, e := range agent.GuardedEntities(target, pre) {
			keys = append(keys, e.Key())
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("GuardedEntities(%s) = %q, want %q", raw, got, want)
		}
	}
}

func TestPreConditionFailsAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.set("account", "version", json.Number("13"))
	w.set("orders", "W1", "refunded") // pre-conditions come before the target
	w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"account":{"version":12}}`)
	r := w.end(goal.PreconditionFailed)
	if r.HTTPStatus != http.StatusPreconditionFailed || len(w.asked) != 0 || len(w.calls) != 0 || r.Usage != (goal.Usage{}) {
		t.Errorf("status %d, %d questions, %d calls, usage %+v", r.HTTPStatus, len(w.asked), len(w.calls), r.Usage)
	}
	want := []goal.Difference{{Pointer: "/account/version", Want: json.RawMessage("12"), Have: json.RawMessage("13")}}
	if !reflect.DeepEqual(r.Checks, want) {
		t.Errorf("failed checks %+v", r.Checks)
	}
	w.end(goal.PreconditionFailed) // also for whoever takes it over
}

// TestForeignChange: while a task runs, only its own calls may change what its
// pre-conditions name.
func TestForeignChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, pre string
		revisions bool
		by        string // the document that somebody else changes
		reason    goal.Reason
	}{
		{"of a guarded entity", `{"revisions":{"a/1":0,"g/1":1}}`, true, "g", goal.PreconditionFailed},
		{"of an entity that we also write", `{"revisions":{"a/1":0}}`, true, "a", goal.PreconditionFailed},
		{"of something else", `{"revisions":{"a/1":0,"g/1":1}}`, true, "x", goal.TargetStateReached},
		{"of a guarded entity without revisions", `{"g":{"1":"old"}}`, false, "g", goal.PreconditionFailed},
		{"to the same value, without revisions", `{"g":{"1":"new"}}`, false, "g", goal.TargetStateReached},
		{"of something else, without revisions", `{"g":{"1":"old"}}`, false, "x", goal.TargetStateReached},
		{"without pre-conditions", `{}`, true, "g", goal.TargetStateReached},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, takeover := range []bool{false, true} {
				w := newWorld(t, `{"a":{"1":1,"2":2,"3":3}}`, goal.Guardrails{})
				if !c.revisions {
					w.revisions = nil
				}
				w.set("g", "1", "old")
				if strings.HasPrefix(c.name, "to the same") {
					w.set("g", "1", "new")
				}
				w.accepted.Submission.Goal.PreConditions = json.RawMessage(c.pre)
				w.decide = func(s agent.Situation) (agent.Answer, error) {
					if len(s.Steps) == 1 {
						w.set(c.by, "1", "new")
					}
					return w.reach(s)
				}
				if takeover && !crashes(t, w, agent.AfterCall, 1) {
					t.Fatal("no crash")
				}
				r := w.end(c.reason)
				if c.reason == goal.TargetStateReached {
					continue
				}
				if r.HTTPStatus != 412 || len(r.Checks) != 1 || r.Usage.Steps != 1 || r.Usage.Tokens != 20 || len(r.Effects) != 1 {
					t.Errorf("result %+v", r)
				}
				w.checkEffects(t)
			}
		})
	}
}

// TestToolThatDoesNotSayWhatItWrote: its own write is no foreign change.
func TestToolThatDoesNotSayWhatItWrote(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
	w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"revisions":{"a/1":0,"a/2":0}}`)
	w.call = func(c agent.Call) (goal.Outcome, error) {
		d := w.asked[len(w.asked)-1].Left[0]
		e := agent.EntityOf(d.Pointer[1:])
		w.set(e.Collection, e.ID, json.Number(d.Want))
		if c.Step == 1 {
			return goal.Outcome{Kind: goal.CallTimeout}, nil // and it took effect all the same
		}
		return goal.Outcome{Kind: goal.CallOK}, nil
	}
	w.end(goal.TargetStateReached)
}

// TestForeignChangeDuringACall: seen where the call says what it wrote, or that
// it wrote nothing.
func TestForeignChangeDuringACall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		call func(*world) (goal.Outcome, error)
		look int // before which somebody else writes
	}{
		{"that names its revision", func(*world) (goal.Outcome, error) { return goal.Outcome{}, nil }, 3},
		{"that failed", func(w *world) (goal.Outcome, error) {
			w.set("a", "1", "foreign")
			return goal.Outcome{Kind: goal.CallToolError}, nil
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"revisions":{"a/1":0}}`)
			w.call = func(agent.Call) (goal.Outcome, error) { return c.call(w) }
			w.watch = func(look int) error {
				if look == c.look {
					w.set("a", "1", "foreign")
				}
				return nil
			}
			r := w.end(goal.PreconditionFailed)
			if len(r.Checks) != 1 || r.Checks[0].Pointer != "/revisions/a~11" || r.Usage.Steps != 1 {
				t.Errorf("checks %+v, usage %+v", r.Checks, r.Usage)
			}
		})
	}
}

// wholeMember is a world whose root members are documents of their own: all
// entities of one have its revision.
type wholeMember struct{ *world }

func (w wholeMember) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	obs, err := w.world.Observe(ctx, entities)
	for key := range obs.Revisions {
		obs.Revisions[key] = w.revision(agent.EntityOf(key).Collection)
	}
	return obs, err
}

func (w wholeMember) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	out, err := w.world.Call(ctx, c)
	for key := range out.Revisions {
		e := agent.EntityOf(key)
		out.Revisions = map[string]uint64{e.Collection: w.revision(e.Collection)}
	}
	return out, err
}

func (w wholeMember) revision(collection string) (sum uint64) {
	for key, revision := range w.revisions {
		if agent.EntityOf(key).Collection == collection {
			sum += revision
		}
	}
	return sum
}

func TestWriteOfAWholeMemberIsOurOwn(t *testing.T) {
	t.Parallel()
	for _, pre := range []string{`{"revisions":{"a/1":0,"a/2":0}}`, `{"a":{}}`, `{"match":{"a":{}},"revisions":{"a/2":0}}`} {
		for _, foreign := range []bool{false, true} {
			w := newWorld(t, `{"a":{"1":1,"2":2}}`, goal.Guardrails{})
			if strings.Contains(pre, "{}") {
				w.docs["a"] = map[string]any{"0": json.Number("0")}
			}
			w.accepted.Submission.Goal.PreConditions = json.RawMessage(pre)
			w.decide = func(s agent.Situation) (agent.Answer, error) {
				if len(s.Steps) == 1 && foreign {
					w.set("a", "3", "foreign")
				}
				return w.reach(s)
			}
			env := agent.Environment{State: wholeMember{w}, Tools: wholeMember{w}, Planner: planner{w}}
			r, err := agent.Run(t.Context(), agent.Task{Accepted: w.accepted}, env, w, agent.Options{})
			want := goal.TargetStateReached
			if foreign {
				want = goal.PreconditionFailed
			}
			if err != nil || r.Reason != want {
				t.Errorf("%s, foreign %t: %s %+v %v, want %s", pre, foreign, r.Reason, r.Checks, err, want)
			}
		}
	}
}

func TestReadingToolsAreNotGuarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{})
	w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"revisions":{"g/1":0}}`)
	w.decide = script(action("get", "g", "1", "0", ""), put("orders", "W1", `"refunded"`, ""))
	w.call = func(c agent.Call) (goal.Outcome, error) {
		if c.Step == 1 {
			w.set("g", "1", "foreign")
		}
		return goal.Outcome{}, nil
	}
	if r := w.end(goal.PreconditionFailed); len(w.calls) != 1 || r.Usage.Steps != 1 {
		t.Errorf("%d calls, usage %+v", len(w.calls), r.Usage)
	}
}

// probe is a third party.
type probe struct {
	name string
	err  error
}

func (p probe) Name() string { return p.name }
func (p probe) Check(ctx context.Context) error {
	if p.name == "slow" {
		<-ctx.Done()
		return ctx.Err()
	}
	return p.err
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	type setup struct {
		w      *world
		env    *agent.Environment
		caller *agent.Caller
	}
	balance := func(left int64, err error) func(context.Context) (int64, error) {
		return func(context.Context) (int64, error) { return left, err }
	}
	for _, c := range []struct {
		name    string
		change  func(setup)
		verdict agent.Verdict
		problem goal.ProblemType
		checks  string
	}{
		{"ready", func(setup) {}, agent.Ready, "", "roles tools probe:bank state pre_conditions target_state"},
		{"already satisfied", func(s setup) { s.w.set("orders", "W1", "refunded") }, agent.AlreadySatisfied, "", "roles tools probe:bank state pre_conditions target_state"},
		{"environment", func(s setup) { s.env.Roles = []string{"finance"} }, agent.Blocked, goal.Forbidden, "-roles"},
		{"environment that is permitted", func(s setup) { s.env.Roles, s.caller.Roles = []string{"finance", "x"}, []string{"x"} }, agent.Ready, "", "roles tools probe:bank state pre_conditions target_state"},
		{"unknown tool", func(s setup) {
			s.w.accepted.Submission.Goal.Guardrails.AllowedTools = []string{"put", "putt"}
		}, agent.Blocked, goal.GoalInvalid, "roles -tools"},
		{"tool for others", func(s setup) {
			s.w.tools[2].Roles = []string{"finance"}
			s.w.accepted.Submission.Goal.Guardrails.AllowedTools = []string{"put"}
		}, agent.Blocked, goal.Forbidden, "roles -tools"},
		{"probe", func(s setup) {
			s.env.Probes = []agent.Probe{probe{name: "bank"}, probe{"mail", errors.New("10.0.0.1 refused")}}
		}, agent.Blocked, goal.DependencyNotAvailable, "roles tools probe:bank -probe:mail state pre_conditions target_state"},
		{"balance", func(s setup) { s.caller.Balance = balance(1, nil) }, agent.Ready, "", "roles tools probe:bank token_balance state pre_conditions target_state"},
		{"balance used up", func(s setup) { s.caller.Balance = balance(0, nil) }, agent.Blocked, goal.TokenBalanceExhausted, "roles tools probe:bank -token_balance state pre_conditions target_state"},
		{"balance unknown", func(s setup) { s.caller.Balance = balance(0, goal.ErrUnavailable) }, agent.Blocked, goal.StoreUnavailable, "roles tools probe:bank -token_balance state pre_conditions target_state"},
		{"state", func(s setup) { s.w.watch = func(int) error { return errors.New("away") } }, agent.Unknown, goal.DependencyNotAvailable, "roles tools probe:bank -state"},
		{"pre-condition", func(s setup) {
			s.w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"account_version":12}`)
		}, agent.Blocked, goal.PreconditionMismatch, "roles tools probe:bank state -pre_conditions target_state"},
		{"two at once", func(s setup) {
			s.env.Probes = []agent.Probe{probe{"bank", errors.New("away")}}
			s.w.watch = func(int) error { return errors.New("away") }
		}, agent.Blocked, goal.DependencyNotAvailable, "roles tools -probe:bank -state"},
		{"target that cannot be read", func(s setup) {
			s.w.accepted.Submission.Goal.Objective.TargetState = json.RawMessage(`[]`)
		}, agent.Blocked, goal.GoalInvalid, "roles tools probe:bank -target_state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, refund, goal.Guardrails{})
			env := agent.Environment{Name: "shop", State: w, Tools: w, Probes: []agent.Probe{probe{name: "bank"}}}
			caller := agent.Caller{}
			c.change(setup{w, &env, &caller})
			r, err := agent.Preflight(t.Context(), env, w.accepted.Submission.Goal, caller)
			if err != nil {
				t.Fatalf("Preflight() error %v", err)
			}
			var names []string
			for _, check := range r.Checks {
				name := check.Name
				if !check.OK {
					name = "-" + name
				}
				names = append(names, name)
			}
			if got := strings.Join(names, " "); r.Verdict != c.verdict || got != c.checks {
				t.Errorf("Preflight() = %s %s, want %s %s", r.Verdict, got, c.verdict, c.checks)
			}
			p := r.Problem()
			switch {
			case (p == nil) != (c.problem == ""), p != nil && p.Kind() != c.problem:
				t.Errorf("problem %v, want %s", p, c.problem)
			case p != nil && strings.Contains(p.Error(), "10.0.0.1"):
				t.Errorf("problem %v names an address", p)
			}
			if len(w.events) != 0 || len(w.calls) != 0 {
				t.Error("a preflight had an effect")
			}
		})
	}
}

func TestPreflightProblemMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refund, goal.Guardrails{AllowedTools: []string{"put", "putt", "get"}})
	env := agent.Environment{State: w, Tools: w, Probes: []agent.Probe{probe{"bank", errors.New("away")}}}
	report := func() *goal.Problem {
		r, err := agent.Preflight(t.Context(), env, w.accepted.Submission.Goal, agent.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Problem()
	}
	if p := report(); p.Status != 422 || len(p.Errors) != 1 || p.Errors[0].Pointer != "/guardrails/allowed_tools/1" {
		t.Errorf("problem %+v", p)
	}
	w.accepted.Submission.Goal.Guardrails.AllowedTools = nil
	if p := report(); p.Status != 503 || p.RetryAfter == 0 {
		t.Errorf("problem %+v", p)
	}
	env.Probes = nil
	w.accepted.Submission.Goal.PreConditions = json.RawMessage(`{"match":{"orders":{"W1":"open"}}}`)
	if p := report(); p.Status != 412 || len(p.Checks) != 1 || p.Checks[0].Pointer != "/orders/W1" {
		t.Errorf("problem %+v", p)
	}
}

func TestPreflightDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, refund, goal.Guardrails{})
		env := agent.Environment{State: w, Tools: w, Probes: []agent.Probe{probe{name: "slow"}, probe{name: "slow"}}}
		began := time.Now()
		r, err := agent.Preflight(t.Context(), env, w.accepted.Submission.Goal, agent.Caller{})
		if err != nil || r.Verdict != agent.Blocked || time.Since(began) > 5*time.Second {
			t.Errorf("Preflight() = %s, %v in %s", r.Verdict, err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := agent.Preflight(ctx, env, w.accepted.Submission.Goal, agent.Caller{}); !errors.Is(err, context.Canceled) {
			t.Errorf("Preflight() error %v", err)
		}
	})
}

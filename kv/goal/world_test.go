package goal_test

import (
	"encoding/json"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// at is a time of the example task, in seconds after it was accepted.
func at(seconds int) time.Time {
	return time.Date(2026, 11, 30, 12, 0, seconds, 0, time.FixedZone("CET", 3600))
}

// exampleEvents has one event of each type, with every member set.
func exampleEvents() []goal.Event {
	left := []goal.Difference{{Pointer: "/orders/W1/status", Want: json.RawMessage(`"refunded"`), Have: json.RawMessage(`"delivered"`)}}
	action := goal.Action{Tool: "orders.refund", Arguments: json.RawMessage(`{"id":"W1","amount":129.90}`)}
	usage := goal.Usage{Steps: 2, ToolCalls: 1, Tokens: 812, Estimated: true}
	return []goal.Event{
		{N: 1, Type: goal.TaskStarted, Time: at(1).UTC(), Worker: "w1", Started: &goal.Started{
			Attempt: 1, GoalSeq: 17, Deadline: at(121).UTC(), Revisions: map[string]uint64{"orders/W1": 7}, ETag: `"v7"`,
		}},
		{N: 2, Type: goal.StateObserved, Time: at(1).UTC(), Worker: "w1", Observed: &goal.Observed{
			Left: left, LeftTotal: 1, Leaves: 2, StateHash: "sha256:00", Revisions: map[string]uint64{"orders/W1": 7}, ETag: `"v7"`,
		}},
		{N: 3, Type: goal.StepRefused, Time: at(2).UTC(), Worker: "w1", Step: 1, Refusal: &goal.Refusal{
			Action: goal.Action{Tool: "orders.delete", Arguments: json.RawMessage(`{}`), Malformed: "id is required"}, Kind: "not_allowed",
			Message: "orders.delete is not allowed", Why: "clean up", Tokens: 400, Estimated: true, Took: goal.Millis(1500 * time.Millisecond),
			PlannerState: json.RawMessage(`{"secret":1}`),
		}},
		{N: 4, Type: goal.StepDecided, Time: at(3).UTC(), Worker: "w1", Step: 2, Decision: &goal.Decision{
			Action: action, Key: "8a9887b4", Replay: goal.ReplayKeyed, Why: "refund <the> order & more", Planned: []goal.Action{action},
			Tokens: 412, Took: goal.Millis(900 * time.Millisecond), PlannerState: json.RawMessage(`{"secret":1}`),
		}},
		{N: 5, Type: goal.TaskResumed, Time: at(40).UTC(), Worker: "w2", Started: &goal.Started{Attempt: 2, GoalSeq: 17, Deadline: at(121).UTC()}},
		{N: 6, Type: goal.StepCompleted, Time: at(41).UTC(), Worker: "w2", Step: 2, Outcome: &goal.Outcome{
			Kind: goal.CallOK, Status: 200, Result: json.RawMessage(`{"status":"refunded"}`), Message: "done", Attempts: 2, Replayed: true,
			Repeated: true, Size: 70000, Digest: "sha256:00", Object: "results/1", Took: goal.Millis(12 * time.Millisecond),
			Revisions: map[string]uint64{"orders/W1": 8},
		}, Observed: &goal.Observed{Left: []goal.Difference{}, Leaves: 2, StateHash: "sha256:01"}},
		{N: 7, Type: goal.KeyConflict, Time: at(42).UTC()},
		{N: 8, Type: goal.TaskEnded, Time: at(42).UTC(), Worker: "w2", Ended: &goal.Ended{
			Status: goal.Failed, Reason: goal.GuardrailMaxSteps, Detail: "2 steps were used", Usage: usage,
			Trip: &goal.Trip{Guardrail: goal.GuardrailMaxSteps, Limit: 2, Observed: 3, Step: 3},
		}},
	}
}

// exampleSnapshot is an accepted goal without events and without a result.
func exampleSnapshot() goal.Snapshot {
	g, fingerprint, p := goal.ParseGoal([]byte(contractGoal))
	if p != nil {
		panic(p)
	}
	g.WebhookURL = "https://user:secret@example.com/hooks?token=secret#x"
	id := goal.TaskID("default", "k1")
	return goal.Snapshot{Accepted: goal.Accepted{
		Submission: goal.Submission{
			Version: goal.SubmissionVersion, TaskID: id, Tenant: "default", Key: "k1", Fingerprint: fingerprint,
			Roles: []string{"agent"}, Via: "http", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Goal: g,
		},
		Seq: 17, At: at(0), Expires: at(0).Add(7 * 24 * time.Hour),
	}}
}

// exampleResult is how the example task ended, with every member set.
func exampleResult() *goal.Result {
	started := at(1)
	return &goal.Result{
		Version: goal.ResultVersion, TaskID: goal.TaskID("default", "k1"), Tenant: "default", GoalSeq: 17,
		Status: goal.Failed, Reason: goal.GuardrailMaxSteps, Detail: "2 steps were used", HTTPStatus: 412,
		Problem: goal.NewProblem(goal.GoalInvalid, "One place in the goal is wrong."),
		Trip:    &goal.Trip{Guardrail: goal.GuardrailMaxSteps, Limit: 2, Observed: 3, Step: 3},
		Checks:  []goal.Difference{{Pointer: "/account_version", Want: json.RawMessage(`12`)}},
		Left:    []goal.Difference{{Pointer: "/orders/W1/status", Want: json.RawMessage(`"refunded"`), Have: json.RawMessage(`null`)}}, LeftTotal: 1,
		Effects: []goal.Effect{{Step: 2, Tool: "orders.refund", Outcome: "done"}},
		Usage:   goal.Usage{Steps: 2, ToolCalls: 1, Tokens: 812, Estimated: true},
		State:   json.RawMessage(`{"orders":{"W1":{"status":"<delivered>","id":9007199254740993}}}`), StateHash: "sha256:01",
		StartedAt: &started, EndedAt: at(42), Worker: "w2",
	}
}

package planner

import (
	"context"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Script is a planner that knows its answers in advance: the n-th step is the
// n-th action, whatever became of the earlier ones, and nothing comes after
// the last.
type Script []goal.Action

// Decide implements agent.Planner.
func (s Script) Decide(_ context.Context, situation agent.Situation) (agent.Answer, error) {
	n := len(situation.Steps)
	if n >= len(s) {
		return agent.Answer{Why: "the script has ended"}, nil
	}
	return agent.Answer{Actions: []goal.Action{s[n]}, Why: "next action of the script"}, nil
}

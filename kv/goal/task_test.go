package goal_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestStates(t *testing.T) {
	t.Parallel()
	moves := []string{}
	for _, from := range goal.States() {
		for _, to := range goal.States() {
			if from.CanMove(to) {
				moves = append(moves, string(from+">"+to))
			}
		}
	}
	want := []string{
		"queued>running", "queued>failed", "queued>cancelled",
		"running>succeeded", "running>failed", "running>cancelled",
	}
	slices.Sort(moves)
	slices.Sort(want)
	if !slices.Equal(moves, want) {
		t.Errorf("moves %q, want %q", moves, want)
	}
}

// However a task is pushed, a terminal state is its last.
func TestTerminalStatesNeverMove(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := goal.Queued
		for _, to := range rapid.SliceOf(rapid.SampledFrom(goal.States())).Draw(t, "pushes") {
			if !at.CanMove(to) {
				continue
			}
			if at.Terminal() || to == goal.Queued || to == at {
				t.Fatalf("%s moves to %s", at, to)
			}
			at = to
		}
	})
	if unknown := goal.State("paused"); unknown.CanMove(goal.Running) || goal.Queued.CanMove(unknown) {
		t.Error("an unknown state moves")
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	seen := map[goal.Reason]bool{}
	for _, r := range goal.Reasons() {
		if seen[r] || r == "" {
			t.Errorf("reason %q is listed twice", r)
		}
		seen[r] = true
		if r.Guardrail() != strings.HasPrefix(string(r), "GUARDRAIL_") {
			t.Errorf("%s.Guardrail() = %t", r, r.Guardrail())
		}
	}
}

func TestValidTenant(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"default": true, "A-b_9": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a.b": false, "a*": false, ">": false, "a b": false, "é": false, "a\n": false,
	} {
		if got := goal.ValidTenant(name); got != want {
			t.Errorf("ValidTenant(%q) = %t, want %t", name, got, want)
		}
	}
}

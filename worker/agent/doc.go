// Package agent is the loop that drives one task: observe, decide, journal the
// decision, call the tool, journal the outcome, observe again.
//
// It promises that success is only ever an observation of the target state;
// that a journaled decision is never asked of the planner again and its call
// carries the same Idempotency-Key on every repeat; that no tool outside the
// guardrails is dispatched; and that the deadline survives crashes.
//
// Preflight checks what can be known of a goal before it is accepted; Left says
// what is left of a target.
//
// It knows neither NATS nor HTTP: everything comes through the interfaces
// below. It does not settle the task: it returns the result and the worker
// stores it.
package agent

// Package planner decides what to do next: by a chat-completions model, by an
// HTTP service, by the built-in planner that writes the target through the
// state tools, or by a script.
//
// It promises that deciding has no side effect, that only calls which a
// planner states as calls are taken for calls (never its prose), that every
// answer ends with its context, and that failures come in the closed list of
// agent.PlannerErrorKind.
//
// It does not check whether a tool is allowed or arguments are valid: the loop
// and the tools do.
package planner

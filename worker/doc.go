// Package worker takes goals from the queue, drives each one with worker/agent
// and settles it.
//
// It promises that a taken goal is settled exactly once, whatever crashes in
// between: the journal is fenced, the result is create-only, and the message
// is acknowledged last. A worker that lost its lock or its fence stops and
// leaves the goal to its successor.
//
// It does not promise that a tool call is sent only once: a call in flight at a
// crash is repeated with the same Idempotency-Key (or, for an unsafe tool, not
// repeated at all). See DESIGN.md beside this file.
package worker

// Package ingest is every way in: the HTTP API and the direct submissions over
// NATS, admitted by one function, and the views on what was admitted.
//
// It promises that a submission is answered 202 only when the goal is durable,
// that one key of a tenant is one task whichever way and however often it comes,
// that a refused submission leaves nothing behind, that nobody sees another
// tenant's tasks, and that every error is a problem (RFC 9457) of a closed list.
//
// It does not run goals, it does not deliver webhooks, and it keeps nothing of
// its own: lists are a bounded projection that is rebuilt at every start. See
// DESIGN.md.
package ingest

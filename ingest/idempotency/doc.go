// Package idempotency makes the calls that agents send to HTTP backends safe
// to repeat (public contract, section 3): a middleware for Go backends
// ([Guard]) and a reverse proxy for backends in any language ([Gateway]), both
// on one state machine and one store.
//
// It promises that a request with one Idempotency-Key runs at most once while
// its lease is alive, that an answer is stored before it is sent, that every
// later request with that key gets the stored answer, that the same key with
// another request is refused, and that a holder whose lease was taken changes
// nothing any more.
//
// It does not promise that an effect happens at most once: when a process dies
// between the backend's effect and the record, the lease runs out and the next
// attempt runs again, with Goalkeeper-Attempt: 2 so that the backend can look.
// With OnAmbiguous set to [Hold] such a call waits for an operator instead. It
// does not authenticate callers (see Config.Tenant), and a key is no secret.
//
// DESIGN.md holds the reasons, and ledger.go the state machine.
package idempotency

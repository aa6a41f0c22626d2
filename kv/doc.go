// Package kv keeps Goalkeeper's records in NATS JetStream: the queue of
// accepted goals, the journal of every task, results, locks, cancel markers,
// tool calls, documents, balances and objects.
//
// It promises:
//   - a write method returns without an error only when the write is durable by
//     the configured [Barrier] (locks excepted: a lease that is lost has expired);
//   - every write of a record that somebody owns is create-only or
//     compare-and-set, and a write whose answer was lost is recognised by its
//     writer: it is neither stored twice nor reported as another's;
//   - a read that finds nothing has asked the leader of the stream;
//   - one and three replicas behave alike: the errors that callers act on are
//     those of package goal, and every call has a deadline.
//
// It does not promise that acknowledgements, heartbeats or locks exclude
// anybody: only the journal's compare-and-set does (see DESIGN.md). It does not
// run, decide or deliver anything.
package kv

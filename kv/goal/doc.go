// Package goal holds the words of the system: the goal a client declares, the
// task that tracks its execution, the events that journal it, the ids, keys,
// subjects and problems that every stage agrees on.
//
// It promises that a payload is read by one strict parser ([Decode]) and has one
// canonical form ([Canonical], RFC 8785), one exact form ([Exact]), one
// [Fingerprint] and one task id ([TaskID]); that numbers keep their exact value
// (no int64 passes through a float64 but in RFC 8785's own form); that the work
// on a payload grows with its length, never with the size of its numbers; and
// that the wire shapes declared here are versioned.
//
// It does not store, send or decide anything, and it imports nothing else of
// this module. It does not know which environments, tools and entities exist.
package goal

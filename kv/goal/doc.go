// Package goal holds the words of the system: the goal a client declares, the
// task that tracks its execution, the events that journal it, the ids, keys,
// subjects and problems that every stage agrees on.
//
// It promises that one payload has one canonical form, one fingerprint and one
// task id, that numbers keep their exact value (no int64 passes through a
// float64), and that the wire shapes declared here are versioned.
//
// It does not store, send or decide anything, and it imports nothing else of
// this module.
package goal

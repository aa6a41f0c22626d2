// Package state reads the world that a goal speaks of: the document store, an
// HTTP resource, or an MCP server.
//
// It promises that only the entities that were asked for are read, that every
// number keeps its exact value, that a read which did not work is an error and
// never an absent entity, and that every read ends: each has a deadline and a
// size limit.
//
// It does not promise one point in time for several entities: each is read by
// itself. It writes nothing.
package state

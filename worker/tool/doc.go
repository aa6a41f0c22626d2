// Package tool calls the tools of an environment: built-in tools on the
// document store, HTTP endpoints, and MCP servers.
//
// It promises that every repeat of a call carries the key of its decision,
// that arguments which a tool's schema refuses are never sent, that a tool of
// class unsafe is never sent again after something may have reached it, that a
// tool's own error is an outcome and not an error, and that every call ends:
// each has a deadline, a size limit and a bounded number of attempts.
//
// It does not decide whether a tool may be called; the loop does. It does not
// promise exactly one effect where the backend ignores the key.
package tool

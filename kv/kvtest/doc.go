// Package kvtest gives tests a real NATS server: one node or three in this
// process, each test its own, gone when the test ends.
//
// It promises that a store on it is provisioned exactly as in production. It
// does not promise ports, and it is not for use outside tests.
//
// A single node that listens nowhere runs inside a testing/synctest bubble.
// Such a test must not call t.Parallel: the servers of a process share one
// clock (nats-server's package ats), by which messages expire. The first server
// starts it, so a bubble has to have the process to itself; tests that are not
// parallel have, because the parallel ones wait for them.
package kvtest

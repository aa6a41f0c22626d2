// Package kvtest gives tests a real NATS server: one node or three in this
// process, each test its own, gone when the test ends.
//
// It promises that a store on it is provisioned exactly as in production. It
// does not promise ports, and it is not for use outside tests.
package kvtest

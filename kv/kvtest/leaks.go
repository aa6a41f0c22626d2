package kvtest

import "go.uber.org/goleak"

// Leaks are the goroutines that a test which ran a server may leave behind. A
// stream that is being made while its server shuts down is never closed by
// nats-server 2.15: its flusher, and the clock that all streams share, stay.
func Leaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}

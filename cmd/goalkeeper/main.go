// Command goalkeeper is the whole service and its command line: every stage in
// one process (serve), each stage alone (ingest, worker, notifier, gateway),
// and the verbs that talk to a running service.
//
// The binary is where the stages meet: only this package knows more than one of
// them. It reads the settings and passes values in.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

// Command goalkeeper is the whole service and its command line: every stage in
// one process (serve), each stage alone (ingest, worker, notifier, gateway),
// and the verbs that talk to a running service.
//
// The binary is where the stages meet: only this package knows more than one of
// them. It reads the settings and passes values in. It promises no behaviour of
// its own beyond that: what a goal is, how it is run and delivered, lies in the
// stages.
//
// The files, by what they are about:
//
//	the process        main, roles (serve, ingest, worker, notifier), service, wire, gateway, tuning, demo, demoshop
//	settings           config, tls, version
//	the store          embedded, mend, marks, migrate
//	environments       environments, probes
//	observability      metrics, storetimes, spans, telemetry
//	pages, operators   pages, webhooks, webhookadmin
//	the command line   cli, client, output, contexts, completion, and a file for each group of verbs:
//	                   submit, goalfile, validate, tasks, watch, trace, key, webhook, calls, bench (benchserver, benchfill, benchprofile)
//	tests only         crashpoints
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

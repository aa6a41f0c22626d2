package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/alecthomas/kong"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// streams are the process's standard streams: data goes to out, everything
// else to err.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

// Exit codes (public contract section 5).
const (
	exitReached      = 0 // also: the command did its job
	exitGeneral      = 1
	exitUsage        = 2 // also: the goal is not valid
	exitFailed       = 3
	exitAuth         = 4
	exitNotFound     = 5
	exitGuardrail    = 6
	exitPrecondition = 7
	exitCancelled    = 8
	exitTimeout      = 124 // the client's own limit; the task goes on
	exitInterrupted  = 130
)

// errTimedOut is the cause of a context that a verb's --timeout ended.
var errTimedOut = errors.New("timed out")

// exitError is an error with the exit code it asks for.
type exitError struct {
	code int
	err  error // nil: everything is said already
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// exit makes an error that only sets the exit code.
func exit(code int) error {
	if code == exitReached {
		return nil
	}
	return &exitError{code: code}
}

// usageError is an error in what the user typed.
func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// cli is the command line.
type cli struct {
	Serve    serveCmd    `cmd:"" group:"Service:" help:"Run everything in one process, with the store embedded unless --nats is given."`
	Demo     demoCmd     `cmd:"" group:"Service:" help:"Show the main job end to end on free ports in a temporary folder."`
	Ingest   ingestCmd   `cmd:"" group:"Service:" help:"Run only the HTTP and NATS intake, against an external NATS."`
	Worker   workerCmd   `cmd:"" group:"Service:" help:"Run only a worker, against an external NATS."`
	Notifier notifierCmd `cmd:"" group:"Service:" help:"Run only the webhook notifier, against an external NATS."`
	Gateway  gatewayCmd  `cmd:"" group:"Service:" help:"Put the idempotency contract for tool calls in front of a backend."`
	Migrate  migrateCmd  `cmd:"" group:"Service:" help:"Copy a stopped embedded store to external NATS servers."`

	Submit   submitCmd   `cmd:"" group:"Goals and tasks:" help:"Submit a goal and print its task id."`
	Get      getCmd      `cmd:"" group:"Goals and tasks:" help:"Show a task."`
	List     listCmd     `cmd:"" group:"Goals and tasks:" help:"List tasks, newest first."`
	Watch    watchCmd    `cmd:"" group:"Goals and tasks:" help:"Show a task's events as they happen; the exit code says how it ended."`
	Wait     waitCmd     `cmd:"" group:"Goals and tasks:" help:"Wait for a task's end; the exit code says how it ended."`
	Trace    traceCmd    `cmd:"" group:"Goals and tasks:" help:"Print a task's reasoning trace as a transcript."`
	Cancel   cancelCmd   `cmd:"" group:"Goals and tasks:" help:"Cancel a task."`
	Validate validateCmd `cmd:"" group:"Goals and tasks:" help:"Check goals offline or, with --server or --context, by a dry run."`

	Key     keyCmd     `cmd:"" group:"Backends, receivers, operators:" help:"Derive idempotency keys, make and hash API keys."`
	Webhook webhookCmd `cmd:"" group:"Backends, receivers, operators:" help:"Receive, verify and resend webhooks."`
	Calls   callsCmd   `cmd:"" group:"Backends, receivers, operators:" help:"Inspect and resolve the records of protected tool calls."`
	Bench   benchCmd   `cmd:"" group:"Backends, receivers, operators:" help:"Generate load and print percentiles."`

	Context    contextCmd    `cmd:"" group:"This program:" help:"Remember servers and their API keys by name."`
	Completion completionCmd `cmd:"" group:"This program:" help:"Print a completion script for bash, zsh or fish."`
	Version    versionCmd    `cmd:"" group:"This program:" help:"Print the version."`
}

const description = `Runs declared goals to a verified end, exactly once in effect.

Exit codes: 0 reached or done, 1 error, 2 usage or invalid goal, 3 failed, 4 authentication or permission, 5 not found,
6 guardrail, 7 pre-condition, 8 cancelled, 124 client timeout, 130 interrupted.`

// newParser builds the command line's parser. exited is told the code with
// which --help wants to exit.
func newParser(c *cli, t *terminal, exited func(int)) (*kong.Kong, error) {
	return kong.New(
		c, kong.Name("goalkeeper"), kong.Writers(t.out, t.err), kong.Exit(exited), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120, NoAppDescFormat: true}), kong.Bind(t),
	)
}

// run executes one command line and returns its exit code. It is the only
// place where errors become exit codes.
func run(ctx context.Context, args []string, std streams) int {
	var c cli
	t := newTerminal(std, args)
	code := -1
	parser, err := newParser(&c, t, func(n int) { code = n })
	if err != nil {
		return t.fail(err, exitGeneral)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	k, err := parser.Parse(args)
	if code >= 0 { // --help printed and asked to exit
		return code
	}
	if err != nil {
		t.hint = "run goalkeeper --help for more"
		return t.fail(err, exitUsage)
	}
	k.BindTo(ctx, (*context.Context)(nil))
	k.Bind(std)
	if err := k.Run(); err != nil {
		return t.fail(err, exitCode(ctx, err))
	}
	return exitReached
}

// exitCode is the exit code that an error asks for. Order matters: what the
// user did (interrupt, --timeout) explains the errors that follow from it.
func exitCode(ctx context.Context, err error) int {
	var asked *exitError
	var problem *goal.Problem
	switch {
	case errors.As(err, &asked):
		return asked.code
	case errors.Is(err, errTimedOut):
		return exitTimeout
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &problem):
		return problemCode(problem)
	case errors.Is(err, fs.ErrNotExist):
		return exitUsage
	default:
		return exitGeneral
	}
}

// problemCode is the exit code of what the server refused.
func problemCode(p *goal.Problem) int {
	switch p.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity:
		return exitUsage
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitAuth
	case http.StatusPaymentRequired: // the tenant's token balance, which is a guardrail
		return exitGuardrail
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusPreconditionFailed:
		return exitPrecondition
	default:
		return exitGeneral
	}
}

// endCode is the exit code of a task that ended.
func endCode(status goal.State, reason goal.Reason) int {
	switch {
	case status == goal.Succeeded:
		return exitReached
	case status == goal.Cancelled:
		return exitCancelled
	case reason.Guardrail():
		return exitGuardrail
	case reason == goal.PreconditionFailed:
		return exitPrecondition
	default:
		return exitFailed
	}
}

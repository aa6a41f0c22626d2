package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

var update = flag.Bool("update", false, "write the golden files anew")

// session runs the program in this process.
func session(t *testing.T, ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) { //nolint:revive // testing.T comes first here
	t.Helper()
	var out, errs bytes.Buffer
	code = run(ctx, args, streams{in: strings.NewReader(stdin), out: &out, err: &errs})
	return code, out.String(), errs.String()
}

func TestEveryReasonHasItsExitCode(t *testing.T) {
	t.Parallel()
	want := map[goal.Reason]int{
		goal.TargetStateReached: 0, goal.PreconditionFailed: 7, goal.CancelRequested: 8,
		goal.GuardrailMaxSteps: 6, goal.GuardrailTimeout: 6, goal.GuardrailToolNotAllowed: 6, goal.GuardrailMaxTokens: 6, goal.GuardrailNoProgress: 6,
		goal.DependencyUnavailable: 3, goal.PermissionDenied: 3, goal.InvalidGoal: 3, goal.PlannerFailed: 3, goal.ToolFailed: 3,
		goal.OutcomeUnknown: 3, goal.WorkerCrashLoop: 3, goal.QueueExpired: 3, goal.Internal: 3,
	}
	for _, reason := range goal.Reasons() {
		status := goal.Failed
		if s, ok := map[goal.Reason]goal.State{goal.TargetStateReached: goal.Succeeded, goal.CancelRequested: goal.Cancelled}[reason]; ok {
			status = s
		}
		code, ok := want[reason]
		if got := endCode(status, reason); !ok || got != code {
			t.Errorf("endCode(%s, %s) = %d, want %d", status, reason, got, code)
		}
	}
}

func TestEveryProblemHasItsExitCode(t *testing.T) {
	t.Parallel()
	want := map[goal.ProblemType]int{
		goal.MalformedJSON: 2, goal.KeyMissing: 2, goal.KeyMalformed: 2, goal.KeyMismatch: 2, goal.GoalInvalid: 2,
		goal.PayloadTooLarge: 2, goal.UnsupportedMediaType: 2, goal.Unauthenticated: 4, goal.Forbidden: 4, goal.NotFound: 5,
		goal.TokenBalanceExhausted: 6, goal.PreconditionMismatch: 7,
		goal.KeyReused: 1, goal.RequestInProgress: 1, goal.ResponseNotRetained: 1, goal.RateLimited: 1, goal.QueueFull: 1,
		goal.DependencyNotAvailable: 1, goal.StoreUnavailable: 1, goal.InternalError: 1,
	}
	for _, kind := range goal.ProblemTypes() {
		code, ok := want[kind]
		err := fmt.Errorf("wrapped: %w", goal.NewProblem(kind, ""))
		if got := exitCode(t.Context(), err); !ok || got != code {
			t.Errorf("exit code of %s: got %d, want %d", kind, got, code)
		}
	}
}

func TestExitCodeOfErrors(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for name, row := range map[string]struct {
		ctx  context.Context //nolint:containedctx // the row is about its state
		err  error
		want int
	}{
		"any other error":             {t.Context(), errors.New("x"), 1},
		"usage":                       {t.Context(), usageError("x"), 2},
		"no such file":                {t.Context(), fmt.Errorf("open: %w", os.ErrNotExist), 2},
		"--timeout":                   {t.Context(), fmt.Errorf("wait: %w", errTimedOut), 124},
		"interrupt":                   {interrupted, fmt.Errorf("watch: %w", context.Canceled), 130},
		"cancelled, but not by us":    {t.Context(), context.Canceled, 1},
		"another error, interrupted":  {interrupted, errors.New("x"), 1},
		"the end of a task":           {t.Context(), exit(exitGuardrail), 6},
		"an end that was interrupted": {interrupted, exit(exitFailed), 3},
	} {
		if got := exitCode(row.ctx, row.err); got != row.want {
			t.Errorf("%s: got exit code %d, want %d", name, got, row.want)
		}
	}
}

func TestInterruptedWaitExits130(t *testing.T) {
	t.Parallel()
	api, url := startFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-api.watched
		cancel()
	}()
	id := submitTo(t, url, "hang")
	code, _, stderr := session(t, ctx, "", "wait", id, "-s", url)
	if code != exitInterrupted || !strings.Contains(stderr, "goalkeeper wait "+id) {
		t.Errorf("wait, interrupted: got exit code %d, want %d; stderr %q", code, exitInterrupted, stderr)
	}
}

// TestHelp pins the help texts of the verbs that talk to a server.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{
		"", "submit", "get", "list", "watch", "wait", "trace", "cancel", "validate", "key", "key derive", "key new", "key hash", "key task",
		"webhook", "webhook listen", "webhook verify", "webhook secret", "webhook deliveries", "webhook redeliver", "webhook test",
		"calls", "calls list", "calls get", "calls release", "calls complete", "bench", "context", "context add", "completion", "version",
	} {
		code, got, _ := session(t, t.Context(), "", append(strings.Fields(verb), "--help")...)
		if code != exitReached {
			t.Errorf("goalkeeper %s --help: exit code %d", verb, code)
		}
		golden(t, filepath.Join("testdata", "help", cmp.Or(strings.ReplaceAll(verb, " ", "_"), "goalkeeper")+".golden"), got)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (make it with -update)", err)
	}
	if got != string(want) {
		t.Errorf("%s (see with -update):\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// TestEveryCommandHasHelp keeps the command line explained.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	parser, err := newParser(&cli{}, newTerminal(streams{}, nil), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range completions(parser.Model.Node, nil) {
		for _, w := range c.commands {
			if w.help == "" && w.name != "bash" && w.name != "zsh" && w.name != "fish" && c.path[0] != "bench" {
				t.Errorf("goalkeeper %s %s has no help", strings.Join(c.path, " "), w.name)
			}
		}
		for _, f := range c.flags {
			if f.help == "" {
				t.Errorf("goalkeeper %s %s has no help", strings.Join(c.path, " "), f.name)
			}
		}
	}
}

func TestUsageErrorAsJSON(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := session(t, t.Context(), "", "get", "--nonsense", "-o", "json")
	if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, `{"type":"about:blank"`) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("usage error with -o json: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestColours: only on a terminal, and not where they are unwanted.
func TestColours(t *testing.T) { //nolint:paralleltest // it sets the environment
	for name, row := range map[string]struct {
		live    bool
		flags   outputFlags
		env     map[string]string
		colours bool
	}{
		"terminal":            {live: true, colours: true},
		"file or pipe":        {},
		"--no-color":          {live: true, flags: outputFlags{NoColor: true}},
		"NO_COLOR":            {live: true, env: map[string]string{"NO_COLOR": "1"}},
		"NO_COLOR, but empty": {live: true, env: map[string]string{"NO_COLOR": ""}, colours: true},
		"dumb terminal":       {live: true, env: map[string]string{"TERM": "dumb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", "")
			t.Setenv("TERM", "xterm")
			for k, v := range row.env {
				t.Setenv(k, v)
			}
			term := &terminal{live: row.live}
			if err := row.flags.AfterApply(term); err != nil {
				t.Fatal(err)
			}
			if got := term.paint(red, "x") != "x"; got != row.colours {
				t.Errorf("colours: got %t, want %t", got, row.colours)
			}
		})
	}
}

func TestWhatOthersWroteCannotMoveTheCursor(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":              "plain",
		"\x1b[31mred":        "\ufffd[31mred",
		"bell\a":             "bell\ufffd",
		"\u202eevil":         "\ufffdevil",
		"two\nlines":         "two lines",
		"tab\tand   spaces.": "tab\ufffdand spaces.",
	} {
		if got := oneLine(in, 100); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
	if got := oneLine("äöüäöü", 4); got != "äöü…" {
		t.Errorf("oneLine cuts to %q", got)
	}
}

func TestQuotedKeysAreTheSameKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", "order 1", `say "hi"`, `back\slash`, "a,b;c", strings.Repeat("k", goal.MaxKey)} {
		got, problem := goal.ParseKey([]string{quoteKey(key)})
		if problem != nil || got != key {
			t.Errorf("ParseKey(quoteKey(%q)) = %q, %v", key, got, problem)
		}
	}
	for _, key := range []string{"", "ä", "new\nline", strings.Repeat("k", goal.MaxKey+1)} {
		if _, problem := goal.ParseKey([]string{quoteKey(key)}); problem == nil {
			t.Errorf("the key %q is taken", key)
		}
	}
}

// submitTo submits a goal that plays.
func submitTo(t *testing.T, url, play string) string {
	t.Helper()
	body := fmt.Sprintf(`{"goal":{"intent":"Refund order W2378156","target_state":{"a":1}},"guardrails":{"max_steps":12,"timeout_seconds":120},"context":{"play":%q}}`, play)
	code, out, errs := session(t, t.Context(), body, "submit", "-f", "-", "-s", url, "--key", play)
	if code != exitReached {
		t.Fatalf("submit: exit code %d, %s", code, errs)
	}
	return strings.TrimSpace(out)
}

// TestProblemsOfOthers: a proxy in between knows no problem details.
func TestProblemsOfOthers(t *testing.T) {
	t.Parallel()
	res := &http.Response{StatusCode: http.StatusBadGateway, Header: http.Header{"Content-Type": {"text/html"}}}
	p := problemOf(res, []byte("<html>\n<h1>Bad\x1b gateway</h1>"))
	var out bytes.Buffer
	explain(&out, "goalkeeper", p)
	if want := "goalkeeper: Bad Gateway (502): <html> <h1>Bad\ufffd gateway</h1>\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

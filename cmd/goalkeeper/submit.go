package main

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// submitCmd submits a goal.
type submitCmd struct {
	File    string        `short:"f" required:"" placeholder:"FILE" help:"The goal: JSON, or YAML (.yaml, .yml); - is stdin."`
	Key     string        `placeholder:"KEY" help:"Idempotency key: submitting the same goal with the same key again gives the same task. Default: a random one, shown on stderr."`
	Wait    bool          `xor:"then" help:"Wait for the task's end; the exit code says how it ended."`
	Watch   bool          `xor:"then" help:"Show the task's events as they happen, until its end."`
	DryRun  bool          `xor:"then" help:"Only check: nothing is stored or started."`
	Timeout time.Duration `placeholder:"5m" help:"Stop waiting or watching after this time (exit code 124); the task goes on."`
	remoteFlags
}

// submitted is the answer to a submission as -o json prints it.
type submitted struct {
	goal.Task
	Key      string `json:"idempotency_key"`
	Replayed bool   `json:"replayed"`
}

// Run submits the goal and prints the task id.
func (c *submitCmd) Run(ctx context.Context, t *terminal) error {
	body, err := readGoal(c.File, t.in)
	if err != nil {
		return err
	}
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	if c.DryRun {
		return dryRun(ctx, api, t, body)
	}
	if c.Key == "" {
		c.Key = rand.Text()
		t.key = c.Key // an error must name it: the goal may have been accepted
		t.notef("key %s (with --key the same goal can be submitted again safely)", c.Key)
	}
	s, err := submitGoal(ctx, api, c.Key, body)
	if err != nil {
		return err
	}
	if s.Replayed {
		t.notef("this key has been submitted before: this is its task")
	}
	return c.follow(ctx, api, t, s)
}

// follow does what is wanted after the submission.
func (c *submitCmd) follow(ctx context.Context, api *client, t *terminal, s submitted) error {
	if !t.machine() {
		if err := t.printf("%s\n", s.ID); err != nil {
			return err
		}
	}
	ctx, cancel := withTimeout(ctx, c.Timeout)
	defer cancel()
	switch {
	case c.Watch:
		return watchTask(ctx, api, t, s.ID)
	case c.Wait:
		task, err := awaitEnd(ctx, api, t, s.ID)
		if err != nil {
			return err
		}
		s.Task = task
		t.notef("%s", ending(task))
		if err := submittedOut(t, s); err != nil {
			return err
		}
		return exit(endCode(task.Status, task.Reason))
	default:
		return submittedOut(t, s)
	}
}

func submittedOut(t *terminal, s submitted) error {
	if !t.machine() {
		return nil // the id is printed already
	}
	return t.document(s)
}

// submitGoal submits once, or again after a lost answer: the key makes that safe.
func submitGoal(ctx context.Context, api *client, key string, body []byte) (submitted, error) {
	s := submitted{Key: key}
	if _, problem := goal.ParseKey([]string{quoteKey(key)}); problem != nil {
		return s, problem
	}
	r, err := api.do(ctx, request{
		method: http.MethodPost, path: "/v1/tasks", body: body, repeat: true,
		header: map[string]string{"Idempotency-Key": quoteKey(key)},
	})
	if err != nil {
		return s, err
	}
	s.Replayed = r.header.Get("Idempotent-Replayed") == "true"
	return s, r.decode(&s.Task)
}

// quoteKey writes a key that cannot stand bare as an RFC 9651 string. What no
// string can hold stays as it is, which ParseKey refuses.
func quoteKey(key string) string {
	out := make([]byte, 0, len(key)+2)
	bare := key != ""
	for _, c := range []byte(key) {
		if c < 0x20 || c > 0x7E {
			return key
		}
		if c == '"' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
		bare = bare && c > 0x20 && c != '"' && c != '\\' && c != ',' && c != ';'
	}
	if bare {
		return key
	}
	return `"` + string(out) + `"`
}

// report is the answer to a dry run.
type report struct {
	Verdict string        `json:"verdict"`
	Checks  []reportCheck `json:"checks"`
	Problem *goal.Problem `json:"problem,omitempty"` // what a submission would be refused with
}

type reportCheck struct {
	Name        string            `json:"name"`
	OK          bool              `json:"ok"`
	Detail      string            `json:"detail,omitempty"`
	Differences []goal.Difference `json:"differences,omitempty"`
}

// dryRun asks the server for its checks. The exit code is that of the
// submission's refusal, 1 where a check could not be made.
func dryRun(ctx context.Context, api *client, t *terminal, body []byte) error {
	res, err := api.do(ctx, request{
		method: http.MethodPost, path: "/v1/tasks", query: url.Values{"dry_run": {"true"}}, body: body, repeat: true,
		header: map[string]string{"Idempotency-Key": rand.Text()},
	})
	if err != nil {
		return err
	}
	var r report
	if err := res.decode(&r); err != nil {
		return err
	}
	if t.machine() {
		err = t.document(r)
	} else {
		err = printReport(t, r)
	}
	if err != nil {
		return err
	}
	switch {
	case r.Problem != nil:
		return exit(problemCode(r.Problem))
	case r.Verdict == "ready" || r.Verdict == "already_satisfied":
		return nil
	default:
		return exit(exitGeneral)
	}
}

func printReport(t *terminal, r report) error {
	if err := t.printf("%s\n", printable(r.Verdict)); err != nil {
		return err
	}
	rows := [][]string{}
	for _, c := range r.Checks {
		word := "ok"
		if !c.OK {
			word = "no"
		}
		rows = append(rows, []string{"  " + word, c.Name, oneLine(c.Detail, 200)})
		for _, d := range c.Differences {
			rows = append(rows, []string{"", "", difference(d)})
		}
	}
	if err := t.table(rows); err != nil {
		return err
	}
	if r.Problem != nil && !t.quiet {
		explain(t.err, "a submission would be refused", r.Problem)
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// taskArg is the argument of every verb about one task.
type taskArg struct {
	ID string `arg:"" help:"Task id (tsk_…)."`
}

func taskPath(id string) string { return "/v1/tasks/" + url.PathEscape(id) }

// getCmd shows a task.
type getCmd struct {
	taskArg
	remoteFlags
}

// Run shows the task.
func (c *getCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	var raw json.RawMessage
	if err := api.get(ctx, taskPath(c.ID), nil, &raw); err != nil {
		return err
	}
	if t.machine() {
		return t.document(raw)
	}
	var task goal.Task
	if err := json.Unmarshal(raw, &task); err != nil {
		return fmt.Errorf("the server's task cannot be read: %w", err)
	}
	return printTask(t, task)
}

// printTask prints a task for people.
func printTask(t *terminal, task goal.Task) error {
	if err := t.printf("%s  %s\n%s\n\n", t.paint(bold, task.ID), stateAndReason(t, task.Status, task.Reason), printable(task.Intent)); err != nil {
		return err
	}
	rows := [][]string{
		{"environment", task.Environment},
		{"steps", fmt.Sprintf("%d/%d", task.Usage.Steps, task.Guardrails.MaxSteps)},
		{"tokens", tokens(task)},
		{"accepted", when(&task.AcceptedAt)},
		{"started", when(task.StartedAt)},
		{"deadline", when(task.Deadline)},
		{"ended", when(task.EndedAt)},
		{"expires", when(&task.ExpiresAt)},
		{"webhook", task.WebhookURL},
		{"detail", task.Detail},
		{"tripped", tripped(task.Trip)},
		{"cancel", mark(task.CancelAsked && !task.Status.Terminal(), "requested")},
	}
	shown := rows[:0]
	for _, r := range rows {
		if r[1] != "" {
			shown = append(shown, r)
		}
	}
	if err := t.table(shown); err != nil {
		return err
	}
	if p := task.Problem; p != nil {
		if err := t.printf("%s\n", printable("refused: "+p.Error())); err != nil {
			return err
		}
	}
	return printLists(t, task)
}

// printLists prints what a task has in lists.
func printLists(t *terminal, task goal.Task) error {
	out := func(title string, lines []string) error {
		if len(lines) == 0 {
			return nil
		}
		if err := t.printf("\n%s\n", title); err != nil {
			return err
		}
		for _, l := range lines {
			if err := t.printf("  %s\n", printable(l)); err != nil {
				return err
			}
		}
		return nil
	}
	var checks, effects []string
	for _, d := range task.Checks {
		checks = append(checks, difference(d))
	}
	for _, e := range task.Effects {
		effects = append(effects, fmt.Sprintf("step %d %s: %s", e.Step, e.Tool, e.Outcome))
	}
	if err := out("Pre-conditions that did not hold:", checks); err != nil {
		return err
	}
	if err := out("What is left:", left(task.Left, task.LeftTotal)); err != nil {
		return err
	}
	return out("Calls that took effect:", effects)
}

func left(list []goal.Difference, total int) []string {
	lines := make([]string, 0, len(list)+1)
	for _, d := range list {
		lines = append(lines, difference(d))
	}
	if more := total - len(list); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

func tokens(task goal.Task) string {
	if task.Usage.Tokens == 0 && task.Guardrails.MaxTokens == 0 {
		return ""
	}
	s := strconv.FormatInt(task.Usage.Tokens, 10)
	if task.Guardrails.MaxTokens > 0 {
		s += "/" + strconv.FormatInt(task.Guardrails.MaxTokens, 10)
	}
	return s + mark(task.Usage.Estimated, " (estimated)")
}

func tripped(trip *goal.Trip) string {
	if trip == nil {
		return ""
	}
	return fmt.Sprintf("%s: limit %v, observed %v, at step %d", trip.Guardrail, trip.Limit, trip.Observed, trip.Step)
}

func stateAndReason(t *terminal, s goal.State, r goal.Reason) string {
	out := t.paintState(s)
	if r != "" && string(r) != "CANCELLED" {
		out += "  " + printable(string(r))
	}
	return out
}

// plural is a number of things.
func plural[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// ending is one line about how a task ended.
func ending(task goal.Task) string {
	line := stateAndReason(&terminal{}, task.Status, task.Reason)
	if task.Detail != "" {
		line += ": " + oneLine(task.Detail, 200)
	}
	return line + "  (" + plural(task.Usage.Steps, "step") + ")"
}

// listCmd lists tasks.
type listCmd struct {
	Status      string `placeholder:"STATE" help:"Only queued, running, succeeded, failed or cancelled tasks."`
	Environment string `placeholder:"NAME" help:"Only tasks of this environment."`
	Limit       int    `short:"n" default:"50" help:"At most so many."`
	Cursor      string `help:"Go on after an earlier list (it says how)."`
	remoteFlags
}

// page is one page of the list. Tasks stay as the server wrote them.
type page struct {
	Tasks []json.RawMessage `json:"tasks"`
	Next  string            `json:"next_cursor,omitempty"`
}

// Run lists the tasks, page after page.
func (c *listCmd) Run(ctx context.Context, t *terminal) error {
	if c.Limit < 1 {
		return usageError("--limit %d is below 1", c.Limit)
	}
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	all := page{Tasks: []json.RawMessage{}, Next: c.Cursor}
	for more := true; more; {
		p, err := c.page(ctx, api, all.Next, c.Limit-len(all.Tasks))
		if err != nil {
			return err
		}
		all.Tasks, all.Next = append(all.Tasks, p.Tasks...), p.Next
		more = p.Next != "" && len(p.Tasks) > 0 && len(all.Tasks) < c.Limit
	}
	switch t.format {
	case formatJSON:
		return t.document(all)
	case formatJSONL:
		return listOut(t, all.Tasks)
	default:
		return c.print(t, all)
	}
}

const largestPage = 200 // of the API

func (c *listCmd) page(ctx context.Context, api *client, cursor string, limit int) (page, error) {
	q := url.Values{"limit": {strconv.Itoa(min(limit, largestPage))}}
	for name, v := range map[string]string{"status": c.Status, "environment": c.Environment, "cursor": cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	var p page
	err := api.get(ctx, "/v1/tasks", q, &p)
	return p, err
}

func (*listCmd) print(t *terminal, all page) error {
	rows := [][]string{{"ID", "STATUS", "REASON", "STEPS", "LEFT", "ACCEPTED", "INTENT"}}
	for _, raw := range all.Tasks {
		var task goal.Task // a summary has some of its members
		if err := json.Unmarshal(raw, &task); err != nil {
			return fmt.Errorf("the server's list cannot be read: %w", err)
		}
		rows = append(rows, []string{
			task.ID, string(task.Status), string(task.Reason), strconv.Itoa(task.Usage.Steps), strconv.Itoa(task.LeftTotal),
			when(&task.AcceptedAt), oneLine(task.Intent, 60),
		})
	}
	if err := t.table(rows); err != nil {
		return err
	}
	if all.Next != "" {
		t.notef("there are more: goalkeeper list --cursor %s", all.Next)
	}
	return nil
}

// waitCmd waits for a task's end.
type waitCmd struct {
	taskArg
	Timeout time.Duration `placeholder:"5m" help:"Stop waiting after this time (exit code 124); the task goes on."`
	remoteFlags
}

// Run waits, and prints how the task ended.
func (c *waitCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	ctx, cancel := withTimeout(ctx, c.Timeout)
	defer cancel()
	task, err := awaitEnd(ctx, api, t, c.ID)
	if err != nil {
		return err
	}
	if t.machine() {
		err = t.document(task)
	} else {
		err = t.printf("%s\n", ending(task))
	}
	if err != nil {
		return err
	}
	return exit(endCode(task.Status, task.Reason))
}

// withTimeout is a context that ends with errTimedOut after d; 0 is no limit.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, errTimedOut)
}

// holdTime is how long the server is asked to hold an answer: less than what
// proxies commonly allow.
const holdTime = 30 * time.Second

// awaitEnd returns the task when it has ended. It lives through restarts of a
// server that was there at first.
func awaitEnd(ctx context.Context, api *client, t *terminal, id string) (goal.Task, error) {
	etag := ""
	for misses := 0; ; {
		task, tag, err := hold(ctx, api, id, etag)
		switch {
		case ctx.Err() != nil:
			return task, goesOn(t, "wait", id, context.Cause(ctx))
		case err == nil && task.Status.Terminal():
			return task, nil
		case err == nil:
			etag, misses = tag, 0
		case etag == "" || !passing(err):
			return task, err
		default:
			misses++
			t.notef("%v; waiting on", err)
			_ = sleep(ctx, backOff(misses)) // the context is looked at above
		}
	}
}

// passing reports whether an error may be over when the server is back.
func passing(err error) bool {
	_, worth := again(err, 1)
	return worth || errors.Is(err, errNoConnection)
}

// hold asks for the task and lets the server hold the answer until the task is
// no longer as etag names it.
func hold(ctx context.Context, api *client, id, etag string) (goal.Task, string, error) {
	q := request{method: http.MethodGet, path: taskPath(id), query: url.Values{"trace": {"none"}}, header: map[string]string{}, repeat: true}
	if etag != "" {
		q.hold = holdTime
		q.header["Prefer"] = fmt.Sprintf("wait=%d", int(holdTime.Seconds()))
		q.header["If-None-Match"] = etag
	}
	var task goal.Task
	r, err := api.do(ctx, q)
	if err != nil {
		return task, "", err
	}
	if r.status == http.StatusNotModified {
		return task, etag, nil
	}
	return task, r.header.Get("ETag"), r.decode(&task)
}

// goesOn says how to go on when waiting ended before the task did.
func goesOn(t *terminal, verb, id string, cause error) error {
	t.hint = fmt.Sprintf("The task goes on. To look again: goalkeeper %s %s", verb, id)
	if errors.Is(cause, context.Canceled) {
		return fmt.Errorf("interrupted: %w", cause)
	}
	return cause
}

// cancelCmd cancels a task.
type cancelCmd struct {
	taskArg
	remoteFlags
}

// Run asks for the cancellation. It may be repeated.
func (c *cancelCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	r, err := api.do(ctx, request{method: http.MethodPost, path: taskPath(c.ID) + "/cancel", repeat: true})
	if err != nil {
		return err
	}
	var task goal.Task
	if err := r.decode(&task); err != nil {
		return err
	}
	if t.machine() {
		return t.document(task)
	}
	if err := t.printf("%s\n", stateAndReason(t, task.Status, task.Reason)); err != nil {
		return err
	}
	switch {
	case task.Status == goal.Cancelled:
	case task.Status.Terminal():
		t.notef("the task had ended already")
	default:
		t.notef("the task stops after the call in flight; goalkeeper wait %s says when", c.ID)
	}
	return printLists(t, goal.Task{Effects: task.Effects})
}

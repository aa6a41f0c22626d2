package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// traceCmd prints a task's reasoning trace.
type traceCmd struct {
	taskArg
	After int `placeholder:"N" help:"Only events after number N."`
	remoteFlags
}

// traceAnswer is the API's answer. Events stay as the server wrote them.
type traceAnswer struct {
	TaskID string            `json:"task_id"`
	Status goal.State        `json:"status"`
	Events []json.RawMessage `json:"events"`
}

func (a traceAnswer) decode() ([]goal.Event, error) {
	out := make([]goal.Event, len(a.Events))
	for i, raw := range a.Events {
		if err := json.Unmarshal(raw, &out[i]); err != nil {
			return nil, fmt.Errorf("the server's trace cannot be read: %w", err)
		}
	}
	return out, nil
}

// Run prints the trace.
func (c *traceCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	q := url.Values{}
	if c.After > 0 {
		q.Set("after", strconv.Itoa(c.After))
	}
	var a traceAnswer
	if err := api.get(ctx, taskPath(c.ID)+"/trace", q, &a); err != nil {
		return err
	}
	switch t.format {
	case formatJSON:
		return t.document(a)
	case formatJSONL:
		return listOut(t, a.Events)
	default:
		return printTrace(t, a)
	}
}

// printTrace prints a transcript; times count from the first event.
func printTrace(t *terminal, a traceAnswer) error {
	if len(a.Events) == 0 {
		t.notef("nothing has happened yet: the task is %s", a.Status)
		return nil
	}
	events, err := a.decode()
	if err != nil {
		return err
	}
	start := events[0].Time
	if err := t.printf("%s  from %s\n", t.paint(bold, printable(a.TaskID)), start.UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	for _, e := range events {
		at := e.Time.Sub(start).Seconds()
		if err := t.printf("%9.3f  %s\n", at, headline(t, e)); err != nil {
			return err
		}
		for _, l := range details(e) {
			if err := t.printf("%11s  %s\n", "", t.paint(faint, printable(l))); err != nil {
				return err
			}
		}
	}
	return nil
}

// headline is one line about an event.
func headline(t *terminal, e goal.Event) string {
	switch {
	case e.Type == goal.TaskStarted && e.Started != nil:
		return "started; deadline " + e.Started.Deadline.UTC().Format("15:04:05") + leftIn(e.Observed)
	case e.Type == goal.TaskResumed && e.Started != nil:
		return fmt.Sprintf("taken over by %s, attempt %d", oneLine(e.Worker, 60), e.Started.Attempt)
	case e.Decision != nil:
		return fmt.Sprintf("step %d: %s %s", e.Step, t.paint(bold, oneLine(e.Decision.Tool, 80)), value(e.Decision.Arguments))
	case e.Refusal != nil:
		return fmt.Sprintf("step %d: %s %s: %s", e.Step, t.paint(yellow, "refused"), oneLine(e.Refusal.Kind+" "+e.Refusal.Tool, 80), oneLine(e.Refusal.Message, 200))
	case e.Outcome != nil:
		return fmt.Sprintf("step %d: %s%s", e.Step, outcome(t, *e.Outcome), leftIn(e.Observed))
	case e.Observed != nil:
		return "observed" + leftIn(e.Observed)
	case e.Type == goal.KeyConflict:
		return "the key came again with another payload; this task is not touched"
	case e.Ended != nil:
		return "ended: " + stateAndReason(t, e.Ended.Status, e.Ended.Reason) + detail(e.Ended.Detail)
	default: // of a newer server
		return oneLine(string(e.Type), 80)
	}
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return ": " + oneLine(s, 200)
}

// leftIn says how far an observation is from the target.
func leftIn(o *goal.Observed) string {
	switch {
	case o == nil:
		return ""
	case o.LeftTotal == 0:
		return "; target reached"
	case o.Leaves > 0:
		return fmt.Sprintf("; %d of %d left", o.LeftTotal, o.Leaves)
	default:
		return fmt.Sprintf("; %d left", o.LeftTotal)
	}
}

func outcome(t *terminal, o goal.Outcome) string {
	colour := green
	if !o.OK() {
		colour = red
	}
	var notes []string
	if o.Status != 0 {
		notes = append(notes, "status "+strconv.Itoa(o.Status))
	}
	if o.Attempts > 1 {
		notes = append(notes, strconv.Itoa(o.Attempts)+" attempts")
	}
	if o.Repeated {
		notes = append(notes, "sent again after a crash")
	}
	if o.Replayed {
		notes = append(notes, "answered from the backend's record")
	}
	s := t.paint(colour, oneLine(string(o.Kind), 40)) + " in " + short(time.Duration(o.Took))
	if len(notes) > 0 {
		s += " (" + strings.Join(notes, ", ") + ")"
	}
	return s
}

// details are the further lines of an event in a transcript.
func details(e goal.Event) []string {
	var lines []string
	add := func(name, text string) {
		if text != "" {
			lines = append(lines, name+oneLine(text, 400))
		}
	}
	if d := e.Decision; d != nil {
		add("why: ", d.Why)
		add("key: ", d.Key)
		if d.Tokens > 0 {
			add("tokens: ", strconv.FormatInt(d.Tokens, 10)+mark(d.Estimated, " (estimated)"))
		}
	}
	if r := e.Refusal; r != nil {
		add("why: ", r.Why)
	}
	if o := e.Outcome; o != nil {
		add("", o.Message)
		add("result: ", string(o.Result))
		if o.Size > 0 {
			add("", fmt.Sprintf("the whole result has %d bytes", o.Size))
		}
	}
	if e.Observed != nil {
		for _, l := range left(e.Observed.Left, e.Observed.LeftTotal) {
			add("left: ", l)
		}
	}
	if e.Ended != nil {
		add("tripped: ", tripped(e.Ended.Trip))
		add("", plural(e.Ended.Usage.Steps, "step")+", "+plural(e.Ended.Usage.ToolCalls, "tool call")+", "+plural(e.Ended.Usage.Tokens, "token"))
	}
	return lines
}

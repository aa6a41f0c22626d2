package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// watchCmd shows a task's events as they happen.
type watchCmd struct {
	taskArg
	Timeout time.Duration `placeholder:"5m" help:"Stop watching after this time (exit code 124); the task goes on."`
	remoteFlags
}

// Run watches until the task's end. An interrupt ends the watch, not the task.
func (c *watchCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	ctx, cancel := withTimeout(ctx, c.Timeout)
	defer cancel()
	return watchTask(ctx, api, t, c.ID)
}

// watchTask shows the events of a task until it ends.
func watchTask(ctx context.Context, api *client, t *terminal, id string) error {
	var task goal.Task
	if err := api.get(ctx, taskPath(id), url.Values{"trace": {"none"}}, &task); err != nil {
		return err
	}
	var end *goal.Ended
	var err error
	if t.live && !t.machine() {
		end, err = watchLive(ctx, api, t, task)
	} else {
		end, err = watchLines(ctx, api, t, task)
	}
	switch {
	case ctx.Err() != nil && end == nil:
		return goesOn(t, "watch", id, context.Cause(ctx))
	case err != nil:
		return err
	case end == nil: // the terminal event lies behind what the server still has
		if task, err = awaitEnd(ctx, api, t, id); err != nil {
			return err
		}
		return exit(endCode(task.Status, task.Reason))
	default:
		return exit(endCode(end.Status, end.Reason))
	}
}

// watchLines prints one line for each event.
func watchLines(ctx context.Context, api *client, t *terminal, task goal.Task) (*goal.Ended, error) {
	var end *goal.Ended
	err := follow(ctx, api, t, task.ID, func(e goal.Event) error {
		if e.Ended != nil {
			end = e.Ended
		}
		if t.machine() {
			return t.line(e)
		}
		return t.printf("%s  %s\n", e.Time.UTC().Format("15:04:05.000"), headline(t, e))
	})
	return end, err
}

// Limits of an event stream.
const (
	silence     = 50 * time.Second // the server sends a comment every 15 s
	longestLine = 2 << 20          // bytes of one event
)

var errSilent = errors.New("the event stream fell silent")

// follow calls each for every event of the task's journal, in order, until the
// terminal one. A stream that breaks is taken up again after the last event; a
// server that cannot be reached ends it only while nothing was received.
func follow(ctx context.Context, api *client, t *terminal, id string, each func(goal.Event) error) error {
	last, misses, received := 0, 0, false
	for {
		over, err := stream(ctx, api, id, last, func(e goal.Event) error {
			received, misses = true, 0
			if e.N > 0 && e.N <= last {
				return nil // sent again
			}
			last = max(last, e.N)
			return each(e)
		})
		var refused *goal.Problem
		switch {
		case over || ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused) && refused.Status != http.StatusServiceUnavailable && refused.Status != http.StatusTooManyRequests,
			errors.Is(err, errNoConnection) && !received, errors.Is(err, errStop):
			return err
		}
		if err != nil {
			t.notef("%v; watching on", err)
		}
		misses++
		_ = sleep(ctx, backOff(misses)) // the context is looked at above
	}
}

// errOver ends the reading of a stream at the terminal event.
var errOver = errors.New("the task has ended")

// errStop wraps an error of the callback: the stream is not taken up again.
var errStop = errors.New("cannot show the event")

// stream reads one event stream. over says that the terminal event was seen, or
// that the server has none to send after it.
func stream(ctx context.Context, api *client, id string, after int, each func(goal.Event) error) (over bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	q := request{method: http.MethodGet, path: taskPath(id) + "/events", header: map[string]string{"Accept": "text/event-stream"}}
	if after > 0 {
		q.header["Last-Event-ID"] = strconv.Itoa(after)
	}
	res, err := api.open(ctx, q)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return true, nil
	}
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what there is explains the status
		return false, problemOf(res, body)
	}
	err = readEvents(res.Body, func() { watchdog.Reset(silence) }, func(data string) error {
		var e goal.Event
		if err := goal.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("%w: %w", errStop, err)
		}
		if err := each(e); err != nil {
			return fmt.Errorf("%w: %w", errStop, err)
		}
		if e.Type == goal.TaskEnded {
			return errOver
		}
		return nil
	})
	switch {
	case errors.Is(err, errOver):
		_, _ = res.Body.Read(make([]byte, 1)) // the stream's end: the connection can be used again
		return true, nil
	case err != nil && !errors.Is(err, errStop):
		return false, api.transportError(ctx, err)
	default:
		return false, err
	}
}

// readEvents parses Server-Sent Events (HTML Living Standard section 9.2.6): data
// is called with the data of each, alive with each line, also a comment. The
// server's events carry their number in their data, so that ids and names are
// not needed. nil at the stream's end.
func readEvents(r io.Reader, alive func(), data func(string) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 512), longestLine) // most events are short
	var buf []string
	for lines.Scan() {
		alive()
		line := lines.Text()
		if line == "" {
			if len(buf) > 0 {
				if err := data(strings.Join(buf, "\n")); err != nil {
					return err
				}
			}
			buf = buf[:0]
			continue
		}
		if v, ok := strings.CutPrefix(line, "data:"); ok {
			buf = append(buf, strings.TrimPrefix(v, " "))
		}
	}
	return lines.Err()
}

// watchLive redraws one block in place: on each event, and every second for the
// time that is left.
func watchLive(ctx context.Context, api *client, t *terminal, task goal.Task) (*goal.Ended, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan goal.Event)
	done := make(chan error, 1)
	go func() { // ends with follow; the channel done is read below
		quiet := *t
		quiet.quiet = true // a line of progress would break the block
		done <- follow(ctx, api, &quiet, task.ID, func(e goal.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	b := block{t: t, task: task}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var end *goal.Ended
	for {
		if err := b.draw(time.Now()); err != nil {
			cancel()
			return nil, errors.Join(err, stopped(<-done))
		}
		select {
		case e := <-events:
			b.apply(e)
			if e.Ended != nil {
				end = e.Ended
			}
		case <-tick.C:
		case err := <-done:
			return end, err
		}
	}
}

// stopped is err, unless it only says that we ended the work.
func stopped(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// block is what a watch on a terminal shows of a task.
type block struct {
	t     *terminal
	task  goal.Task
	last  string // headline of the last call
	of    int    // leaves of the target
	lines int    // on the screen
}

// apply folds an event into what is shown.
func (b *block) apply(e goal.Event) {
	task := &b.task
	if e.Started != nil && e.Type == goal.TaskStarted {
		deadline := e.Started.Deadline
		task.Deadline = &deadline
		if task.Status == goal.Queued { // else the events are older than the task as it was read
			task.Status = goal.Running
		}
	}
	if e.Observed != nil {
		task.Left, task.LeftTotal, b.of = e.Observed.Left, e.Observed.LeftTotal, e.Observed.Leaves
	}
	task.Usage.Steps = max(task.Usage.Steps, e.Step)
	if e.Ended != nil {
		task.Status, task.Reason, task.Detail, task.Usage = e.Ended.Status, e.Ended.Reason, e.Ended.Detail, e.Ended.Usage
	}
	if e.Step > 0 {
		b.last = headline(&terminal{}, e)
	}
}

const linesOfLeft = 5 // in the block

// draw writes the block over the one before. Lines are cut to the terminal's
// width, so that their number is known.
func (b *block) draw(now time.Time) error {
	lines := b.text(now)
	var out strings.Builder
	if b.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", b.lines)
	}
	for _, l := range lines {
		out.WriteString("\x1b[2K" + l + "\n")
	}
	out.WriteString("\x1b[J") // lines that the block before had more
	b.lines = len(lines)
	return b.t.printf("%s", out.String())
}

func (b *block) text(now time.Time) []string {
	t, task, room := b.t, b.task, b.t.width-1
	state := string(task.Status)
	if task.Reason != "" {
		state += " " + string(task.Reason)
	}
	head := oneLine(task.ID+" "+state+": "+task.Intent, room)
	lines := []string{strings.Replace(head, string(task.Status), t.paintState(task.Status), 1)}
	meter := fmt.Sprintf("steps %d/%d", task.Usage.Steps, task.Guardrails.MaxSteps)
	if task.Deadline != nil && !task.Status.Terminal() {
		meter += ", time left " + task.Deadline.Sub(now).Truncate(time.Second).String()
	}
	if b.of > 0 {
		meter += fmt.Sprintf(", %d of %d reached", b.of-task.LeftTotal, b.of)
	}
	lines = append(lines, oneLine(meter, room))
	if b.last != "" {
		lines = append(lines, oneLine("last: "+b.last, room))
	}
	for i, l := range left(task.Left, task.LeftTotal) {
		if i == linesOfLeft {
			lines = append(lines, fmt.Sprintf("  … %d left in all", task.LeftTotal))
			break
		}
		lines = append(lines, "  "+oneLine(l, room-2))
	}
	return lines
}

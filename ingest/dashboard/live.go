package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	quiet       = 150 * time.Millisecond // between two renderings, however much happens
	growEvery   = time.Second            // a running task's bars grow so often
	perViewer   = 20 * time.Millisecond  // times the viewers: all pages together are rendered about 50 times a second at most
	frameExpiry = 15 * time.Second       // to take one rendering
)

// pace is the pause between two renderings of one page.
func (d *Dashboard) pace(least time.Duration) time.Duration {
	return max(least, time.Duration(d.viewers.Load())*perViewer)
}

// live is a task's page as it changes: the API's event stream of the task, each
// time rendered, until the task has ended.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	if !isTaskID(id) {
		d.fail(w, r, goal.ErrNotFound)
		return
	}
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("after")
	}
	if n, err := strconv.ParseUint(last, 10, 31); err != nil || n == 0 {
		last = ""
	}
	d.viewers.Add(1)
	defer d.viewers.Add(-1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	wake := make(chan struct{}, 1)
	ended := make(chan streamEnd, 1)
	go func() {
		status, err := d.events(ctx, r, goal.LinksOf(id).Events, last, func() {
			select {
			case wake <- struct{}{}:
			default: // a rendering is due already
			}
		})
		ended <- streamEnd{status, err}
	}()
	l := liveStream{d: d, w: w, r: r, rc: http.NewResponseController(w)}
	done := l.run(wake, ended) //nolint:contextcheck // r carries it
	cancel()
	if !done {
		<-ended // the API's handler ends with its context
	}
}

type streamEnd struct {
	status int
	err    error
}

// liveStream is one viewer of one task.
type liveStream struct {
	d    *Dashboard
	w    http.ResponseWriter
	r    *http.Request
	rc   *http.ResponseController
	open bool
	sent []byte // the last rendering
	snap goal.Snapshot
}

// run sends renderings until the task or the API's stream ends, or the viewer
// goes. It reports whether it has taken from ended.
func (l *liveStream) run(wake <-chan struct{}, ended <-chan streamEnd) (took bool) {
	grow := time.NewTimer(l.d.pace(growEvery))
	defer grow.Stop()
	for {
		var err error
		select {
		case <-l.r.Context().Done():
			return false
		case <-wake:
			err = l.reload()
		case <-grow.C:
			err = l.grow()
			grow.Reset(l.d.pace(growEvery))
		case end := <-ended:
			l.finish(end)
			return true
		}
		if err != nil {
			return false // the viewer has gone, or comes back
		}
		pause(l.r.Context(), l.d.pace(quiet))
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// finish answers what the API's stream came to: a last rendering, also where
// nothing was left to stream, or that there is none.
func (l *liveStream) finish(end streamEnd) {
	switch {
	case end.err == nil && (end.status == http.StatusOK || end.status == http.StatusNoContent):
		if l.reload() == nil && l.snap.Task().Status.Terminal() {
			_ = l.send([]byte("event: ended\ndata: ended\n\n")) // the viewer has gone; there is nobody to tell
		}
	case !l.open:
		l.w.WriteHeader(max(end.status, http.StatusServiceUnavailable))
	}
}

// reload reads the task and shows it.
func (l *liveStream) reload() error {
	snap, err := l.d.load(l.r)
	if err != nil {
		return err
	}
	l.snap = snap
	return l.show()
}

// grow shows the time that has passed, while a task is running.
func (l *liveStream) grow() error {
	if l.snap.Seq == 0 {
		return l.reload()
	}
	if !l.open || l.snap.Task().Status != goal.Running {
		return l.send([]byte(": still here\n\n"))
	}
	return l.show()
}

// show sends the rendering, unless it is what was sent last.
func (l *liveStream) show() error {
	v := newTaskView(l.snap, time.Now())
	l.d.addDeliveries(l.r, &v)
	var page bytes.Buffer
	if err := l.d.pages.ExecuteTemplate(&page, "task-live", v); err != nil {
		l.d.cfg.Log.ErrorContext(l.r.Context(), "page cannot be rendered", "page", "task-live", "error", err)
		return fmt.Errorf("render: %w", err)
	}
	if bytes.Equal(page.Bytes(), l.sent) {
		return nil
	}
	l.sent = bytes.Clone(page.Bytes())
	var out bytes.Buffer
	fmt.Fprintf(&out, "id: %d\n", v.LastN)
	// A carriage return would end a line of the stream, and what a tool wrote
	// after it would be read as a field.
	text := bytes.ReplaceAll(page.Bytes(), []byte("\r"), []byte("&#13;"))
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		out.WriteString("data: ")
		out.Write(line)
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
	return l.send(out.Bytes())
}

// send opens the stream at the first call.
func (l *liveStream) send(p []byte) error {
	if !l.open {
		h := l.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no")
		l.w.WriteHeader(http.StatusOK)
		l.open = true
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(frameExpiry)) // not every writer has one
	if _, err := l.w.Write(p); err != nil {
		return fmt.Errorf("live: %w", err)
	}
	if err := l.rc.Flush(); err != nil {
		return fmt.Errorf("live: %w", err)
	}
	return nil
}

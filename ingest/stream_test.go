package ingest_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// streamWriter is a client that reads an event stream, or refuses to.
type streamWriter struct {
	mu      sync.Mutex
	status  int
	header  http.Header
	written bytes.Buffer
	stuck   chan struct{} // writes wait for it, where set
}

func (w *streamWriter) Header() http.Header { return w.header }
func (w *streamWriter) WriteHeader(s int)   { w.status = s }
func (w *streamWriter) Flush()              {}

func (w *streamWriter) Write(p []byte) (int, error) {
	if w.stuck != nil {
		<-w.stuck
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written.Write(p)
}

func (w *streamWriter) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.written.String()
	w.written.Reset()
	return s
}

// follow opens an event stream and returns what it writes to, and how to end it.
func (w *world) follow(id string, stuck chan struct{}, headers ...string) (out *streamWriter, ended <-chan struct{}, leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/tasks/"+id+"/events", http.NoBody)
	r.Host = "localhost"
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	out = &streamWriter{header: http.Header{}, stuck: stuck}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.h.ServeHTTP(out, r)
	}()
	return out, done, cancel
}

// ids are the ids, or for notes the types, of the events in a stream's text.
func ids(text string) string {
	var out []string
	for event := range strings.SplitSeq(text, "\n\n") {
		first, _, _ := strings.Cut(event, "\n")
		if _, v, ok := strings.Cut(first, ": "); ok && !strings.HasPrefix(first, ":") {
			out = append(out, v)
		}
	}
	return strings.Join(out, " ")
}

func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, tail := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		w.started(id)
		w.store.append("default", id, decided(2, 1))
		tail.bring("default", id, goal.Event{N: 1, Type: goal.TaskStarted, Started: &goal.Started{}})

		out, ended, leave := w.follow(id, nil)
		defer leave()
		synctest.Wait()
		if out.status != http.StatusOK || out.header.Get("Content-Type") != "text/event-stream" || out.header.Get("X-Accel-Buffering") != "no" || out.header.Get("Content-Encoding") != "" {
			t.Errorf("status %d, header %v", out.status, out.header)
		}
		first := out.take()
		if got := ids(first); got != "1 2" {
			t.Errorf("replayed %q, want 1 2", got)
		}
		if !strings.HasPrefix(first, "id: 1\nevent: task.started.v1\ndata: {\"n\":1,") || strings.Contains(first, "secret") {
			t.Errorf("text = %q", first)
		}

		// New events; repeated ones are not sent again.
		tail.bring("default", id, decided(2, 1), goal.Event{N: 3, Type: goal.StepCompleted, Step: 1})
		tail.bring("default", id, goal.Event{N: 3, Type: goal.StepCompleted, Step: 1})
		tail.bring("default", id, goal.Event{Type: goal.KeyConflict})
		tail.bring("default", goal.TaskID("default", "other"), goal.Event{N: 9, Type: goal.StepCompleted})
		synctest.Wait()
		if got := ids(out.take()); got != "3 key.conflict.v1" {
			t.Errorf("live %q, want 3 and the note", got)
		}

		// An idle stream is kept open.
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := out.take(); got != strings.Repeat(": still here\n\n", 2) {
			t.Errorf("heartbeat = %q", got)
		}

		// A gap is filled from the journal.
		w.store.append("default", id, goal.Event{N: 3, Type: goal.StepCompleted, Step: 1}, decided(4, 2), goal.Event{N: 5, Type: goal.StepCompleted, Step: 2}, decided(6, 3))
		tail.bring("default", id, decided(6, 3))
		synctest.Wait()
		if got := ids(out.take()); got != "4 5 6" {
			t.Errorf("after a gap %q, want 4 5 6", got)
		}

		// The terminal event ends it.
		w.store.append("default", id, endedEvent(7, goal.Succeeded, goal.TargetStateReached))
		tail.bring("default", id, endedEvent(7, goal.Succeeded, goal.TargetStateReached))
		<-ended
		if got := ids(out.take()); got != "7" {
			t.Errorf("at the end %q, want 7", got)
		}

		// Resume in the middle, and behind the end.
		out, ended, leave2 := w.follow(id, nil, "Last-Event-ID: 4")
		defer leave2()
		<-ended
		if got := ids(out.take()); got != "5 6 7" {
			t.Errorf("resumed %q, want 5 6 7", got)
		}
		rec := w.call(http.MethodGet, "/v1/tasks/"+id+"/events", "", "Last-Event-ID: 7")
		wantStatus(t, rec, http.StatusNoContent)
		wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+id+"/events?after=7", ""), http.StatusNoContent)
		wantStatus(t, w.call(http.MethodGet, "/v1/tasks/"+id+"/events", "", "Last-Event-ID: x"), http.StatusBadRequest)
		if n := w.srv.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}

// TestEventsOfNewTask: a task to which nothing has happened yet is followed
// without a question to the store. Whatever this process cannot know makes it
// ask.
func TestEventsOfNewTask(t *testing.T) {
	t.Parallel()
	started := goal.Event{N: 1, Type: goal.TaskStarted, Started: &goal.Started{}}
	for _, row := range []struct {
		name    string
		before  func(w *world, tail *fakeTail, id string) // it is followed
		headers []string
		loads   int
	}{
		{"new", func(*world, *fakeTail, string) {}, nil, 0},
		{"the caller knows more", func(*world, *fakeTail, string) {}, []string{"Last-Event-ID: 1"}, 1},
		{"it has started", func(_ *world, tail *fakeTail, id string) { tail.bring("default", id, started) }, nil, 1},
		{"somebody noted something", func(_ *world, tail *fakeTail, id string) {
			tail.bring("default", id, goal.Event{Type: goal.KeyConflict})
		}, nil, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, tail := running(t)
				wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
				id := goal.TaskID("default", "k")
				row.before(w, tail, id)
				loads := 0
				w.store.fault = func(_ context.Context, op string) error {
					if op == "load" {
						loads++
					}
					return nil
				}
				out, ended, leave := w.follow(id, nil, row.headers...)
				defer leave()
				synctest.Wait()
				if loads != row.loads {
					t.Errorf("the store was asked %d times, want %d", loads, row.loads)
				}
				end := endedEvent(2, goal.Succeeded, goal.TargetStateReached)
				w.store.append("default", id, started, end)
				tail.bring("default", id, started)
				tail.bring("default", id, end)
				<-ended
				if got := ids(out.take()); !strings.HasSuffix(got, "2") {
					t.Errorf("streamed %q, want the end", got)
				}
			})
		})
	}
	t.Run("its events may have been forgotten", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, tail := running(t)
			id := goal.TaskID("default", "k")
			w.store.now = time.Now // the accepting clock
			tail.bring("default", id, started)
			for i := range ingest.MaxEarly {
				tail.bring("default", goal.TaskID("default", strconv.Itoa(i)), goal.Event{N: 9, Type: goal.StateObserved})
			}
			wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
			w.store.append("default", id, started)
			out, _, leave := w.follow(id, nil)
			defer leave()
			synctest.Wait()
			if got := ids(out.take()); got != "1" {
				t.Errorf("streamed %q, want what the store has", got)
			}
		})
	})
}

// TestSlowWatcher: one that does not read is dropped, and delays nobody.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, tail := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		stuck := make(chan struct{})
		_, slowEnded, leaveSlow := w.follow(id, stuck)
		defer leaveSlow()
		fast, _, leaveFast := w.follow(id, nil)
		synctest.Wait()
		many := ingest.WatchBuffer + 10
		for n := 1; n <= many; n++ {
			e := goal.Event{N: n, Type: goal.StateObserved}
			w.store.append("default", id, e)
			tail.bring("default", id, e)
			synctest.Wait()
		}
		if got := strings.Count(fast.take(), "id: "); got != many {
			t.Errorf("the fast watcher has %d events, want %d", got, many)
		}
		if n := w.srv.Watchers(); n != 1 {
			t.Errorf("%d watchers, want the fast one alone", n)
		}
		close(stuck)
		<-slowEnded
		leaveFast()
	})
}

func TestStreamsEndWithDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		_, ended, leave := w.follow(goal.TaskID("default", "k"), nil)
		defer leave()
		synctest.Wait()
		w.srv.Drain(t.Context())
		<-ended
	})
}

// TestTailIsCutOff: streams go on after the tail came back; what was missed is
// read from the journal.
func TestTailIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, tail := running(t)
		wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
		id := goal.TaskID("default", "k")
		out, _, leave := w.follow(id, nil)
		defer leave()
		synctest.Wait()
		tail.breaks <- goal.ErrUnavailable
		w.started(id)
		w.store.append("default", id, decided(2, 1))
		<-tail.tailed
		tail.bring("default", id, decided(2, 1))
		synctest.Wait()
		if got := ids(out.take()); got != "1 2" {
			t.Errorf("sent %q, want 1 2", got)
		}
		leave()
	})
}

// TestThousandWatchers over TCP: one goroutine and one buffer each, and everybody
// gets everything.
func TestThousandWatchers(t *testing.T) {
	t.Parallel()
	w, tail := running(t)
	wantStatus(t, w.post("k", goodGoal), http.StatusAccepted)
	id := goal.TaskID("default", "k")
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = ingest.NewHTTPServer("", w.h)
	srv.Start()
	defer srv.Close()
	client := srv.Client()
	client.Transport.(*http.Transport).MaxConnsPerHost = 0
	const watchers, events = 1000, 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	var short []string
	open := make(chan struct{}, watchers)
	for range watchers {
		wg.Go(func() {
			got, err := readStream(t.Context(), client, srv.URL+"/v1/tasks/"+id+"/events", open)
			if err != nil || got != events {
				mu.Lock()
				defer mu.Unlock()
				short = append(short, fmt.Sprintf("%d events, then %v", got, err))
			}
		})
	}
	for range watchers {
		<-open
	}
	for n := 1; n <= events; n++ {
		e := goal.Event{N: n, Type: goal.StateObserved}
		if n == events {
			e = endedEvent(n, goal.Succeeded, goal.TargetStateReached)
		}
		w.store.append("default", id, e)
		tail.bring("default", id, e)
	}
	wg.Wait()
	if len(short) > 0 {
		t.Errorf("%d of %d watchers did not get every event: %q", len(short), watchers, short)
	}
	client.CloseIdleConnections()
}

// readStream counts the events of a stream, and checks their order.
func readStream(ctx context.Context, c *http.Client, url string, open chan<- struct{}) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(r)
	open <- struct{}{}
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n := 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			if n++; id != strconv.Itoa(n) {
				return n, fmt.Errorf("event %s after %d", id, n-1)
			}
		}
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return n, lines.Err()
}

package dashboard

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// feed is an API whose event stream a test drives.
type feed struct {
	frames chan string // closed: the stream ends
	status int         // other than 200: no stream
	lastID chan string
}

func (f *feed) serve(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasSuffix(r.URL.Path, "/events") {
		return false
	}
	f.lastID <- r.Header.Get("Last-Event-ID")
	w.WriteHeader(f.status)
	if f.status != http.StatusOK {
		return true
	}
	for {
		select {
		case frame, ok := <-f.frames:
			if !ok {
				return true
			}
			if _, err := io.WriteString(w, frame); err != nil {
				return true
			}
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return true
		}
	}
}

// viewer reads a live page.
type viewer struct {
	header http.Header
	leave  context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	status int
	body   strings.Builder
}

func (v *viewer) Header() http.Header { return v.header }

func (v *viewer) WriteHeader(status int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status = status
}

func (v *viewer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.body.Write(p)
}

func (v *viewer) Flush() {}

// read is what has come so far.
func (v *viewer) read() (status int, body string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.status, v.body.String()
}

func (w *world) watch(query string, headers ...string) *viewer {
	ctx, cancel := context.WithCancel(w.t.Context())
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/tasks/"+taskA+"/live"+query, http.NoBody)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	v := &viewer{header: http.Header{}, leave: cancel, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		w.d.ServeHTTP(v, req)
	}()
	return v
}

// TestLive follows a task to its end.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(at(2000)))
		w := newWorld(t)
		f := &feed{frames: make(chan string), status: http.StatusOK, lastID: make(chan string, 1)}
		w.api = f.serve
		word := "a\r\nevent: ended\r\ndata: <b>"
		w.put(snapshot(word))
		v := w.watch("?after=3")
		if id := <-f.lastID; id != "3" {
			t.Errorf("the API is asked from %q", id)
		}
		f.frames <- "id: 9\nevent: step.decided.v1\ndata: {}\n\n"
		time.Sleep(time.Second / 2)
		synctest.Wait()
		_, body := v.read()
		if !strings.HasPrefix(body, "id: 9\ndata: ") || v.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("stream begins with %q", clip(body, 80))
		}
		n := strings.Count(body, "id: 9\n")
		f.frames <- ": still here\n\n"
		time.Sleep(3 * time.Second) // bars grow
		synctest.Wait()
		_, body = v.read()
		if grown := strings.Count(body, "id: 9\n"); grown < n+2 {
			t.Errorf("%d renderings, then %d: the page does not grow", n, grown)
		}
		w.put(ended(snapshot(word), word))
		close(f.frames)
		<-v.done
		_, body = v.read()
		if !strings.HasSuffix(body, "event: ended\ndata: ended\n\n") || !strings.Contains(body, "id: 10\n") {
			t.Errorf("stream ends with %q", body[max(0, len(body)-80):])
		}
		for line := range strings.SplitSeq(body, "\n") {
			if line != "" && !strings.HasPrefix(line, "data: ") && !strings.HasPrefix(line, "id: ") && !strings.HasPrefix(line, ":") && line != "event: ended" {
				t.Errorf("line of the stream: %q", clip(line, 80))
			}
		}
		if strings.Contains(body, "\r") || strings.Count(body, "event: ended\n") != 1 {
			t.Error("text of a goal became a field of the stream")
		}
	})
}

func TestLiveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(snapshot("word"))
		f := &feed{frames: make(chan string), status: http.StatusOK, lastID: make(chan string, 9)}
		w.api = f.serve
		v := w.watch("", "Last-Event-ID: 5")
		f.frames <- "id: 9\n\n"
		v.leave()
		<-v.done // and the API's handler with it
		if id := <-f.lastID; id != "5" {
			t.Errorf("the API is asked from %q", id)
		}

		for status, want := range map[int]int{http.StatusNoContent: 200, http.StatusTooManyRequests: 503, http.StatusServiceUnavailable: 503} {
			f.status = status
			v := w.watch("?after=0")
			<-v.done
			if got, _ := v.read(); got != want {
				t.Errorf("API's %d is answered %d", status, got)
			}
		}

		f.status = http.StatusNoContent // the viewer has seen the end, but not that it was one
		w.put(ended(snapshot("word"), "word"))
		v = w.watch("?after=10")
		<-v.done
		if _, body := v.read(); !strings.HasSuffix(body, "event: ended\ndata: ended\n\n") {
			t.Errorf("a stream of an ended task ends with %q", body[max(0, len(body)-80):])
		}
		w.put(snapshot("word"))

		f.status = http.StatusOK
		f.frames = make(chan string)
		close(f.frames) // the server drains: the task goes on
		v = w.watch("")
		<-v.done
		if _, body := v.read(); strings.Contains(body, "event: ended") {
			t.Error("a stream that was cut off looks like the task's end")
		}
	})
}

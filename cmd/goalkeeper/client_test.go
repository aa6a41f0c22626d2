package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// startFake starts a fake API for one test.
func startFake(t *testing.T) (*fakeAPI, string) {
	t.Helper()
	api := newFakeAPI()
	s := httptest.NewServer(api)
	t.Cleanup(func() { api.stop(); s.Close() })
	return api, s.URL
}

// dialTo is a client for a handler.
func dialTo(t *testing.T, h http.HandlerFunc) *client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := newClient(s.URL, "", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func TestRepetition(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		answer http.HandlerFunc // to the first try; the second one is 204
		repeat bool
		tries  int32
		failed bool
	}{
		"busy": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			repeat: true, tries: 2,
		},
		"rate limited, with a time": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
			},
			repeat: true, tries: 2,
		},
		"a time beyond the cap": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(http.StatusTooManyRequests)
			},
			repeat: true, tries: 1, failed: true,
		},
		"lost answer": {
			answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			repeat: true, tries: 2,
		},
		"busy, but not to be repeated": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			tries:  1, failed: true,
		},
		"refused for good": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) },
			repeat: true, tries: 1, failed: true,
		},
		"sent elsewhere": {
			answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
			repeat: true, tries: 1, failed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			c := dialTo(t, func(w http.ResponseWriter, r *http.Request) {
				if tries.Add(1) == 1 {
					row.answer(w, r)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			})
			_, err := c.do(t.Context(), request{method: http.MethodPost, path: "/x", body: []byte("{}"), repeat: row.repeat})
			if got := tries.Load(); got != row.tries || (err != nil) != row.failed {
				t.Errorf("got %d tries and error %v, want %d tries and failed = %t", got, err, row.tries, row.failed)
			}
		})
	}
}

func TestNoConnectionIsNotRepeated(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // nobody listens there now
		t.Fatal(err)
	}
	c, err := newClient("http://"+l.Addr().String(), "", func(string, ...any) { t.Error("it was repeated") })
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.do(t.Context(), request{method: http.MethodGet, path: "/", repeat: true})
	if !errors.Is(err, errNoConnection) {
		t.Errorf("got %v, want %v", err, errNoConnection)
	}
}

func TestTimeoutOfTheVerbIsTheError(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	c := dialTo(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	defer close(stop)
	ctx, cancel := withTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.do(ctx, request{method: http.MethodGet, path: "/", repeat: true}); !errors.Is(err, errTimedOut) {
		t.Errorf("got %v, want %v", err, errTimedOut)
	}
}

func TestProblemDetailsAreTheError(t *testing.T) {
	t.Parallel()
	c := dialTo(t, func(w http.ResponseWriter, _ *http.Request) {
		p := goal.NewProblem(goal.GoalInvalid, "1 place is wrong.")
		p.Errors = []goal.FieldError{{Pointer: "/goal/intent", Detail: "is required"}}
		refuse(w, p)
	})
	_, err := c.do(t.Context(), request{method: http.MethodGet, path: "/"})
	var p *goal.Problem
	if !errors.As(err, &p) || p.Kind() != goal.GoalInvalid || len(p.Errors) != 1 {
		t.Errorf("got %v, want the problem that was sent", err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for field, want := range map[string]int{
		"": 0, "0": 0, "7": 7, "-3": 0, "soon": 0, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30,
		"Fri, 02 Jan 2026 03:04:01 GMT": 0,
	} {
		if got := retryAfter(field, now); got != want {
			t.Errorf("retryAfter(%q) = %d, want %d", field, got, want)
		}
	}
}

func TestBackOffIsBounded(t *testing.T) {
	t.Parallel()
	for n := range 100 {
		if d := backOff(n); d < firstPause/2 || d > longestPause {
			t.Errorf("backOff(%d) = %s, outside %s to %s", n, d, firstPause/2, longestPause)
		}
	}
}

func TestServerURLs(t *testing.T) {
	t.Parallel()
	for server, ok := range map[string]bool{
		"http://127.0.0.1:8080": true, "https://goals.example.com/": true, "https://example.com/prefix": true, "http://[::1]:80": true,
		"": false, "localhost:8080": false, "ftp://x": false, "http://": false, "https://user:pw@example.com": false, "https://x/?q=1": false,
	} {
		c, err := newClient(server, "", t.Logf)
		if (err == nil) != ok {
			t.Errorf("newClient(%q): %v, want it taken: %t", server, err, ok)
		}
		if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("the error repeats a password: %v", err)
		}
		if err == nil {
			c.close()
		}
	}
}

// TestPathBelowAPrefix: a server may live below a path.
func TestPathBelowAPrefix(t *testing.T) {
	t.Parallel()
	var got string
	c := dialTo(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.String()
		w.WriteHeader(http.StatusNoContent)
	})
	c.base = c.base.JoinPath("prefix")
	if _, err := c.do(context.Background(), request{method: http.MethodGet, path: "/v1/tasks", query: url.Values{"limit": {"2"}}}); err != nil {
		t.Fatal(err)
	}
	if got != "/prefix/v1/tasks?limit=2" {
		t.Errorf("got %s", got)
	}
}

// trip is how one request ends.
type trip struct {
	status     int
	etag, body string
	err        error
}

// roundTrips ends the n-th request as the n-th trip says, and further ones as
// the last.
type roundTrips struct {
	n     int
	trips []trip
}

func (r *roundTrips) RoundTrip(*http.Request) (*http.Response, error) {
	r.n++
	t := r.trips[min(r.n, len(r.trips))-1]
	if t.err != nil {
		return nil, t.err
	}
	h := http.Header{"Etag": {t.etag}, "Content-Type": {"application/json"}}
	return &http.Response{StatusCode: t.status, Header: h, Body: io.NopCloser(strings.NewReader(t.body))}, nil
}

// TestWaitLivesThroughRestarts: once a task was seen, neither a server that is
// away nor one that is busy for long ends the wait.
func TestWaitLivesThroughRestarts(t *testing.T) {
	t.Parallel()
	away := trip{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	lost := trip{err: io.ErrUnexpectedEOF}
	busy := trip{status: http.StatusServiceUnavailable}
	running := trip{status: http.StatusOK, etag: `"1"`, body: `{"id":"tsk_1","status":"running"}`}
	ended := trip{status: http.StatusOK, etag: `"2"`, body: `{"id":"tsk_1","status":"failed","reason":"TOOL_FAILED"}`}
	for name, row := range map[string]struct {
		trips []trip
		want  goal.Reason
	}{
		"restart":          {[]trip{running, lost, away, away, away, running, ended}, goal.ToolFailed},
		"busy for long":    {slices.Concat([]trip{running}, slices.Repeat([]trip{busy}, 12), []trip{ended}), goal.ToolFailed},
		"never there":      {[]trip{away}, ""},
		"gone in the wait": {[]trip{running, {status: http.StatusNotFound}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &client{base: &url.URL{Scheme: "http", Host: "example.com"}, notef: t.Logf, http: &http.Client{Transport: &roundTrips{trips: row.trips}}}
				task, err := awaitEnd(t.Context(), c, newTerminal(streams{err: io.Discard}, nil), "tsk_1")
				if (err == nil) != (row.want != "") || task.Reason != row.want {
					t.Errorf("got reason %q and error %v, want %q", task.Reason, err, row.want)
				}
			})
		})
	}
}

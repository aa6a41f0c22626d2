package idempotency

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// bubble is a guard in virtual time, without a server.
type bubble struct {
	t     *testing.T
	store *memStore
	guard *Guard
	// backend is what the guard protects.
	backend, next http.Handler
}

func newBubble(t *testing.T, next http.HandlerFunc, cfg Config) *bubble {
	t.Helper()
	store := newMemStore()
	cfg.Store, cfg.Log = store, quiet()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &bubble{t, store, g, next, g.Wrap(next)}
}

// twin is another process on the same store, with the same backend.
func (b *bubble) twin() *bubble {
	g := newGuard(b.guard.cfg, b.guard.metrics)
	return &bubble{b.t, b.store, g, b.backend, g.Wrap(b.backend)}
}

func (b *bubble) post(ctx context.Context, pairs ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/pay", strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(HeaderKey, "k")
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	b.next.ServeHTTP(w, r)
	return w
}

func (b *bubble) want(w *httptest.ResponseRecorder, status int, pairs ...string) {
	b.t.Helper()
	res := w.Result()
	_ = res.Body.Close()
	reply{res, w.Body.String()}.want(b.t, status, pairs...)
}

func TestLeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		b := newBubble(t, func(http.ResponseWriter, *http.Request) {
			runs.Add(1)
			time.Sleep(200 * time.Second)
		}, Config{})
		defer b.guard.Close()
		go b.post(t.Context())
		synctest.Wait()
		twin := b.twin()
		defer twin.guard.Close()
		for range 19 {
			time.Sleep(10 * time.Second)
			b.want(twin.post(t.Context()), 409)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		b.want(b.post(t.Context()), 200, HeaderLookup, "HIT")
		if runs.Load() != 1 {
			t.Fatalf("%d runs; want 1", runs.Load())
		}
		// A claim, 19 renewals (one every third of the lease), the answer.
		if b.store.writes < 20 || b.store.writes > 22 {
			t.Fatalf("%d writes; want about 21", b.store.writes)
		}
	})
}

// When renewals fail, the handler's context ends before the lease does, another
// attempt runs after it, and the first can neither complete nor release.
func TestFencing(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		code int
	}{{"complete", 200}, {"release", 500}} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { fencing(t, end.code) })
		})
	}
}

func fencing(t *testing.T, code int) {
	t.Helper()
	var (
		down  atomic.Bool
		runs  atomic.Int64
		lost  = make(chan time.Time, 1)
		began = time.Now()
	)
	b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) > 1 {
			_, _ = io.WriteString(w, "second")
			return
		}
		down.Store(true)
		<-r.Context().Done()
		if !errors.Is(context.Cause(r.Context()), ErrLeaseLost) {
			t.Errorf("cause %v; want ErrLeaseLost", context.Cause(r.Context()))
		}
		lost <- time.Now()
		time.Sleep(20 * time.Second) // a handler that does not obey at once
		w.WriteHeader(code)
	}, Config{})
	defer b.guard.Close()
	b.store.before = func(string, string) error {
		if down.Load() {
			return goal.ErrUnavailable
		}
		return nil
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- b.post(t.Context()) }()
	time.Sleep(31 * time.Second)
	if age := (<-lost).Sub(began); age < 20*time.Second || age > 30*time.Second {
		t.Fatalf("the handler's context ended after %s; want within the lease", age)
	}
	down.Store(false)
	twin := b.twin()
	defer twin.guard.Close()
	b.want(twin.post(t.Context()), 200, HeaderLookup, "MISS", HeaderAttempt, "2")
	w := <-first
	b.want(w, code)
	if code == 200 && w.Header().Get(HeaderIdempotency) != "unrecorded" {
		t.Error("the first answer does not say that it was not recorded")
	}
	b.want(twin.post(t.Context()), 200, HeaderLookup, "HIT")
	if got := twin.post(t.Context()).Body.String(); got != "second" || runs.Load() != 2 {
		t.Fatalf("replay %q after %d runs; want the second holder's answer", got, runs.Load())
	}
}

// A handler that outlives its lease completes all the same when nobody took it.
func TestLateCompletion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		b := newBubble(t, func(w http.ResponseWriter, _ *http.Request) {
			down.Store(true)
			time.Sleep(40 * time.Second)
			down.Store(false)
			w.WriteHeader(http.StatusCreated)
		}, Config{})
		defer b.guard.Close()
		b.store.before = func(string, string) error {
			if down.Load() {
				return goal.ErrUnavailable
			}
			return nil
		}
		b.want(b.post(t.Context()), 201, HeaderIdempotency, "")
		b.want(b.post(t.Context()), 201, HeaderLookup, "HIT")
	})
}

func TestRecordsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(HeaderAttempt) == "1" {
				MarkUnknown(r.Context(), "third party timed out")
				w.WriteHeader(http.StatusBadGateway)
			}
		}, Config{ResultTTL: 48 * time.Hour})
		defer b.guard.Close()
		b.want(b.post(t.Context()), 502, "Retry-After", "30")
		time.Sleep(29 * time.Second)
		b.want(b.post(t.Context()), 409)
		time.Sleep(time.Second)
		b.want(b.post(t.Context()), 200, HeaderAttempt, "2") // the trace tells of the first
		time.Sleep(48*time.Hour - time.Second)
		b.want(b.post(t.Context()), 200, HeaderLookup, "HIT")
		time.Sleep(memTrace + time.Second)
		b.want(b.post(t.Context()), 502, HeaderAttempt, "1") // a new call
	})
}

func TestMaxRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if !errors.Is(context.Cause(r.Context()), ErrMaxRun) {
				t.Errorf("cause %v; want ErrMaxRun", context.Cause(r.Context()))
			}
			w.WriteHeader(http.StatusInternalServerError)
		}, Config{MaxRun: time.Minute})
		defer b.guard.Close()
		b.want(b.post(t.Context()), 500, "Retry-After", "30")
		if rec := b.store.record(); rec == nil || rec.State != Held {
			t.Fatalf("record %+v; want it held", rec)
		}
	})
}

func TestPreferWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		b := newBubble(t, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			time.Sleep(5 * time.Second)
			_, _ = io.WriteString(w, "done")
		}, Config{MaxWaiters: 2})
		defer b.guard.Close()
		var group sync.WaitGroup
		group.Go(func() { b.want(b.post(t.Context()), 200) })
		synctest.Wait()
		began := time.Now()
		b.want(b.post(t.Context(), "Prefer", "wait=2"), 409, "Preference-Applied", "wait=2")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("waited %s; want 2s", took)
		}
		for range 2 {
			group.Go(func() {
				b.want(b.post(t.Context(), "Prefer", "respond-async, wait=600"), 200,
					HeaderLookup, "HIT", "Preference-Applied", "wait=10")
			})
		}
		synctest.Wait()
		began = time.Now()
		b.want(b.post(t.Context(), "Prefer", "wait=9"), 409) // too many wait
		if took := time.Since(began); took != 0 {
			t.Errorf("the third waiter waited %s; want not at all", took)
		}
		group.Wait()
		if runs.Load() != 1 {
			t.Fatalf("%d runs; want 1", runs.Load())
		}
	})
}

// A waiter for another process's call sees its end, and a release makes one of
// the waiters run.
func TestPreferWaitElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		b := newBubble(t, func(http.ResponseWriter, *http.Request) { runs.Add(1) }, Config{})
		defer b.guard.Close()
		l := ledger{b.store}
		c, _, err := l.claim(t.Context(), recordID("default", "k"),
			Record{Owner: "other", Fingerprint: fingerprintOf(t, "/pay", "{}")}, 30*time.Second, false)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() { b.want(b.post(t.Context(), "Prefer", "wait=10"), 200) })
		}
		time.Sleep(3 * time.Second)
		if runs.Load() != 0 {
			t.Fatal("a waiter ran under another's lease")
		}
		if err := l.release(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
		group.Wait()
		if runs.Load() != 1 {
			t.Fatalf("%d runs; want 1", runs.Load())
		}
	})
}

func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		started, gone := make(chan struct{}), make(chan struct{})
		w := newWorld(t, f, func(rw http.ResponseWriter, r *http.Request) {
			close(started)
			<-gone
			select {
			case <-r.Context().Done():
				t.Error("the handler's context ended with the client's connection")
			case <-time.After(100 * time.Millisecond):
			}
			echo(rw, r)
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-started
			cancel()
		}()
		if _, err := w.send(ctx, http.MethodPost, "/pay", "k", "{}", "Content-Type", "application/json"); !errors.Is(err, context.Canceled) {
			t.Fatalf("the client got %v; want to be gone", err)
		}
		close(gone)
		eventually(t, "the answer is stored", func() bool {
			rec := w.store.record()
			return rec != nil && rec.State == Completed
		})
		eventually(t, "the flight ends", func() bool { return w.guard.flights.find(recordID("default", "k")) == nil })
		if r := w.post("k", "{}").want(t, 201, HeaderLookup, "HIT"); r.body != "attempt 1 of {}" {
			t.Fatalf("replay %q", r.body)
		}
		w.ran(1)
	})
}

func TestTwoHundredAtOnce(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		for _, wait := range []string{"", "wait=10"} {
			w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
				<-time.After(50 * time.Millisecond) // work, so that they overlap
				echo(w, r)
			}, nil)
			var (
				group    sync.WaitGroup
				conflict atomic.Int64
			)
			for range 200 {
				group.Go(func() {
					r, err := w.send(t.Context(), http.MethodPost, "/pay", "k", "{}", "Content-Type", "application/json", "Prefer", wait)
					switch {
					case err != nil:
						t.Error(err)
					case r.StatusCode == http.StatusConflict:
						conflict.Add(1)
					case r.StatusCode != http.StatusCreated || r.body != "attempt 1 of {}":
						t.Errorf("status %d %q", r.StatusCode, r.body)
					}
				})
			}
			group.Wait()
			w.ran(1)
			if wait != "" && conflict.Load() != 0 {
				t.Errorf("%d of the waiting got 409; want none", conflict.Load())
			}
		}
	})
}

func TestPanics(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		status  int // 0: the connection is closed
		state   State
	}{
		{"before anything was written", func(http.ResponseWriter, *http.Request) { panic("boom") }, 500, Released},
		{"after the answer had begun", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			panic("boom")
		}, 500, Held},
		{"abort before anything was written", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, Released},
		{"abort after the answer had begun", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic(http.ErrAbortHandler)
		}, 0, Held},
		{"goroutine ended", func(http.ResponseWriter, *http.Request) { runtime.Goexit() }, 500, Released},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, middleware, test.handler, nil)
			r, err := w.send(t.Context(), http.MethodPost, "/pay", "k", "{}")
			switch {
			case test.status == 0 && err == nil:
				t.Fatalf("status %d; want a closed connection", r.StatusCode)
			case test.status == 0:
			case err == nil:
				r.want(t, test.status)
				if strings.Contains(r.body, "half") {
					t.Errorf("half an answer was sent: %q", r.body)
				}
			case test.name != "goroutine ended": // that may take the connection with it
				t.Fatal(err)
			}
			w.state(test.state)
		})
	}
}

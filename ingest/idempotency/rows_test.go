package idempotency

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The rows of the contract's table, each in-process and through the proxy.

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Location", "/payments/1")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "attempt %s of %s", r.Header.Get(HeaderAttempt), body) //nolint:gosec // a test
}

func status(code int, pairs ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(pairs); i += 2 {
			w.Header().Set(pairs[i], pairs[i+1])
		}
		w.WriteHeader(code)
	}
}

func TestKeyIsRequired(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			w.call(method, "/pay", "", "{}").want(t, 400, "Cache-Control", "no-store").problem(t, "idempotency-key-missing")
		}
		for _, key := range []string{"k, l", `"k`, "a;b", strings.Repeat("k", 256)} {
			w.post(key, "{}").want(t, 400).problem(t, "idempotency-key-malformed")
		}
		w.call(http.MethodPost, "/pay", "k", "{}", HeaderKey, "k").want(t, 400).problem(t, "idempotency-key-malformed")
		w.ran(0)
	})
}

func TestFirstCallAndReplay(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		first := w.post("k", `{"a":1}`).want(t, 201, HeaderLookup, "MISS", HeaderReplayed, "", HeaderAttempt, "1",
			HeaderKey, `"k"`, "Location", "/payments/1", HeaderIdempotency, "")
		if first.body != `attempt 1 of {"a":1}` {
			t.Fatalf("body %q", first.body)
		}
		w.state(Completed)
		for _, key := range []string{"k", `"k"`, `"k";v=1`} { // spellings of one key
			again := w.post(key, ` {"a": 1.0} `).want(t, 201, HeaderLookup, "HIT", HeaderReplayed, "true",
				HeaderKey, `"k"`, "Location", "/payments/1", "Content-Type", "text/plain")
			if again.body != first.body || again.Header.Get(HeaderOriginalDate) == "" || again.ContentLength != int64(len(first.body)) {
				t.Fatalf("replay %q %v; want %q", again.body, again.Header, first.body)
			}
		}
		w.ran(1)
	})
}

func TestBypass(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %q", r.Method, r.Header.Get(HeaderAttempt)) //nolint:gosec // a test
		}, nil)
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			for range 2 {
				w.call(method, "/pay", "k", "", HeaderAttempt, "9").want(t, 200, HeaderLookup, "", HeaderReplayed, "")
			}
		}
		if got := w.call(http.MethodGet, "/pay", "", "", HeaderAttempt, "9").body; got != `GET ""` {
			t.Fatalf("the backend saw %s; a caller's attempt must not pass", got)
		}
		w.state("")
	})
}

func TestInProgress(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		started, finish := make(chan struct{}), make(chan struct{})
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-finish
			echo(w, r)
		}, nil)
		var group sync.WaitGroup
		group.Go(func() { w.post("k", "{}").want(t, 201) })
		<-started
		w.state(InProgress)
		r := w.post("k", "{}").want(t, 409, "Cache-Control", "no-store").problem(t, "request-in-progress")
		if n, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || n < 1 || n > 30 {
			t.Errorf("Retry-After %q; want 1 to 30", r.Header.Get("Retry-After"))
		}
		// The fingerprint is looked at before the state.
		w.post("k", `{"a":1}`).want(t, 422, "X-Should-Retry", "false", "Retry-After", "").problem(t, "idempotency-key-reused")
		close(finish)
		group.Wait()
		w.post("k", "{}").want(t, 201, HeaderLookup, "HIT")
		w.ran(1)
	})
}

func TestInProgressElsewhere(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		fp := fingerprintOf(t, "/pay", "{}")
		c, _, err := (ledger{w.store}).claim(t.Context(), recordID("default", "k"),
			Record{Owner: "other process", Fingerprint: fp, LeaseUntil: time.Now().Add(20 * time.Second), Started: time.Now()}, 30*time.Second, false)
		if err != nil {
			t.Fatal(err)
		}
		r := w.post("k", "{}").want(t, 409).problem(t, "request-in-progress")
		if n, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || n < 1 || n > 20 {
			t.Errorf("Retry-After %q; want at most the lease left", r.Header.Get("Retry-After"))
		}
		if err := (ledger{w.store}).hold(t.Context(), c, "", 30*time.Second); err != nil {
			t.Fatal(err)
		}
		w.post("k", "{}").want(t, 409).problem(t, "request-in-progress")
		w.post("k", "[]").want(t, 422)
		w.ran(0)
	})
}

func fingerprintOf(t *testing.T, path, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	fp, _, err := fingerprint(r, []byte(body), defaultBody)
	if err != nil {
		t.Fatal(err)
	}
	return fp
}

func TestReusedKey(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		w.post("k", `{"n":9007199254740993}`).want(t, 201)
		for name, r := range map[string]reply{
			"another payload":             w.post("k", `{"n":1}`),
			"a number that a float loses": w.post("k", `{"n":9007199254740992}`),
			"another method":              w.call(http.MethodPut, "/pay", "k", `{"n":9007199254740993}`, "Content-Type", "application/json"),
			"another path":                w.call(http.MethodPost, "/pay/2", "k", `{"n":9007199254740993}`, "Content-Type", "application/json"),
			"another query":               w.call(http.MethodPost, "/pay?to=mallory", "k", `{"n":9007199254740993}`, "Content-Type", "application/json"),
			"another media type":          w.call(http.MethodPost, "/pay", "k", `{"n":9007199254740993}`, "Content-Type", "text/plain"),
			"no body":                     w.post("k", ""),
		} {
			if r.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(r.body, "idempotency-key-reused") || r.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: status %d %s; want 422", name, r.StatusCode, r.body)
			}
		}
		w.post("k", `{"n":9007199254740993.0}`).want(t, 201, HeaderLookup, "HIT")
		w.ran(1)
	})
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code   int
		header []string
		state  State
	}{
		{200, nil, Completed},
		{202, []string{"Retry-After", "3"}, Completed},
		{204, nil, Completed},
		{303, []string{"Location", "/x"}, Completed},
		{304, nil, Completed},
		{400, nil, Completed},
		{404, nil, Completed},
		{409, nil, Completed},
		{422, nil, Completed},
		{451, nil, Completed},
		{401, nil, Released},
		{407, nil, Released},
		{408, nil, Released},
		{421, nil, Released},
		{425, nil, Released},
		{429, nil, Released},
		{409, []string{"Retry-After", "1"}, Released},
		{500, nil, Released},
		{501, nil, Released},
		{503, []string{"Retry-After", "1"}, Released},
		{599, nil, Released},
	} {
		t.Run(fmt.Sprintf("%d %v", test.code, test.header), func(t *testing.T) {
			t.Parallel()
			bothForms(t, func(t *testing.T, f form) {
				t.Helper()
				w := newWorld(t, f, status(test.code, test.header...), nil)
				w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				w.post("k", "{}").want(t, test.code, HeaderLookup, "MISS", HeaderAttempt, "1")
				w.state(test.state)
				again := w.post("k", "{}").want(t, test.code, test.header...)
				if test.state == Completed {
					again.want(t, test.code, HeaderLookup, "HIT", HeaderReplayed, "true", HeaderAttempt, "1")
					w.ran(1)
					return
				}
				again.want(t, test.code, HeaderLookup, "MISS", HeaderReplayed, "", HeaderAttempt, "2")
				w.ran(2)
			})
		})
	}
}

func TestReleasedThenCompleted(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		var w *world
		w = newWorld(t, f, func(rw http.ResponseWriter, r *http.Request) {
			if w.runs.Load() < 3 {
				status(500)(rw, r)
				return
			}
			echo(rw, r)
		}, nil)
		w.post("k", "{}").want(t, 500, HeaderAttempt, "1")
		w.post("k", "[]").want(t, 422)
		w.post("k", "{}").want(t, 500, HeaderAttempt, "2")
		if r := w.post("k", "{}").want(t, 201, HeaderAttempt, "3"); r.body != "attempt 3 of {}" {
			t.Fatalf("the backend was told %q", r.body)
		}
		w.post("k", "{}").want(t, 201, HeaderLookup, "HIT", HeaderAttempt, "3")
		w.ran(3)
	})
}

func TestStoreDownBefore(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		w.store.before = func(string, string) error { return goal.ErrUnavailable }
		r := w.post("k", "{}").want(t, 503, "Cache-Control", "no-store").problem(t, "store-unavailable")
		if r.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		w.ran(0)
	})
}

func TestStoreFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, middleware, echo, nil)
	w.store.before = func(op, _ string) error {
		if op == "create" {
			return goal.ErrFull
		}
		return nil
	}
	w.post("k", "{}").want(t, 503).problem(t, "store-unavailable")
	w.ran(0)
}

// The claim was stored but its acknowledgement was lost: it is taken back, so
// that the key is not blocked for a lease, or for ever when held.
func TestClaimOfUnknownFate(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, func(c *Config) { c.OnAmbiguous = Hold })
		var once sync.Once
		w.store.after = func(string, string) (err error) {
			once.Do(func() { err = goal.ErrUnavailable })
			return err
		}
		w.post("k", "{}").want(t, 503)
		w.ran(0)
		eventually(t, "the claim is taken back", func() bool {
			rec := w.store.record()
			return rec != nil && rec.State == Released
		})
		w.post("k", "{}").want(t, 201)
		w.ran(1)
	})
}

func TestStoreDownAfter(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		var (
			mu   sync.Mutex
			down bool
		)
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			down = true
			mu.Unlock()
			echo(w, r)
		}, nil)
		w.store.before = func(string, string) error {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return goal.ErrUnavailable
			}
			return nil
		}
		r := w.post("k", "{}").want(t, 201, HeaderLookup, "MISS", HeaderIdempotency, "unrecorded")
		if r.body != "attempt 1 of {}" {
			t.Fatalf("body %q; want the true answer", r.body)
		}
		w.post("k", "{}").want(t, 409) // this process knows
		mu.Lock()
		down = false
		mu.Unlock()
		eventually(t, "the answer is recorded after all", func() bool {
			rec := w.store.record()
			return rec != nil && rec.State == Completed
		})
		eventually(t, "the flight ends", func() bool { return w.guard.flights.find(recordID("default", "k")) == nil })
		w.post("k", "{}").want(t, 201, HeaderLookup, "HIT")
		w.ran(1)
	})
}

// A renewal or a completion whose acknowledgement was lost is our own.
func TestLostAcknowledgements(t *testing.T) {
	t.Parallel()
	w := newWorld(t, middleware, func(w http.ResponseWriter, r *http.Request) {
		<-time.After(150 * time.Millisecond) // three renewals
		echo(w, r)
	}, func(c *Config) { c.Lease, c.StoreTimeout = 150*time.Millisecond, 40*time.Millisecond })
	n := 0
	w.store.after = func(op, _ string) error { // called under no lock, by one goroutine at a time here
		if n++; op == "update" && n%2 == 0 {
			return goal.ErrUnavailable
		}
		return nil
	}
	r := w.post("k", "{}").want(t, 201)
	if r.Header.Get(HeaderIdempotency) != "" {
		eventually(t, "the answer is recorded", func() bool { return w.guard.flights.find(recordID("default", "k")) == nil })
	}
	w.state(Completed)
	w.ran(1)
}

// The answer is stored before it is sent.
func TestStoredBeforeSent(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		storing, stored := make(chan struct{}), make(chan struct{})
		w := newWorld(t, f, echo, nil)
		w.store.before = func(op, _ string) error {
			if op == "update" {
				close(storing)
				<-stored
			}
			return nil
		}
		answered := make(chan reply)
		go func() {
			r, err := w.send(t.Context(), http.MethodPost, "/pay", "k", "{}")
			if err != nil {
				t.Error(err)
			}
			answered <- r
		}()
		<-storing
		select {
		case <-answered:
			t.Fatal("answered before the answer was stored")
		case <-time.After(50 * time.Millisecond):
		}
		close(stored)
		(<-answered).want(t, 201)
	})
}

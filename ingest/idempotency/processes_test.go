package idempotency

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// Several processes on the real store.
func TestProcessesShareTheStore(t *testing.T) {
	t.Parallel()
	cluster := kvtest.Server(t, kvtest.Options{Listen: true})
	var runs atomic.Int64
	big := strings.Repeat("0123456789", 27_000) // more than one record holds
	backend := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		<-time.After(30 * time.Millisecond) // work, so that the others come meanwhile
		_, _ = io.WriteString(w, big)
	})
	var fronts []*world
	for range 3 {
		calls, err := kv.OpenCalls(t.Context(), cluster.URL())
		if err != nil {
			t.Fatal(err)
		}
		guard, err := New(Config{Store: calls, Log: quiet(), StoreTimeout: 10 * time.Second}) // the machine may be busy
		if err != nil {
			t.Fatal(err)
		}
		front := httptest.NewServer(guard.Wrap(backend))
		t.Cleanup(func() {
			front.Close()
			guard.Close()
			calls.Close()
		})
		fronts = append(fronts, &world{t: t, url: front.URL, client: front.Client()})
	}
	for round := range 3 {
		runs.Store(0)
		key := fmt.Sprint("k", round)
		var group sync.WaitGroup
		for i := range 24 {
			group.Go(func() {
				r, err := fronts[i%len(fronts)].send(t.Context(), http.MethodPost, "/pay", key, "{}", "Prefer", "wait=10")
				if err != nil || r.StatusCode != http.StatusOK || r.body != big {
					t.Errorf("%d bytes of answer, %v; want %d: %.200s", len(r.body), err, len(big), r.body)
				}
			})
		}
		group.Wait()
		if runs.Load() != 1 {
			t.Fatalf("round %d: %d runs; want 1", round, runs.Load())
		}
	}
}

// Without a server nothing runs, and the caller knows within two seconds.
func TestServerGone(t *testing.T) {
	t.Parallel()
	cluster := kvtest.Server(t, kvtest.Options{Listen: true})
	calls, err := kv.OpenCalls(t.Context(), cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	w := newWorld(t, middleware, echo, func(c *Config) { c.Store = calls })
	w.post("before", "{}").want(t, 201)
	cluster.Stop(0)
	began := time.Now()
	w.post("after", "{}").want(t, 503).problem(t, "store-unavailable")
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("503 after %s; want about 2s", took)
	}
	w.ran(1)
}

// Two routes of one server stay two, whatever strips their prefixes.
func TestStrippedPrefix(t *testing.T) {
	t.Parallel()
	guard, err := New(Config{Store: newMemStore(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	mux := http.NewServeMux()
	protected := guard.Wrap(http.HandlerFunc(echo))
	mux.Handle("/a/", http.StripPrefix("/a", protected))
	mux.Handle("/b/", http.StripPrefix("/b", protected))
	front := httptest.NewServer(mux)
	defer front.Close()
	w := &world{t: t, url: front.URL, client: front.Client()}
	w.call(http.MethodPost, "/a/pay", "k", "{}").want(t, 201)
	w.call(http.MethodPost, "/b/pay", "k", "{}").want(t, 422)
}

// A header that no record can hold is not a reason to run the call again.
func TestHugeHeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, middleware, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Huge", strings.Repeat("x", maxMeta+1))
	}, nil)
	w.client.Transport.(*http.Transport).MaxResponseHeaderBytes = 1 << 20 //nolint:forcetypeassert // it is
	w.post("k", "{}").want(t, 200, HeaderIdempotency, "")
	w.post("k", "{}").want(t, 410)
	w.ran(1)
}

// An answer whose parts are gone is not retained; it is never half an answer.
func TestMissingPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, middleware, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 700<<10))
	}, nil)
	w.post("k", "{}").want(t, 200)
	w.store.mu.Lock()
	for key := range w.store.recs {
		if strings.HasSuffix(key, ".1") {
			delete(w.store.recs, key)
		}
	}
	w.store.mu.Unlock()
	w.post("k", "{}").want(t, 410).problem(t, "response-not-retained")
	w.ran(1)
}

func FuzzDecodeRecord(f *testing.F) {
	rec := Record{State: Completed, Fingerprint: "f", Owner: "o", Answer: &Answer{Status: 200, Body: []byte("a\nb"), Size: 3}}
	data, err := rec.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"v":1,"state":"COMPLETED"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := decodeRecord(data)
		if err != nil {
			return
		}
		again, err := rec.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeRecord(again)
		if err != nil || back.State != rec.State || (rec.Answer != nil && !bytes.Equal(back.Answer.Body, rec.Answer.Body)) {
			t.Fatalf("round trip of %q: %+v, %v", data, back, err)
		}
	})
}

func FuzzFingerprint(f *testing.F) {
	f.Add("application/json", "", []byte(`{"a":1}`))
	f.Add("multipart/form-data; boundary=b", "", []byte("--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--b--\r\n"))
	f.Add("text/plain", "gzip", []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, media, coding string, body []byte) {
		sum := func(body []byte) (string, error) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/pay", http.NoBody)
			r.Header["Content-Type"], r.Header["Content-Encoding"] = []string{media}, []string{coding}
			fp, _, err := fingerprint(r, body, 1<<16)
			return fp, err
		}
		one, err1 := sum(body)
		two, err2 := sum(bytes.Clone(body))
		if one != two || (err1 == nil) != (err2 == nil) || (err1 == nil) != (len(one) == 64) {
			t.Fatalf("fingerprints %q %v, %q %v", one, err1, two, err2)
		}
	})
}

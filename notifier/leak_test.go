package notifier_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// safeBuffer is a log that several write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// What a tenant sees of a failed delivery names no address, no query string and
// no secret; the log names no query string and no secret.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := &safeBuffer{}
	reg := prometheus.NewRegistry()
	w.conf = func(c *notifier.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Registerer = reg
	}
	r := w.receiver(t, func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusInternalServerError) })
	w.start(t)
	const query = "?token=TOPSECRET"
	for i, url := range []string{
		r.URL + query, "https://127.0.0.1:1/" + query, "https://10.0.0.1/" + query, "https://user:TOPSECRET@example.com/",
		"https://does-not-exist.invalid/" + query, "https://127.0.0.1.nip.example:1/" + query, "://" + query,
	} {
		hook := w.end(t, "tsk_"+string(rune('a'+i)), url)
		w.await(t, hook.ID, func(goal.Delivery) bool { return true })
		if strings.Contains(url, "example") || strings.Contains(url, "invalid") {
			continue // may be a fault of ours where there is no name server
		}
		d := w.await(t, hook.ID, func(d goal.Delivery) bool { return d.Total == 1 })
		view, err := json.Marshal(d.View())
		if err != nil {
			t.Fatal(err)
		}
		shown := strings.ReplaceAll(string(view), d.View().URL, "")
		for _, bad := range []string{"TOPSECRET", "127.0.0.1", "10.0.0", "dial", "refused:", secret[6:]} {
			if strings.Contains(shown, bad) {
				t.Errorf("%s: the delivery shows %q: %s", url, bad, view)
			}
		}
		if strings.Contains(string(view), "TOPSECRET") {
			t.Errorf("%s: the delivery shows the query: %s", url, view)
		}
	}
	for _, bad := range []string{"TOPSECRET", secret[6:]} {
		if strings.Contains(log.String(), bad) {
			t.Errorf("the log holds %q:\n%s", bad, log)
		}
	}
	if !strings.Contains(log.String(), "webhook attempt failed") {
		t.Errorf("the log does not name failed attempts:\n%s", log)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
		if strings.Contains(f.String(), "127.0.0.1") {
			t.Errorf("a metric names a destination: %s", f)
		}
	}
	for _, name := range []string{"attempts_total", "lateness_seconds", "in_flight", "breakers_open", "attempt_seconds"} {
		if !names["goalkeeper_webhook_"+name] {
			t.Errorf("there is no metric goalkeeper_webhook_%s", name)
		}
	}
}

func TestNewChecksItsSettings(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	good := notifier.Config{Ended: fakeFeed(s.ended), Due: fakeFeed(s.due), Records: s, Timetable: s, Secrets: oneSecret}
	for name, change := range map[string]func(*notifier.Config){
		"no feed":        func(c *notifier.Config) { c.Due = nil },
		"no records":     func(c *notifier.Config) { c.Records = nil },
		"no timetable":   func(c *notifier.Config) { c.Timetable = nil },
		"no secrets":     func(c *notifier.Config) { c.Secrets = nil },
		"negative drain": func(c *notifier.Config) { c.Drain = -time.Second },
	} {
		c := good
		change(&c)
		if _, err := notifier.New(c); err == nil {
			t.Errorf("%s: New = nil, want an error", name)
		}
	}
	reg := prometheus.NewRegistry()
	good.Registerer = reg
	if _, err := notifier.New(good); err != nil {
		t.Errorf("New = %v", err)
	}
	if _, err := notifier.New(good); err == nil {
		t.Error("a second notifier on one registry: New = nil, want an error")
	}
}

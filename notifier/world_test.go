package notifier_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

const tenant = "acme"

// secret is bytes 0 to 31.
const secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=" //nolint:gosec // a test vector

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// world is a store, and a notifier that may call loopback.
type world struct {
	cluster *kvtest.Cluster
	store   *kv.Store
	js      jetstream.JetStream
	roots   *x509.CertPool
	conf    func(*notifier.Config)
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	c := kvtest.Server(tb, kvtest.Options{})
	w := &world{cluster: c, store: c.Store(tb, func(c *kv.Config) { c.Tenants = []string{tenant} }), roots: x509.NewCertPool()}
	js, err := jetstream.New(c.Conn(tb))
	if err != nil {
		tb.Fatal(err)
	}
	w.js = js
	return w
}

func oneSecret(context.Context, string) ([]notifier.Secret, error) {
	return []notifier.Secret{{Key: secret}}, nil
}

// start runs a notifier until the test ends, or stop is called.
func (w *world) start(tb testing.TB) (stop func()) {
	tb.Helper()
	guard, err := notifier.NewGuard("127.0.0.0/8", "::1", "localhost")
	if err != nil {
		tb.Fatal(err)
	}
	conf := notifier.Config{
		Ended: w.store.EndedTasks(), Due: w.store.DueTurns(), Records: w.store, Timetable: w.store,
		Secrets: oneSecret, Guard: guard, RootCAs: w.roots, Log: quiet(),
	}
	if w.conf != nil {
		w.conf(&conf)
	}
	n, err := notifier.New(conf)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// receiver is an https server that the world trusts.
func (w *world) receiver(tb testing.TB, h http.HandlerFunc) *httptest.Server {
	tb.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(quiet().Handler(), slog.LevelError)
	s.StartTLS()
	tb.Cleanup(s.Close)
	w.roots.AddCert(s.Certificate())
	return s
}

// end publishes the terminal batch of a task, as a worker does.
func (w *world) end(tb testing.TB, task, url string) goal.Webhook {
	tb.Helper()
	hook := goal.Webhook{
		ID: goal.WebhookID(tenant, task), URL: url, Tenant: tenant, TaskID: task,
		Body: `{"type":"goal.target_reached","timestamp":"2026-11-30T20:00:00Z","data":{"id":"` + task + `","intent":"héllo   😀 <b>&"}}`,
	}
	w.publish(tb, hook)
	return hook
}

func (w *world) publish(tb testing.TB, hook goal.Webhook) {
	tb.Helper()
	data, err := goal.Marshal(goal.Batch{Version: goal.BatchVersion, Events: []goal.Event{}, Webhook: &hook})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.js.Publish(tb.Context(), goal.EndSubject(tenant, hook.TaskID), data); err != nil {
		tb.Fatal(err)
	}
}

// await polls the record of a delivery until ok says so.
func (w *world) await(tb testing.TB, id string, ok func(goal.Delivery) bool) goal.Delivery {
	tb.Helper()
	var d goal.Delivery
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		d, _, err = w.store.Delivery(tb.Context(), tenant, id)
		if err == nil && ok(d) {
			return d
		}
	}
	tb.Fatalf("delivery %s is not as awaited: %+v", id, d)
	return d
}

func inState(s goal.DeliveryState) func(goal.Delivery) bool {
	return func(d goal.Delivery) bool { return d.State == s }
}

package notifier_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// request is what a receiver saw.
type request struct {
	header http.Header
	body   []byte
	uri    string
	host   string
}

// recorder answers with status and passes on what it saw.
func recorder(status int, seen chan<- request) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- request{header: r.Header.Clone(), body: body, uri: r.RequestURI, host: r.Host}
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, "thanks")
	}
}

func TestDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 10)
	r := w.receiver(t, recorder(200, seen))
	w.start(t)
	hook := w.end(t, "tsk_1", r.URL+"/a%2Fb/?q=1&q=%20")
	got := <-seen
	if string(got.body) != hook.Body {
		t.Errorf("body = %q, want the frozen bytes %q", got.body, hook.Body)
	}
	if got.uri != "/a%2Fb/?q=1&q=%20" {
		t.Errorf("request target = %q, want it as given", got.uri)
	}
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(got.body, got.header); err != nil {
		t.Errorf("the reference library does not verify: %v", err)
	}
	for name, want := range map[string]string{
		"Webhook-Id": hook.ID, "Idempotency-Key": hook.ID, "Goalkeeper-Attempt": "1", "Content-Type": "application/json",
	} {
		if h := got.header.Get(name); h != want {
			t.Errorf("%s = %q, want %q", name, h, want)
		}
	}
	d := w.await(t, hook.ID, inState(goal.DeliveryDelivered))
	if len(d.Attempts) != 1 || d.Attempts[0].Status != 200 || d.Attempts[0].Answer != "thanks" || d.Attempts[0].Trigger != goal.TriggerEvent {
		t.Errorf("attempts = %+v, want one with 200", d.Attempts)
	}
}

func TestRetriedAfterFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 10)
	answers := make(chan int, 2)
	answers <- 500
	answers <- 204
	r := w.receiver(t, func(rw http.ResponseWriter, r *http.Request) { recorder(<-answers, seen)(rw, r) })
	w.start(t)
	hook := w.end(t, "tsk_1", r.URL)
	first := <-seen
	d := w.await(t, hook.ID, func(d goal.Delivery) bool { return len(d.Attempts) == 1 })
	if wait := d.Next.Sub(d.Attempts[0].At); d.State != goal.DeliveryPending || wait < 4*time.Second || wait > 7*time.Second {
		t.Errorf("state %s, next attempt after %s, want pending and 5 s ±20 %%", d.State, wait)
	}
	second := <-seen
	if now := time.Now(); now.Before(d.Next) {
		t.Errorf("second attempt %s early", d.Next.Sub(now))
	}
	if first.header.Get("Webhook-Id") != second.header.Get("Webhook-Id") || string(first.body) != string(second.body) {
		t.Error("the retry has another id or body")
	}
	if first.header.Get("Webhook-Timestamp") == second.header.Get("Webhook-Timestamp") ||
		first.header.Get("Webhook-Signature") == second.header.Get("Webhook-Signature") {
		t.Error("the retry has the timestamp or the signature of the first attempt")
	}
	if got := second.header.Get("Goalkeeper-Attempt"); got != "2" {
		t.Errorf("Goalkeeper-Attempt = %q, want 2", got)
	}
	w.await(t, hook.ID, inState(goal.DeliveryDelivered))
}

func TestGoneIsFinalUntilSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 10)
	answers := make(chan int, 2)
	answers <- 410
	answers <- 200
	r := w.receiver(t, func(rw http.ResponseWriter, r *http.Request) { recorder(<-answers, seen)(rw, r) })
	w.start(t)
	hook := w.end(t, "tsk_1", r.URL)
	w.await(t, hook.ID, inState(goal.DeliveryGone))
	dead, next, err := w.store.DeadDeliveries(t.Context(), tenant, 0)
	if err != nil || len(dead) != 1 || next != 0 || dead[0].Webhook.ID != hook.ID {
		t.Fatalf("DeadDeliveries = %+v, %d, %v, want the one", dead, next, err)
	}
	if err := w.store.Redeliver(t.Context(), tenant, hook.ID); err != nil {
		t.Fatal(err)
	}
	d := w.await(t, hook.ID, inState(goal.DeliveryDelivered))
	if len(d.Attempts) != 2 || d.Attempts[1].Trigger != goal.TriggerManual {
		t.Errorf("attempts = %+v, want a second one by request", d.Attempts)
	}
	if a, b := <-seen, <-seen; a.header.Get("Webhook-Id") != b.header.Get("Webhook-Id") || string(a.body) != string(b.body) {
		t.Error("sent again with another id or body")
	}
	if dead, _, err = w.store.DeadDeliveries(t.Context(), tenant, 0); err != nil || len(dead) != 0 {
		t.Errorf("DeadDeliveries = %+v, %v, want none", dead, err)
	}
	if err := w.store.Redeliver(t.Context(), tenant, "msg_none"); !errors.Is(err, goal.ErrNotFound) {
		t.Errorf("Redeliver of an unknown id = %v, want ErrNotFound", err)
	}
}

func TestAllThatFailedSinceIsSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 20)
	var up atomic.Bool
	r := w.receiver(t, func(rw http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			rw.WriteHeader(http.StatusGone)
			return
		}
		recorder(200, seen)(rw, r)
	})
	w.start(t)
	old := w.end(t, "tsk_old", r.URL)
	w.await(t, old.ID, inState(goal.DeliveryGone))
	since := time.Now()
	want := map[string]bool{}
	for _, task := range []string{"tsk_1", "tsk_2", "tsk_3"} {
		hook := w.end(t, task, r.URL)
		want[hook.ID] = true
		w.await(t, hook.ID, inState(goal.DeliveryGone))
	}
	up.Store(true)
	n, err := w.store.RedeliverSince(t.Context(), tenant, since)
	if n != 3 || err != nil {
		t.Fatalf("RedeliverSince = %d, %v, want 3", n, err)
	}
	for range 3 {
		id := (<-seen).header.Get("Webhook-Id")
		if !want[id] {
			t.Errorf("sent again: %s, which was not asked for", id)
		}
		d := w.await(t, id, inState(goal.DeliveryDelivered))
		if a := d.Attempts[len(d.Attempts)-1]; a.Trigger != goal.TriggerBulk {
			t.Errorf("trigger = %s, want bulk", a.Trigger)
		}
		delete(want, id)
	}
	w.await(t, old.ID, inState(goal.DeliveryGone))
}

func TestTestEventIsSentOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 10)
	r := w.receiver(t, recorder(500, seen))
	w.start(t)
	id, err := w.store.SendTest(t.Context(), tenant, r.URL)
	if err != nil {
		t.Fatal(err)
	}
	got := <-seen
	var body struct{ Type string }
	if err := json.Unmarshal(got.body, &body); err != nil || body.Type != goal.HookTest {
		t.Errorf("body = %s (%v), want a webhook.test event", got.body, err)
	}
	d := w.await(t, id, inState(goal.DeliveryExhausted))
	if len(d.Attempts) != 1 || d.Attempts[0].Trigger != goal.TriggerTest {
		t.Errorf("attempts = %+v, want one", d.Attempts)
	}
	if dead, _, err := w.store.DeadDeliveries(t.Context(), tenant, 0); err != nil || len(dead) != 0 {
		t.Errorf("DeadDeliveries = %+v, %v, want none: a test is not listed", dead, err)
	}
}

// A task's id is used again when its goal's retention has ended: that is
// another task, with another body.
func TestReusedTaskIDIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan request, 10)
	r := w.receiver(t, recorder(200, seen))
	w.start(t)
	hook := w.end(t, "tsk_1", r.URL)
	<-seen
	w.await(t, hook.ID, inState(goal.DeliveryDelivered))
	w.publish(t, hook) // the same end once more: nothing
	second := hook
	second.Body = `{"another":"task"}`
	w.publish(t, second)
	if got := <-seen; string(got.body) != second.Body {
		t.Errorf("body = %s, want the second task's", got.body)
	}
	w.await(t, hook.ID, func(d goal.Delivery) bool {
		return d.Webhook == second && d.State == goal.DeliveryDelivered && d.Total == 1
	})
}

func TestRefusedURLIsNeverSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.conf = func(c *notifier.Config) { c.Guard = nil }
	r := w.receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a refused destination was called") })
	w.start(t)
	for i, url := range []string{r.URL, "http://example.com/", "https://u:p@example.com/", "https://169.254.169.254/latest/meta-data"} {
		hook := w.end(t, "tsk_"+strconv.Itoa(i), url)
		d := w.await(t, hook.ID, inState(goal.DeliveryRefused))
		if len(d.Attempts) != 1 || d.Attempts[0].Error != notifier.ClassRefused || d.Attempts[0].Status != 0 {
			t.Errorf("%s: attempts = %+v, want one that was refused", url, d.Attempts)
		}
	}
}

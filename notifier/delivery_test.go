package notifier_test

import (
	"io"
	"net/http"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
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

package notifier_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// The whole schedule on the real store: every retry is a message schedule that
// lies in the server for hours, and none fires early.
func TestScheduleOnTheStore(t *testing.T) {
	// Not parallel: servers in bubbles run one after the other, see package kvtest.
	kvtest.Heavy(t) // the server's timers run through 80 hours
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n, err := notifier.New(notifier.Config{
			Ended: w.store.EndedTasks(), Due: w.store.DueTurns(), Records: w.store, Timetable: w.store, Secrets: oneSecret, Log: quiet(),
			Transport: roundTrip(func(*http.Request) (*http.Response, error) { return respond(500), nil }),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		sent := w.end(t, "tsk_1", hook)
		time.Sleep(95 * time.Hour)
		synctest.Wait()
		d, _, err := w.store.Delivery(t.Context(), tenant, sent.ID)
		if err != nil {
			t.Fatal(err)
		}
		if d.State != goal.DeliveryExhausted || len(d.Attempts) != len(waits) {
			t.Fatalf("%s after %d attempts, want exhausted after %d", d.State, len(d.Attempts), len(waits))
		}
		for i := 1; i < len(waits); i++ {
			wait := d.Attempts[i].At.Sub(d.Attempts[i-1].At)
			if wait < waits[i]*8/10 || wait > waits[i]*12/10+2*time.Second {
				t.Errorf("attempt %d came after %s, want %s ±20 %%", i+1, wait, waits[i])
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

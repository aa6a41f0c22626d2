package notifier_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

const hook = "https://example.com/hook"

var waits = []time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

func TestScheduleUntilExhausted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer roundTrip
		class  string
		spends time.Duration // of every attempt
	}{
		{"500", func(*http.Request) (*http.Response, error) { return respond(500), nil }, notifier.Class5xx, 0},
		{"404", func(*http.Request) (*http.Response, error) { return respond(404), nil }, notifier.Class4xx, 0},
		{"302", func(*http.Request) (*http.Response, error) {
			return respond(302, "Location", "https://127.0.0.1/"), nil
		}, notifier.ClassRedirect, 0},
		{"304", func(*http.Request) (*http.Response, error) { return respond(304), nil }, notifier.ClassRedirect, 0},
		{"600", func(*http.Request) (*http.Response, error) { return respond(600), nil }, notifier.Class5xx, 0},
		{"never answers", hang, notifier.ClassTimeout, 20 * time.Second},
		{"no such host", func(*http.Request) (*http.Response, error) { return nil, &net.DNSError{IsNotFound: true} }, notifier.ClassDNS, 0},
		{"connection refused", func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}, notifier.ClassConnect, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, tt.answer, nil, func(s *fakeStore, _ func()) {
				s.end("msg_1", hook)
				time.Sleep(120 * time.Hour)
				synctest.Wait()
				d := s.get("msg_1")
				if d.State != goal.DeliveryExhausted || len(d.Attempts) != len(waits) {
					t.Fatalf("state %s after %d attempts, want exhausted after %d", d.State, len(d.Attempts), len(waits))
				}
				last := d.Created
				for i, a := range d.Attempts {
					wait := a.At.Sub(last)
					if lo, hi := waits[i]*8/10, waits[i]*12/10; wait < lo || wait > hi {
						t.Errorf("attempt %d came after %s, want %s ±20 %%", i+1, wait, waits[i])
					}
					if a.Error != tt.class || a.N != i+1 || time.Duration(a.Took) != tt.spends {
						t.Errorf("attempt %d = %+v, want class %s and %s", i+1, a, tt.class, tt.spends)
					}
					last = a.At.Add(time.Duration(a.Took))
				}
			})
		})
	}
}

func TestJitterSpreads(t *testing.T) {
	t.Parallel()
	inBubble(t, func(*http.Request) (*http.Response, error) { return respond(500), nil }, nil, func(s *fakeStore, _ func()) {
		seen := map[time.Duration]bool{}
		for i := range 20 {
			id := "msg_" + string(rune('a'+i))
			s.end(id, hook)
			synctest.Wait()
			d := s.get(id)
			seen[d.Next.Sub(d.Created)] = true
		}
		if len(seen) < 15 {
			t.Errorf("20 deliveries come back at %d different times", len(seen))
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const schedule = 6 * time.Second // the longest that the schedule asks for
	for _, tt := range []struct {
		name, value string
		status      int
		least, most time.Duration
	}{
		{"seconds", "120", 503, 2 * time.Minute, 2 * time.Minute},
		{"on 429", "120", 429, 2 * time.Minute, 2 * time.Minute},
		{"on another failure", "120", 404, 2 * time.Minute, 2 * time.Minute},
		{"on a redirect", "120", 301, 2 * time.Minute, 2 * time.Minute},
		{"shorter than the schedule", "1", 500, 4 * time.Second, schedule},
		{"white space", "  120 ", 500, 2 * time.Minute, 2 * time.Minute},
		{"leading zeros", "0000000000120", 500, 2 * time.Minute, 2 * time.Minute},
		{"a day", "86400", 500, 24 * time.Hour, 24 * time.Hour},
		{"more than a day", "86401", 500, 24 * time.Hour, 24 * time.Hour},
		{"overflow of 32 bits", "9999999999", 500, 24 * time.Hour, 24 * time.Hour},
		{"overflow of 64 bits", "99999999999999999999999999", 500, 24 * time.Hour, 24 * time.Hour},
		{"overflow as nanoseconds", "9223372037", 500, 24 * time.Hour, 24 * time.Hour},
		{"zero", "0", 500, 4 * time.Second, schedule},
		{"negative", "-5", 500, 4 * time.Second, schedule},
		{"fraction", "1.5", 500, 4 * time.Second, schedule},
		{"words", "soon", 500, 4 * time.Second, schedule},
		{"plus", "+120", 500, 4 * time.Second, schedule},
		// A bubble's clock starts at midnight UTC 2000-01-01.
		{"date, IMF-fixdate", "Sat, 01 Jan 2000 00:02:00 GMT", 503, 2 * time.Minute, 2 * time.Minute},
		{"date, RFC 850", "Saturday, 01-Jan-00 00:02:00 GMT", 503, 2 * time.Minute, 2 * time.Minute},
		{"date, asctime", "Sat Jan  1 00:02:00 2000", 503, 2 * time.Minute, 2 * time.Minute},
		{"date in the past", "Fri, 31 Dec 1999 23:59:59 GMT", 503, 4 * time.Second, schedule},
		{"date far away", "Fri, 31 Dec 2999 23:59:59 GMT", 503, 24 * time.Hour, 24 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer := func(*http.Request) (*http.Response, error) { return respond(tt.status, "Retry-After", tt.value), nil }
			inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
				s.end("msg_1", hook)
				synctest.Wait()
				d := s.get("msg_1")
				if wait := d.Next.Sub(d.Created); wait < tt.least || wait > tt.most {
					t.Errorf("next attempt after %s, want %s to %s", wait, tt.least, tt.most)
				}
				time.Sleep(25 * time.Hour)
				synctest.Wait()
				if d := s.get("msg_1"); len(d.Attempts) < 2 || d.Attempts[1].At.Sub(d.Created) < tt.least {
					t.Errorf("attempts = %+v, want a second one not before %s", d.Attempts, tt.least)
				}
			})
		})
	}
}

// Retry-After of an overloaded receiver holds for the whole destination.
func TestRetryAfterHoldsTheDestination(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	answer := func(*http.Request) (*http.Response, error) {
		if calls.Add(1) == 1 {
			return respond(429, "Retry-After", "60"), nil
		}
		return respond(200), nil
	}
	inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
		s.end("msg_1", hook)
		synctest.Wait()
		s.end("msg_2", hook)
		s.end("msg_other", "https://other.example/")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if s.get("msg_2").Total != 0 || s.get("msg_other").State != goal.DeliveryDelivered {
			t.Errorf("within the minute: %+v and %+v, want no attempt and delivered", s.get("msg_2"), s.get("msg_other"))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s.get("msg_1").State != goal.DeliveryDelivered || s.get("msg_2").State != goal.DeliveryDelivered {
			t.Errorf("after the minute: %+v and %+v, want delivered", s.get("msg_1"), s.get("msg_2"))
		}
	})
}

// What we cannot do spends no attempt, however long it lasts.
func TestOwnFaultsSpendNoAttempt(t *testing.T) {
	t.Parallel()
	errs := map[string]error{
		"name server fails":   &net.DNSError{Err: "server misbehaving", IsTemporary: true},
		"name server silent":  &net.DNSError{Err: "i/o timeout", IsTimeout: true},
		"no file descriptors": &net.OpError{Op: "dial", Err: syscall.EMFILE},
		"no ports":            &net.OpError{Op: "dial", Err: syscall.EADDRNOTAVAIL},
	}
	for name, fault := range errs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var up atomic.Bool
			answer := func(*http.Request) (*http.Response, error) {
				if up.Load() {
					return respond(200), nil
				}
				return nil, fault
			}
			inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
				s.end("msg_1", hook)
				time.Sleep(48 * time.Hour)
				synctest.Wait()
				if d := s.get("msg_1"); d.Total != 0 || d.State != goal.DeliveryPending {
					t.Fatalf("after two days: %+v, want pending without an attempt", d)
				}
				up.Store(true)
				time.Sleep(7 * time.Minute)
				synctest.Wait()
				if d := s.get("msg_1"); d.Total != 1 || d.State != goal.DeliveryDelivered || d.Attempts[0].Trigger != goal.TriggerEvent {
					t.Errorf("afterwards: %+v, want delivered with the first attempt", d)
				}
			})
		})
	}
	t.Run("no secret", func(t *testing.T) {
		t.Parallel()
		var up atomic.Bool
		secrets := func(ctx context.Context, tenant string) ([]notifier.Secret, error) {
			if up.Load() {
				return oneSecret(ctx, tenant)
			}
			return nil, errors.New("vault is sealed")
		}
		answer := func(*http.Request) (*http.Response, error) { return respond(200), nil }
		inBubble(t, answer, func(c *notifier.Config) { c.Secrets = secrets }, func(s *fakeStore, _ func()) {
			s.end("msg_1", hook)
			time.Sleep(time.Hour)
			if d := s.get("msg_1"); d.Total != 0 {
				t.Errorf("attempts without a secret: %+v", d.Attempts)
			}
			up.Store(true)
			time.Sleep(7 * time.Minute)
			synctest.Wait()
			if d := s.get("msg_1"); d.State != goal.DeliveryDelivered {
				t.Errorf("afterwards: %+v, want delivered", d)
			}
		})
	})
}

// A secret that is rotated between two attempts signs the second.
func TestSecretIsLookedUpAtEachAttempt(t *testing.T) {
	t.Parallel()
	var key atomic.Pointer[string]
	set := func(s string) { key.Store(&s) }
	set(secret)
	secrets := func(ctx context.Context, _ string) ([]notifier.Secret, error) {
		return []notifier.Secret{{Key: *key.Load()}}, ctx.Err()
	}
	var verified []error
	answer := func(r *http.Request) (*http.Response, error) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		verified = append(verified, notifier.Verify(*key.Load(), r.Header, body, time.Now(), 0))
		return respond(500), nil
	}
	inBubble(t, answer, func(c *notifier.Config) { c.Secrets = secrets }, func(s *fakeStore, _ func()) {
		s.end("msg_1", hook)
		synctest.Wait()
		set(secret2)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if len(verified) != 2 || verified[0] != nil || verified[1] != nil {
			t.Errorf("verified: %v, want both attempts with the secret of their time", verified)
		}
	})
}

func TestSentAgainByRequest(t *testing.T) {
	t.Parallel()
	status := 500
	answer := func(*http.Request) (*http.Response, error) { return respond(status), nil }
	inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
		s.end("msg_1", hook)
		synctest.Wait()
		before := s.get("msg_1")
		s.again("msg_1")
		synctest.Wait()
		d := s.get("msg_1")
		if d.Total != 2 || d.Spent != 1 || !d.Next.Equal(before.Next) || d.State != goal.DeliveryPending {
			t.Errorf("sent again while pending: %+v, want one attempt more and the same schedule", d)
		}
		time.Sleep(120 * time.Hour)
		synctest.Wait()
		if d = s.get("msg_1"); d.State != goal.DeliveryExhausted || d.Spent != len(waits) || d.Total != len(waits)+1 {
			t.Errorf("after the schedule: %s, %d of the schedule, %d in all", d.State, d.Spent, d.Total)
		}
		s.again("msg_1")
		time.Sleep(time.Hour)
		if d = s.get("msg_1"); d.State != goal.DeliveryExhausted || d.Total != len(waits)+2 {
			t.Errorf("sent again and failed: %s after %d, want exhausted and no schedule", d.State, d.Total)
		}
		status = 200
		s.again("msg_1")
		time.Sleep(time.Second)
		if d = s.get("msg_1"); d.State != goal.DeliveryDelivered {
			t.Errorf("sent again and taken: %s", d.State)
		}
		status = 410
		s.again("msg_1")
		time.Sleep(time.Second)
		if d = s.get("msg_1"); d.State != goal.DeliveryDelivered || d.Total != len(waits)+4 {
			t.Errorf("sent again after it was delivered: %s after %d, want delivered", d.State, d.Total)
		}
	})
}

// A store that fails after an attempt makes the turn come again, not vanish.
func TestStoreFailsAfterTheAttempt(t *testing.T) {
	t.Parallel()
	var s *fakeStore
	calls := 0
	answer := func(*http.Request) (*http.Response, error) {
		if calls++; calls == 1 {
			s.fail(errNoStore)
		}
		return respond(200), nil
	}
	inBubble(t, answer, nil, func(store *fakeStore, _ func()) {
		s = store
		s.end("msg_1", hook)
		time.Sleep(time.Second)
		if s.ackedTurns() != 0 {
			t.Error("the turn was acknowledged before its outcome was stored")
		}
		s.fail(nil)
		time.Sleep(time.Minute)
		if d := s.get("msg_1"); d.State != goal.DeliveryDelivered || calls != 2 || s.ackedTurns() != 1 {
			t.Errorf("afterwards: %s after %d calls, want delivered after 2", d.State, calls)
		}
	})
}

// A turn that is given twice is worked off once.
func TestTurnGivenTwice(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	answer := func(*http.Request) (*http.Response, error) {
		calls.Add(1)
		time.Sleep(time.Second)
		return respond(200), nil
	}
	inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
		s.end("msg_1", hook)
		s.end("msg_1", hook)
		time.Sleep(3 * time.Second)
		if calls.Load() != 1 || s.ackedTurns() != 2 {
			t.Errorf("%d calls, %d turns acknowledged, want 1 and 2", calls.Load(), s.ackedTurns())
		}
	})
}

func TestBodyThatStallsIsSuccess(t *testing.T) {
	t.Parallel()
	answer := func(r *http.Request) (*http.Response, error) {
		res := respond(200)
		res.Body = stall{r.Context()}
		return res, nil
	}
	inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
		s.end("msg_1", hook)
		time.Sleep(3 * time.Second)
		d := s.get("msg_1")
		if d.State != goal.DeliveryDelivered || time.Duration(d.Attempts[0].Took) != 2*time.Second {
			t.Errorf("%+v, want delivered after 2 s of body", d)
		}
	})
}

type stall struct{ ctx context.Context }

func (s stall) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, s.ctx.Err() }
func (s stall) Close() error             { return nil }

// Attempts in flight finish, what waits is given back, nothing is acknowledged
// that was not done.
func TestStop(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	answer := func(*http.Request) (*http.Response, error) {
		calls.Add(1)
		time.Sleep(10 * time.Second)
		return respond(200), nil
	}
	inBubble(t, answer, nil, func(s *fakeStore, stop func()) {
		for i := range 30 {
			s.end("msg_"+string(rune('a'+i)), hook)
		}
		time.Sleep(time.Second)
		start := time.Now()
		stop()
		if took := time.Since(start); took != 9*time.Second {
			t.Errorf("stopping took %s, want the 9 s that the attempts needed", took)
		}
		if int(calls.Load()) != s.ackedTurns() || calls.Load() == 0 || len(s.ended) != 30-int(calls.Load()) {
			t.Errorf("%d attempts, %d acknowledged, %d given back", calls.Load(), s.ackedTurns(), len(s.ended))
		}
	})
	inBubble(t, hang, func(c *notifier.Config) { c.Drain = 3 * time.Second }, func(s *fakeStore, stop func()) {
		s.end("msg_1", hook)
		time.Sleep(time.Second)
		start := time.Now()
		stop()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("stopping took %s, want 3 s", took)
		}
		if d := s.get("msg_1"); d.Total != 0 || s.ackedTurns() != 0 || len(s.ended) != 1 {
			t.Errorf("%+v: a shutdown spent an attempt", d)
		}
	})
}

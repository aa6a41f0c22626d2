package notifier_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// load counts what is in flight, in all and by host.
type load struct {
	mu   sync.Mutex
	now  map[string]int
	most map[string]int
}

func newLoad() *load { return &load{now: map[string]int{}, most: map[string]int{}} }

func (l *load) around(f roundTrip) roundTrip {
	add := func(host string, n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range []string{host, "all"} {
			l.now[k] += n
			l.most[k] = max(l.most[k], l.now[k])
		}
	}
	return func(r *http.Request) (*http.Response, error) {
		add(r.URL.Host, 1)
		defer add(r.URL.Host, -1)
		return f(r)
	}
}

func (l *load) peak(host string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most[host]
}

func (l *load) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.most)
}

// A dead, a hanging and a slow destination delay nobody, however many
// deliveries they have.
func TestDestinationsAreIsolated(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hanging", "dead", "slow"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			answer := func(r *http.Request) (*http.Response, error) {
				switch {
				case !strings.HasPrefix(r.URL.Host, "bad"):
					time.Sleep(10 * time.Millisecond)
					return respond(200), nil
				case kind == "hanging":
					return hang(r)
				case kind == "slow":
					time.Sleep(15 * time.Second)
					return respond(200), nil
				}
				return respond(503), nil
			}
			l := newLoad()
			inBubble(t, l.around(answer), nil, func(s *fakeStore, _ func()) {
				const seconds, perSecond = 60, 20
				for i := range seconds * perSecond {
					// A third goes to 40 bad destinations.
					host := fmt.Sprintf("good%d.example", i%7)
					if i%3 == 0 {
						host = fmt.Sprintf("bad%d.example", i%40)
					}
					s.end(fmt.Sprintf("msg_%d", i), "https://"+host+"/")
					time.Sleep(time.Second / perSecond)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				for i := range seconds * perSecond {
					d := s.get(fmt.Sprintf("msg_%d", i))
					if strings.Contains(d.Webhook.URL, "bad") {
						continue
					}
					if d.State != goal.DeliveryDelivered || d.Attempts[0].At.Sub(d.Created) > 20*time.Millisecond {
						t.Fatalf("%s to a healthy receiver: %s, attempts %+v, created %s", d.Webhook.ID, d.State, d.Attempts, d.Created)
					}
				}
				if n := l.peak("bad1.example"); n > 8 {
					t.Errorf("%d in flight to one destination", n)
				}
			})
		})
	}
}

// Even when hanging destinations could fill every slot, receivers in good
// health find one.
func TestHangingDestinationsCannotFillAllSlots(t *testing.T) {
	t.Parallel()
	answer := func(r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(r.URL.Host, "bad") {
			return hang(r)
		}
		return respond(200), nil
	}
	l := newLoad()
	inBubble(t, l.around(answer), nil, func(s *fakeStore, _ func()) {
		s.end("msg_first", "https://good.example/")
		synctest.Wait()
		for i := range 6000 {
			s.end(fmt.Sprintf("msg_%d", i), fmt.Sprintf("https://bad%d.example/", i%500))
		}
		time.Sleep(time.Second)
		s.end("msg_good", "https://good.example/")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if d := s.get("msg_good"); d.State != goal.DeliveryDelivered {
			t.Errorf("with 500 hanging destinations: %+v, want delivered at once", d)
		}
		if n := l.peak("all"); n > 256 || n < 100 {
			t.Errorf("%d in flight in all, want many and at most 256", n)
		}
	})
}

// At most 8 per destination and 256 in all, and every delivery of a burst is
// made.
func TestLimitsInFlight(t *testing.T) {
	t.Parallel()
	l := newLoad()
	answer := func(*http.Request) (*http.Response, error) {
		time.Sleep(100 * time.Millisecond)
		return respond(200), nil
	}
	inBubble(t, l.around(answer), nil, func(s *fakeStore, _ func()) {
		const n = 3000
		for i := range n {
			s.end(fmt.Sprintf("msg_%d", i), fmt.Sprintf("https://r%d.example/", i%60))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for i := range n {
			if d := s.get(fmt.Sprintf("msg_%d", i)); d.State != goal.DeliveryDelivered || d.Total != 1 {
				t.Fatalf("delivery %d: %s after %d attempts", i, d.State, d.Total)
			}
		}
		if one, all := l.peak("r1.example"), l.peak("all"); one != 8 || all != 256 {
			t.Errorf("in flight: %d to one, %d in all, want 8 and 256", one, all)
		}
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	up := false
	var mu sync.Mutex
	calls := 0
	answer := func(*http.Request) (*http.Response, error) {
		mu.Lock()
		calls++
		ok := up
		mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		if ok {
			return respond(200), nil
		}
		return respond(502), nil
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return calls }
	l := newLoad()
	inBubble(t, l.around(answer), nil, func(s *fakeStore, _ func()) {
		const n = 100
		for i := range n {
			s.end(fmt.Sprintf("msg_%d", i), hook)
		}
		time.Sleep(15 * time.Second)
		opened := count()
		if opened > 10 {
			t.Errorf("%d calls to a dead destination in 15 s, want the breaker to stop them", opened)
		}
		time.Sleep(50 * time.Minute) // 30 s, 1, 2, 4, 8, 15, 15 … min, ±20 %
		if n := count() - opened; n < 4 || n > 10 {
			t.Errorf("%d calls in 50 minutes, want one probe each time", n)
		}
		mu.Lock()
		up = true
		mu.Unlock()
		l.reset()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		for i := range n {
			if d := s.get(fmt.Sprintf("msg_%d", i)); d.State != goal.DeliveryDelivered && d.Spent < 2 {
				t.Fatalf("delivery %d after the recovery: %+v", i, d)
			}
		}
		if count()-opened < n-10 {
			t.Errorf("%d calls, want the deliveries to be worked off", count())
		}
	})
}

// An answer that only concerns the request is no outage.
func TestBreakerIgnoresAnswers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 422, 500, 301} {
		calls := 0
		inBubble(t, func(*http.Request) (*http.Response, error) { calls++; return respond(status), nil }, nil, func(s *fakeStore, _ func()) {
			for i := range 50 {
				s.end(fmt.Sprintf("msg_%d", i), hook)
				synctest.Wait()
			}
			if calls != 50 {
				t.Errorf("%d: %d calls, want 50", status, calls)
			}
		})
	}
}

// A delivery that its breaker never lets pass ends with its lifetime, not never.
func TestBreakerDoesNotKeepADeliveryForEver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(*http.Request) (*http.Response, error) { return nil, errReset }, nil, func(s *fakeStore, _ func()) {
		for i := range 30 {
			s.end(fmt.Sprintf("msg_%d", i), hook)
		}
		time.Sleep(10 * 24 * time.Hour)
		synctest.Wait()
		pending := 0
		for i := range 30 {
			if d := s.get(fmt.Sprintf("msg_%d", i)); d.State == goal.DeliveryPending {
				pending++
			}
		}
		if pending > 0 {
			t.Errorf("%d deliveries are pending after ten days", pending)
		}
	})
}

// One tenant's failing receiver does not close the same receiver for another.
func TestBreakerIsPerTenant(t *testing.T) {
	t.Parallel()
	answer := func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/bad" {
			return respond(503), nil
		}
		return respond(200), nil
	}
	inBubble(t, answer, nil, func(s *fakeStore, _ func()) {
		for i := range 10 {
			s.end(fmt.Sprintf("msg_%d", i), "https://example.com/bad")
			synctest.Wait()
		}
		other := goal.Webhook{ID: "msg_other", URL: "https://example.com/good", Tenant: "umbrella", TaskID: "tsk_o", Body: "{}"}
		s.offer(s.ended, goal.Due{Turn: goal.Turn{Tenant: "umbrella", ID: "msg_other", At: time.Now()}, Webhook: &other})
		synctest.Wait()
		if d := s.get("msg_other"); d.State != goal.DeliveryDelivered {
			t.Errorf("the other tenant's delivery: %+v", d)
		}
	})
}

// What the breaker holds back can be sent by request all the same.
func TestRequestPassesTheBreaker(t *testing.T) {
	t.Parallel()
	status := 503
	inBubble(t, func(*http.Request) (*http.Response, error) { return respond(status), nil }, nil, func(s *fakeStore, _ func()) {
		for i := range 10 {
			s.end(fmt.Sprintf("msg_%d", i), hook)
			synctest.Wait()
		}
		if d := s.get("msg_9"); d.Total != 0 {
			t.Fatalf("the breaker is not open: %+v", d)
		}
		status = 200
		s.again("msg_9")
		synctest.Wait()
		if d := s.get("msg_9"); d.State != goal.DeliveryDelivered || d.Attempts[0].Trigger != goal.TriggerManual {
			t.Errorf("sent by request: %+v, want delivered", d)
		}
	})
}

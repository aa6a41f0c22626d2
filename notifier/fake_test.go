package notifier_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// fakeStore is the notifier's store in memory, for tests in virtual time. It
// gives a turn again when it was neither acknowledged nor extended.
type fakeStore struct {
	mu      sync.Mutex
	records map[string]goal.Delivery
	revs    map[string]uint64
	timers  map[string]*time.Timer // the schedule, by delivery and kind
	ended   chan goal.Due
	due     chan goal.Due
	acked   int
	failing error // what every write returns
}

const fakeAckWait = 45 * time.Second

func newFakeStore() *fakeStore {
	return &fakeStore{
		records: map[string]goal.Delivery{}, revs: map[string]uint64{}, timers: map[string]*time.Timer{},
		ended: make(chan goal.Due, 100_000), due: make(chan goal.Due, 100_000),
	}
}

type fakeFeed chan goal.Due

func (f fakeFeed) Next(ctx context.Context) (goal.Due, error) {
	select {
	case d := <-f:
		return d, nil
	case <-ctx.Done():
		return goal.Due{}, context.Cause(ctx)
	}
}

// offer puts a turn into a feed until it is acknowledged.
func (s *fakeStore) offer(feed chan goal.Due, due goal.Due) {
	var once sync.Once
	again := func() { once.Do(func() { s.offer(feed, due) }) }
	timer := time.AfterFunc(fakeAckWait, again)
	out := due
	out.Ack = func(context.Context) error {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.acked++
		})
		timer.Stop()
		return nil
	}
	out.Extend = func() error { timer.Reset(fakeAckWait); return nil }
	out.Release = func() error { timer.Stop(); again(); return nil }
	feed <- out
}

func (s *fakeStore) CreateDelivery(_ context.Context, d goal.Delivery) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return 0, s.failing
	}
	if _, ok := s.records[d.Webhook.ID]; ok {
		return 0, goal.ErrExists
	}
	s.records[d.Webhook.ID], s.revs[d.Webhook.ID] = d, 1
	return 1, nil
}

func (s *fakeStore) Delivery(_ context.Context, _, id string) (goal.Delivery, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.records[id]
	if !ok {
		return d, 0, goal.ErrNotFound
	}
	return d, s.revs[id], nil
}

func (s *fakeStore) UpdateDelivery(_ context.Context, d goal.Delivery, rev uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return 0, s.failing
	}
	if s.revs[d.Webhook.ID] != rev {
		return 0, goal.ErrFenced
	}
	s.records[d.Webhook.ID] = d
	s.revs[d.Webhook.ID]++
	return rev + 1, nil
}

func (s *fakeStore) ScheduleTurn(_ context.Context, t goal.Turn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return s.failing
	}
	key := t.ID
	if t.Request != "" {
		key += " request"
	}
	if old := s.timers[key]; old != nil {
		old.Stop()
	}
	s.timers[key] = time.AfterFunc(time.Until(t.At), func() { s.offer(s.due, goal.Due{Turn: t}) })
	return nil
}

// end offers the end of a task.
func (s *fakeStore) end(id, url string) {
	hook := goal.Webhook{ID: id, URL: url, Tenant: tenant, TaskID: "tsk_" + id, Body: `{"id":"` + id + `"}`}
	s.offer(s.ended, goal.Due{
		Turn:    goal.Turn{Version: goal.TurnVersion, Tenant: tenant, ID: id, At: time.Now(), Trigger: goal.TriggerEvent},
		Webhook: &hook,
	})
}

func (s *fakeStore) again(id string) {
	s.offer(s.due, goal.Due{Turn: goal.Turn{
		Version: goal.TurnVersion, Tenant: tenant, ID: id, At: time.Now(), Trigger: goal.TriggerManual, Request: "r" + time.Now().String(),
	}})
}

func (s *fakeStore) get(id string) goal.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[id]
}

func (s *fakeStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
}

func (s *fakeStore) ackedTurns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked
}

// stopTimers ends what a bubble must not leave behind.
func (s *fakeStore) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.timers {
		t.Stop()
	}
}

// roundTrip fakes the network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("answer"))}
}

// hang answers when the attempt's time is over.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// inBubble runs a notifier over a fake store and network in virtual time.
func inBubble(t *testing.T, net roundTrip, change func(*notifier.Config), body func(s *fakeStore, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		conf := notifier.Config{
			Ended: fakeFeed(s.ended), Due: fakeFeed(s.due), Records: s, Timetable: s, Secrets: oneSecret, Transport: net, Log: quiet(),
		}
		if change != nil {
			change(&conf)
		}
		n, err := notifier.New(conf)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		body(s, stop)
		stop()
		s.stopTimers()
	})
}

var errNoStore = errors.New("no store")

var errReset = fmt.Errorf("read: %w", syscall.ECONNRESET)

package kv_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestAnswersFindTheirRequest: an answer that comes late, or twice, is not taken
// for that of another request, however many there are at a time.
func TestAnswersFindTheirRequest(t *testing.T) {
	t.Parallel()
	server := kvtest.Server(t, kvtest.Options{})
	s, nc := server.Store(t), server.Conn(t)
	var answering sync.WaitGroup
	t.Cleanup(answering.Wait)
	_, err := nc.Subscribe("echo", func(m *nats.Msg) {
		answer := func() { _ = m.Respond(m.Data) } // who does not get it notices
		n, _ := strconv.Atoi(string(m.Data))
		switch n % 3 {
		case 0:
			answer()
			answer()
		case 1:
			answer()
		case 2:
			answering.Go(func() { time.Sleep(50 * time.Millisecond); answer() })
		}
	})
	must(t, "subscribe", err, nil)
	must(t, "flush", nc.Flush(), nil)

	ask := func(n int, patience time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		text := strconv.Itoa(n)
		switch a, err := s.Request(ctx, &nats.Msg{Subject: "echo", Data: []byte(text)}); {
		case n%3 == 2 && patience < time.Second:
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
				t.Errorf("request %s: %v, want it to be given up", text, err)
			}
		case err != nil:
			t.Errorf("request %s: %v", text, err)
		case string(a.Data) != text:
			t.Errorf("request %s got the answer %s", text, a.Data)
		}
	}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 60 {
				patience := 10 * time.Second
				if i%6 == 2 {
					patience = 10 * time.Millisecond
				}
				ask(worker*60+i, patience)
			}
		})
	}
	all.Wait()

	_, err = s.Request(t.Context(), &nats.Msg{Subject: "nobody"})
	must(t, "request that nobody answers", err, nats.ErrNoResponders)
}

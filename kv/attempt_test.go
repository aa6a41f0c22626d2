package kv_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestLateDeadline loses an answer under a deadline that is far away, as a
// goal's is: the write is repeated soon all the same.
func TestLateDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := kvtest.Server(t, kvtest.Options{})
		s := srv.Store(t)
		nc := srv.Conn(t)
		asked := 0
		_, err := nc.Subscribe("silent", func(m *nats.Msg) {
			if asked++; asked > 1 {
				_ = m.Respond([]byte(`{"stream": "SILENT", "seq": 1}`))
			}
		})
		must(t, "subscribe", err, nil)
		must(t, "flush", nc.Flush(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		_, _, err = s.Put(ctx, "silent", []byte("1"), "", 0)
		must(t, "put", err, nil)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the write was repeated after %s", took)
		}
	})
}

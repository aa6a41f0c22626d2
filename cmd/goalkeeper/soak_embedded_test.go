package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestSoakEmbedded kills the whole process again and again under load: what
// was answered with 202 is there after the restart, settles and has its
// webhook, and no effect takes place twice. GOALKEEPER_SOAK makes it 50 kills.
func TestSoakEmbedded(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	kills := 8
	if os.Getenv("GOALKEEPER_SOAK") != "" {
		kills = 50
	}
	w, dir := newSoakWorld(t), t.TempDir()
	port := freePorts(t, 1)[0]
	serve := program(t, dir, "serve", "goalkeeper", "serve", "--config", w.config(t, dir, ""), "--data", dir+"/data", "--listen", "127.0.0.1:"+port)
	l := newLoad(t, w, 20, "http://127.0.0.1:"+port)
	l.mixed = true
	ctx, enough := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx) }()
	var back spread
	for range kills {
		started := time.Now()
		serve.start()
		if err := answers(ctx, l.urls[0]+"/readyz"); err != nil {
			t.Error(err)
			break
		}
		back = append(back, time.Since(started))
		waitABit(ctx, 500*time.Millisecond+jitter(2*time.Second))
		serve.kill()
	}
	serve.start()
	enough()
	<-done
	l.finish(t)
	t.Logf("%d kills of the whole process; ready again after %s", kills, back)
	for _, c := range serve.crashes {
		t.Errorf("ended by itself: %s", c)
	}
}

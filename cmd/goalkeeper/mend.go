package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

const (
	mendEvery = time.Second      // how often the embedded store is looked at
	mendPause = 10 * time.Second // between two repairs
	mendSpace = 8 << 20          // free bytes that make a repair worth while
)

// brokenWrite is the failed write after which the embedded server takes no more
// for some stream, or nil. The server keeps to that until it reads the stream's
// files again, also when the disk has space again.
func (b *broker) brokenWrite() error {
	if b.server == nil {
		return nil
	}
	if !b.server.JetStreamEnabled() {
		return errors.New("JetStream is off")
	}
	for _, e := range b.server.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && strings.Contains(e.Error, "write error") {
			return errors.New(e.Error)
		}
	}
	return nil
}

// fault is why nothing can be stored although the server answers, or nil. After
// a failed sync only a start of the process helps: nobody knows what was lost.
func (b *broker) fault() error {
	if b.barrier != nil {
		if err := b.barrier.Err(); err != nil {
			return err
		}
	}
	return b.brokenWrite()
}

// mend looks after the embedded store until ctx ends: when a write has failed
// and there is space again, JetStream reads its files anew, as at a start of the
// process. What was acknowledged is there; what failed was not acknowledged.
// reopen provisions what was in memory only.
func (b *broker) mend(ctx context.Context, reopen func(context.Context) error, log *slog.Logger) error {
	if b.server == nil {
		return nil
	}
	tick := time.NewTicker(mendEvery)
	defer tick.Stop()
	var last time.Time
	told, half := false, false // half: a repair was begun
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		broken := b.brokenWrite()
		if broken == nil && !half {
			told = false
			continue
		}
		if !told {
			log.ErrorContext(ctx, "the store takes nothing more until its disk has space", "error", broken)
			told = true
		}
		if free, err := freeSpace(b.opts.StoreDir); err != nil || free < mendSpace || time.Since(last) < mendPause {
			continue
		}
		last, half = time.Now(), true
		if err := b.restartStore(ctx, reopen); err != nil {
			log.ErrorContext(ctx, "the store could not be read anew, tried again", "error", err)
			continue
		}
		half = false
		log.InfoContext(ctx, "the disk has space again, the store was read anew")
	}
}

func (b *broker) restartStore(ctx context.Context, reopen func(context.Context) error) error {
	if err := b.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("stop the store: %w", err)
	}
	if err := startStore(b.server, b.opts); err != nil {
		return fmt.Errorf("start the store: %w", err)
	}
	return reopen(ctx)
}

// freeSpace is how many bytes the file system of dir can still take.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil //nolint:gosec // a block has a size
}

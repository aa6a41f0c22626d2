package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	// marksFile remembers beside the embedded store how far its streams had been
	// written and synced. The server takes what it can read of a damaged file for
	// all there was; only what is noted elsewhere can tell that something is gone.
	marksFile = "streams.json"
	markEvery = 5 * time.Second
	markTime  = 5 * time.Second // of one look at all streams
)

// marks are the streams' last sequences.
type marks struct {
	At   time.Time         `json:"at"`
	Last map[string]uint64 `json:"last"` // by stream
}

// streamMarks looks at every stream on file and waits until what it saw is
// durable.
func (b *broker) streamMarks(ctx context.Context) (marks, error) {
	ctx, cancel := context.WithTimeout(ctx, markTime)
	defer cancel()
	js, err := jetstream.New(b.conn)
	if err != nil {
		return marks{}, err
	}
	found := marks{At: time.Now().UTC(), Last: map[string]uint64{}}
	list := js.ListStreams(ctx)
	for s := range list.Info() {
		if s.Config.Storage == jetstream.FileStorage {
			found.Last[s.Config.Name] = s.State.LastSeq
		}
	}
	if err := list.Err(); err != nil {
		return marks{}, fmt.Errorf("list streams: %w", err)
	}
	if b.barrier != nil {
		err = b.barrier.Wait(ctx)
	}
	return found, err
}

// keeps reports whether the stream keeps its newest record for the retention,
// whatever follows.
func keeps(stream string) bool {
	return strings.HasPrefix(stream, goal.GoalsStream("")) || stream == goal.EventsStream || stream == "KV_"+goal.ResultsBucket
}

// saveMarks notes how far the streams have come. A failure costs only that a
// later loss goes unnoticed.
func (b *broker) saveMarks(ctx context.Context) error {
	found, err := b.streamMarks(ctx)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(found)
	if err != nil {
		return err
	}
	path := filepath.Join(b.opts.StoreDir, marksFile)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// keepMarks saves the marks again and again, and once more when ctx ends.
func (b *broker) keepMarks(ctx context.Context, log *slog.Logger) error {
	if b.server == nil {
		return nil
	}
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		if err := b.saveMarks(context.WithoutCancel(ctx)); err != nil {
			log.WarnContext(ctx, "how far the streams have come is not noted", "error", err)
		}
	}
	return nil
}

// checkMarks says which streams have lost records that had been synced. The
// store is used all the same: what is left is whole, and to refuse it would
// lose more.
func (b *broker) checkMarks(ctx context.Context, log *slog.Logger) error {
	if b.server == nil {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(b.opts.StoreDir, marksFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var was marks
	if err == nil {
		err = json.Unmarshal(raw, &was)
	}
	if err != nil {
		log.WarnContext(ctx, "how far the streams had come cannot be read", "error", err)
		return nil
	}
	lost, err := b.lost(ctx, was)
	if err != nil {
		return err
	}
	for _, stream := range lost {
		log.ErrorContext(ctx, "the disk has lost records that had been synced: restore a backup, or go on with what is left",
			"stream", stream, "had_been_at", was.Last[stream], "on", was.At)
	}
	return nil
}

// lost lists the streams that do not hold what they had held. The server goes on
// counting where its index says, so the last record itself is looked for.
func (b *broker) lost(ctx context.Context, was marks) (streams []string, err error) {
	found, err := b.streamMarks(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	js, err := jetstream.New(b.conn)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(was.Last)) {
		last := was.Last[name]
		if found.Last[name] < last {
			streams = append(streams, name)
			continue
		}
		if last == 0 || !keeps(name) || time.Since(was.At) > minRetention/2 {
			continue
		}
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", name, err)
		}
		if _, err := stream.GetMsg(ctx, last); errors.Is(err, jetstream.ErrMsgNotFound) {
			streams = append(streams, name)
		}
	}
	return streams, nil
}

package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Moved is a stream that Migrate has copied.
type Moved struct {
	Stream   string
	Messages uint64 // on the target
	LastSeq  uint64 // the same on both sides
	Already  bool   // an earlier Migrate did it
}

const (
	migrateChunk  = 256 << 10 // bytes of a snapshot in one message
	migrateWindow = 4 << 20   // bytes on their way
	migrateCall   = time.Minute
	migrateTries  = 20               // a few seconds
	migrateSettle = 10 * time.Minute // for replicas to catch up
)

// Migrate copies every stream on file from one server to another or to a
// cluster, by the server's own snapshots: with sequences, and so revisions and
// fences, with times, TTLs and consumers. Streams in memory (leases) are left
// out: a lease that is gone is an expired lease. replicas is that of the copies.
//
// Nothing may write to either side meanwhile. The source is not changed. When
// Migrate fails it may be called again: a stream that is on the target already
// up to the same sequence counts as copied, one with other contents is an error.
// The target must read the source's snapshot format: take the same minor version
// of the server, or a later one.
func Migrate(ctx context.Context, from, to *nats.Conn, replicas int, log *slog.Logger) ([]Moved, error) {
	if older(to.ConnectedServerVersion(), from.ConnectedServerVersion()) {
		return nil, fmt.Errorf("kv: migrate: the target is NATS %s and may not read the snapshots of %s", to.ConnectedServerVersion(), from.ConnectedServerVersion())
	}
	m := migration{from: from, to: to, replicas: replicas}
	var err error
	if m.source, err = jetstream.New(from); err != nil {
		return nil, fmt.Errorf("kv: migrate: source: %w", err)
	}
	if m.target, err = jetstream.New(to); err != nil {
		return nil, fmt.Errorf("kv: migrate: target: %w", err)
	}
	var all []Moved
	list := m.source.ListStreams(ctx)
	for info := range list.Info() {
		if info.Config.Storage != jetstream.FileStorage {
			continue
		}
		moved, err := m.move(ctx, info)
		if err != nil {
			return all, fmt.Errorf("kv: migrate %s: %w", info.Config.Name, err)
		}
		log.InfoContext(ctx, "stream copied", "stream", moved.Stream, "messages", moved.Messages, "last_seq", moved.LastSeq, "already", moved.Already)
		all = append(all, moved)
	}
	if err := list.Err(); err != nil {
		return all, fmt.Errorf("kv: migrate: list streams: %w", err)
	}
	return all, nil
}

// older reports whether version a is of an earlier minor version than b.
func older(a, b string) bool {
	var x, y [2]int
	if _, err := fmt.Sscanf(a, "%d.%d", &x[0], &x[1]); err != nil {
		return true
	}
	if _, err := fmt.Sscanf(b, "%d.%d", &y[0], &y[1]); err != nil {
		return true
	}
	return slices.Compare(x[:], y[:]) < 0
}

type migration struct {
	from, to       *nats.Conn
	source, target jetstream.JetStream
	replicas       int
}

func (m migration) move(ctx context.Context, source *jetstream.StreamInfo) (Moved, error) {
	name := source.Config.Name
	have, err := m.target.Stream(ctx, name)
	switch {
	case err == nil:
		if last := have.CachedInfo().State.LastSeq; !reaches(last, source) {
			return Moved{}, fmt.Errorf("it is on the target with other contents: last sequence %d, here %d", last, source.State.LastSeq)
		}
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return Moved{}, fmt.Errorf("look it up on the target: %w", err)
	default:
		if err := m.copy(ctx, name); err != nil {
			return Moved{}, err
		}
	}
	info, err := m.settled(ctx, source)
	if err != nil {
		return Moved{}, err
	}
	return Moved{Stream: name, Messages: info.State.Msgs, LastSeq: info.State.LastSeq, Already: have != nil}, nil
}

// reaches reports whether a copy that ends at last is one of the source. Where
// schedules fire, on either side, the stream goes on by itself.
func reaches(last uint64, source *jetstream.StreamInfo) bool {
	return last == source.State.LastSeq || source.Config.AllowMsgSchedules && last > source.State.LastSeq
}

// snapshotStart is the answer to a request for a snapshot, and with the
// replicas changed the request to restore it. What this code does not know of
// the configuration is kept.
type snapshotStart struct {
	Config map[string]json.RawMessage `json:"config"`
	State  json.RawMessage            `json:"state"`
}

func (m migration) copy(ctx context.Context, name string) error {
	chunks, err := m.from.SubscribeSync(m.from.NewInbox())
	if err != nil {
		return fmt.Errorf("subscribe to the snapshot: %w", err)
	}
	defer func() { _ = chunks.Unsubscribe() }() // fails only when the connection is closed
	var start snapshotStart
	if err := ask(ctx, m.from, "$JS.API.STREAM.SNAPSHOT."+name, map[string]any{
		"deliver_subject": chunks.Subject, "chunk_size": migrateChunk, "window_size": migrateWindow,
	}, &start); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if start.Config["num_replicas"], err = json.Marshal(m.replicas); err != nil {
		return err
	}
	var restore struct {
		DeliverSubject string `json:"deliver_subject"`
	}
	if err := ask(ctx, m.to, "$JS.API.STREAM.RESTORE."+name, start, &restore); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := m.pump(ctx, chunks, restore.DeliverSubject); err != nil {
		return err
	}
	if err := ask(ctx, m.to, restore.DeliverSubject, nil, nil); err != nil {
		return fmt.Errorf("end of restore: %w", err)
	}
	return nil
}

// pump hands on the chunks of a snapshot until its end. The source sends more
// only as its chunks are acknowledged, which follows the target's word.
func (m migration) pump(ctx context.Context, chunks *nats.Subscription, to string) error {
	for {
		chunk, err := nextChunk(ctx, chunks)
		if err != nil || chunk == nil {
			return err
		}
		if err := ask(ctx, m.to, to, json.RawMessage(chunk.Data), nil); err != nil {
			return fmt.Errorf("restore a part: %w", err)
		}
		if chunk.Reply == "" {
			continue
		}
		if err := chunk.Respond(nil); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
}

// nextChunk is the next part of a snapshot, nil at its end.
func nextChunk(ctx context.Context, chunks *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, migrateCall)
	defer cancel()
	chunk, err := chunks.NextMsgWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if len(chunk.Data) > 0 {
		return chunk, nil
	}
	if status := chunk.Header.Get("Status"); status != "" && status != "204" {
		return nil, fmt.Errorf("snapshot: the server says %s %s", status, chunk.Header.Get("Description"))
	}
	return nil, nil //nolint:nilnil // the end
}

// ask makes one request of the JetStream API. A body of raw bytes is sent as it
// is; an empty answer is a yes.
func ask(ctx context.Context, nc *nats.Conn, subject string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, migrateCall)
	defer cancel()
	data, raw := body.(json.RawMessage)
	if !raw && body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	m, err := nc.RequestWithContext(ctx, subject, data)
	// The node that we are connected to may not know yet that another listens.
	for attempt := 0; errors.Is(err, nats.ErrNoResponders) && attempt < migrateTries && pause(ctx, attempt); attempt++ {
		m, err = nc.RequestWithContext(ctx, subject, data)
	}
	if err != nil {
		return err
	}
	if len(m.Data) == 0 {
		return nil
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if failed.Error != nil {
		return failed.Error
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(m.Data, answer)
}

// settled waits until the copy and all its replicas have everything. What
// expires meanwhile is gone on both sides.
func (m migration) settled(ctx context.Context, listed *jetstream.StreamInfo) (*jetstream.StreamInfo, error) {
	name := listed.Config.Name
	ctx, cancel := context.WithTimeout(ctx, migrateSettle)
	defer cancel()
	for attempt := 0; ; attempt++ {
		copied, err := streamInfo(ctx, m.target, name)
		if err == nil && !reaches(copied.State.LastSeq, listed) {
			return nil, fmt.Errorf("the copy ends at sequence %d, the source at %d", copied.State.LastSeq, listed.State.LastSeq)
		}
		source, serr := streamInfo(ctx, m.source, name)
		if err == nil && serr == nil && copied.State.Msgs >= source.State.Msgs && inSync(copied.Cluster) {
			return copied, nil
		}
		if !pause(ctx, attempt) {
			return nil, fmt.Errorf("the copy is not whole: %w", errors.Join(err, serr, ctx.Err()))
		}
	}
}

func streamInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// inSync reports whether every replica is up to date.
func inSync(c *jetstream.ClusterInfo) bool {
	if c == nil {
		return true
	}
	for _, r := range c.Replicas {
		if !r.Current {
			return false
		}
	}
	return c.Leader != ""
}

package kvtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a stored message in a file of records. It lies there as it was
// stored, but for the white space of JSON.
type Message struct {
	Seq     uint64          `json:"seq"`
	Subject string          `json:"subject"`
	Header  nats.Header     `json:"header,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"` // of a record that is one JSON value
	Text    string          `json:"text,omitempty"` // of any other
}

// payload is what the message carries.
func (m Message) payload(tb testing.TB) []byte {
	tb.Helper()
	if m.Data == nil {
		return []byte(m.Text)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, m.Data); err != nil {
		tb.Fatalf("%s: %v", m.Subject, err)
	}
	return out.Bytes()
}

// Records are the messages of streams, by the stream's name and in their order.
type Records map[string][]Message

const recordsTime = 30 * time.Second

// ReadRecords reads the files <stream>.json of a folder.
func ReadRecords(tb testing.TB, dir string) Records {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no records in %s: %v", dir, err)
	}
	all := Records{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		var messages []Message
		if err := json.Unmarshal(raw, &messages); err != nil {
			tb.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = messages
	}
	return all
}

// WriteRecords writes the files that ReadRecords reads. What was written once
// is never written again: an old record stays what it was.
func WriteRecords(tb testing.TB, dir string, all Records) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		tb.Fatal(err)
	}
	for stream, messages := range all {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(messages); err != nil {
			tb.Fatal(err)
		}
		file, err := os.OpenFile(filepath.Join(dir, stream+".json"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			tb.Fatal(err)
		}
		_, err = file.Write(out.Bytes())
		if err := errors.Join(err, file.Close()); err != nil {
			tb.Fatal(err)
		}
	}
}

// Dump is every message of every stream.
func (c *Cluster) Dump(tb testing.TB) Records {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), recordsTime)
	defer cancel()
	js := jetStream(tb, c.Conn(tb))
	all := Records{}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		if messages := dump(ctx, tb, js, name); len(messages) > 0 {
			all[name] = messages
		}
	}
	if err := names.Err(); err != nil {
		tb.Fatal(err)
	}
	return all
}

func dump(ctx context.Context, tb testing.TB, js jetstream.JetStream, name string) (messages []Message) {
	tb.Helper()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		raw, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // another replaced it
		}
		if err != nil {
			tb.Fatalf("%s %d: %v", name, seq, err)
		}
		for _, name := range []string{jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.SubjectHeader, jetstream.TimeStampHeaer} {
			raw.Header.Del(name) // added by the read
		}
		m := Message{Seq: seq, Subject: raw.Subject, Header: raw.Header}
		if json.Valid(raw.Data) {
			m.Data = raw.Data
		} else {
			m.Text = string(raw.Data)
		}
		messages = append(messages, m)
	}
	return messages
}

// Restore stores records in streams that are there and empty, with the
// sequences and the headers that they had.
func (c *Cluster) Restore(tb testing.TB, all Records) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), recordsTime)
	defer cancel()
	js := jetStream(tb, c.Conn(tb))
	for _, stream := range slices.Sorted(maps.Keys(all)) {
		last := uint64(0)
		for _, m := range all[stream] {
			for ; last+1 < m.Seq; last++ { // what this one replaced
				if _, err := js.Publish(ctx, m.Subject, nil); err != nil {
					tb.Fatalf("%s %d: %v", stream, m.Seq, err)
				}
			}
			msg := &nats.Msg{Subject: m.Subject, Header: fulfilled(m.Header), Data: m.payload(tb)}
			ack, err := js.PublishMsg(ctx, msg)
			if err != nil || ack.Sequence != m.Seq || ack.Stream != stream {
				tb.Fatalf("restore %s %d = %+v, %v", stream, m.Seq, ack, err)
			}
			last = m.Seq
		}
	}
}

// fulfilled is the header without the conditions of the write.
func fulfilled(h nats.Header) nats.Header {
	h = maps.Clone(h)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-Expected-") })
	return h
}

func jetStream(tb testing.TB, nc *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// Lacks is the first place at which a JSON value has something that another
// lacks or has otherwise; empty when there is none. An array must be as long.
func Lacks(tb testing.TB, old, now []byte) string {
	tb.Helper()
	var a, b any
	for data, v := range map[*any][]byte{&a: old, &b: now} {
		dec := json.NewDecoder(bytes.NewReader(v))
		dec.UseNumber()
		if err := dec.Decode(data); err != nil {
			tb.Fatalf("%s: %v", v, err)
		}
	}
	return lacks("", a, b)
}

func lacks(at string, old, now any) string {
	switch o := old.(type) {
	case map[string]any:
		n, ok := now.(map[string]any)
		if !ok {
			return at + "/"
		}
		for _, name := range slices.Sorted(maps.Keys(o)) {
			if p := lacks(at+"/"+name, o[name], n[name]); p != "" {
				return p
			}
		}
		return ""
	case []any:
		n, ok := now.([]any)
		if !ok || len(n) != len(o) {
			return at + "/"
		}
		for i := range o {
			if p := lacks(at+"/-", o[i], n[i]); p != "" {
				return p
			}
		}
		return ""
	}
	if old != now {
		return at
	}
	return ""
}

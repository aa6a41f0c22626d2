package idempotency

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// The folders of testdata/records hold records of calls as they lay on a disk.
// They are never changed: whoever raises the version writes a new folder beside
// them (go test ./ingest/idempotency -run WriteRecords -records v2).
var recordsFolder = flag.String("records", "", "folder to be made below testdata/records with the records of today")

const recordsPath = "testdata/records"

// The keys of the old records; all with the same body.
const (
	keyDone     = "done"
	keyParts    = "parts"
	keyHeld     = "held"
	keyReleased = "released"
	keyRunning  = "running"
)

// oldWorld is a backend protected by records in a bucket.
func oldWorld(t *testing.T) (*world, *kvtest.Cluster, *kv.Calls) {
	t.Helper()
	c := kvtest.Server(t, kvtest.Options{})
	calls, err := c.Store(t).Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, middleware, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(HeaderKey) {
		case keyHeld:
			MarkUnknown(r.Context(), "the bank timed out")
			w.WriteHeader(http.StatusBadGateway)
		case keyReleased:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.Header().Set("Location", "/p/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte("paid\n\x00"))
		}
	}, func(cfg *Config) { cfg.Store, cfg.OnAmbiguous, cfg.SlotGuard = calls, Hold, true })
	return w, c, calls
}

func TestWriteRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if *recordsFolder != "" {
		dir = filepath.Join(recordsPath, *recordsFolder)
	}
	w, c, calls := oldWorld(t)
	for key, status := range map[string]int{keyDone: 201, keyParts: 201, keyHeld: 502, keyReleased: 429, keyRunning: 201} {
		w.post(key, "{}").want(t, status)
	}
	w.post(derivedKey(t, 1, "pay", "1"), "1", slotHeaders("s", "1", "pay")...).want(t, 201)
	l := ledger{calls}
	// A large answer, without its size, and a call in the hands of a process.
	cur, err := l.read(t.Context(), ID("default", keyParts))
	if err != nil {
		t.Fatal(err)
	}
	held := &claim{ID("default", keyParts), *cur.Record, cur.rev}
	if err := l.writeParts(t.Context(), held, held.rec.Answer, MinResultTTL); err != nil {
		t.Fatal(err)
	}
	if err := l.write(t.Context(), held, MinResultTTL); err != nil {
		t.Fatal(err)
	}
	if cur, err = l.read(t.Context(), ID("default", keyRunning)); err != nil {
		t.Fatal(err)
	}
	running := &claim{ID("default", keyRunning), *cur.Record, cur.rev}
	running.rec.State, running.rec.Answer, running.rec.LeaseUntil = InProgress, nil, time.Now().UTC().Add(time.Minute)
	if err := l.write(t.Context(), running, time.Hour); err != nil {
		t.Fatal(err)
	}
	kvtest.WriteRecords(t, dir, c.Dump(t))
}

// eachFolder runs the test on the records of every folder. change may spoil
// them first.
func eachFolder(t *testing.T, change func([]kvtest.Message), test func(t *testing.T, w *world, c *kvtest.Cluster, calls *kv.Calls)) {
	t.Helper()
	folders, err := os.ReadDir(recordsPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders {
		t.Run(f.Name(), func(t *testing.T) {
			t.Parallel()
			w, c, calls := oldWorld(t)
			records := kvtest.ReadRecords(t, filepath.Join(recordsPath, f.Name()))
			if change != nil {
				change(records["KV_"+goal.CallsBucket])
			}
			c.Restore(t, records)
			test(t, w, c, calls)
		})
	}
}

// Calls whose records an earlier Goalkeeper stored are answered as it would
// have answered them.
func TestOldRecords(t *testing.T) {
	t.Parallel()
	eachFolder(t, nil, func(t *testing.T, w *world, c *kvtest.Cluster, calls *kv.Calls) {
		t.Helper()
		for _, m := range c.Dump(t)["KV_"+goal.CallsBucket] {
			id := strings.TrimPrefix(m.Subject, "$KV."+goal.CallsBucket+".")
			if strings.Contains(id, ".") {
				continue // a slot, or a part
			}
			rec, err := ledger{calls}.read(t.Context(), id)
			if err != nil {
				t.Errorf("read %s: %v", m.Text, err)
				continue
			}
			now, err := goal.Marshal(rec.Record)
			if at := kvtest.Lacks(t, firstLine(m), now); at != "" || err != nil {
				t.Errorf("%s is lost or changed: read as\n%s, %v, was\n%s", at, now, err, firstLine(m))
			}
		}
		for _, key := range []string{keyDone, keyParts} {
			if r := w.post(key, "{}").want(t, 201, HeaderLookup, "HIT", HeaderReplayed, "true", "Location", "/p/1"); r.body != "paid\n\x00" {
				t.Errorf("%s: body %q", key, r.body)
			}
			w.post(key, "[]").want(t, 422)
		}
		w.post(keyHeld, "{}").want(t, 409)
		w.post(keyRunning, "{}").want(t, 409).problem(t, "request-in-progress")
		// The slot of a step is its first key's.
		w.post(derivedKey(t, 1, "pay", "1"), "1", slotHeaders("s", "1", "pay")...).want(t, 201, HeaderLookup, "HIT")
		w.post(derivedKey(t, 1, "pay", "2"), "2", slotHeaders("s", "1", "pay")...).want(t, 422)
		w.ran(0)
		w.post(keyReleased, "{}").want(t, 429, HeaderAttempt, "2")
		w.ran(1)
	})
}

// firstLine is the record without an inline body.
func firstLine(m kvtest.Message) []byte {
	if m.Data != nil {
		return m.Data
	}
	line, _, _ := bytes.Cut([]byte(m.Text), []byte{'\n'})
	return line
}

// A call whose record is of a version that this program does not know is not
// run, and the record stays what it is.
func TestUnknownVersion(t *testing.T) {
	t.Parallel()
	newer := func(messages []kvtest.Message) {
		for i := range messages {
			messages[i].Text = strings.Replace(messages[i].Text, `"v":1,`, `"v":99,`, 1)
			messages[i].Data = bytes.Replace(messages[i].Data, []byte(`"v": 1,`), []byte(`"v": 99,`), 1)
		}
	}
	eachFolder(t, newer, func(t *testing.T, w *world, c *kvtest.Cluster, calls *kv.Calls) {
		t.Helper()
		before := c.Dump(t)["KV_"+goal.CallsBucket]
		op := &Operator{Store: calls}
		for _, key := range []string{keyDone, keyParts, keyHeld, keyReleased, keyRunning} {
			w.post(key, "{}").want(t, 503)
			for name, err := range map[string]error{
				"Inspect": second(op.Inspect(t.Context(), ID("default", key))),
				"Release": op.Release(t.Context(), ID("default", key), "olga", ""),
				"abandon": ledger{calls}.abandon(context.Background(), ID("default", key), "x"),
			} {
				if !errors.Is(err, errRecord) || !strings.Contains(err.Error(), "version 99") {
					t.Errorf("%s of %s = %v, want the version refused", name, key, err)
				}
			}
		}
		w.ran(0)
		after := c.Dump(t)["KV_"+goal.CallsBucket]
		if !slices.EqualFunc(before, after, func(a, b kvtest.Message) bool {
			return a.Seq == b.Seq && a.Text == b.Text && bytes.Equal(a.Data, b.Data)
		}) {
			t.Errorf("the records have changed:\n%+v, were\n%+v", after, before)
		}
	})
}

// second is the error of a call with one value.
func second[T any](_ T, err error) error { return err }

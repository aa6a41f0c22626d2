package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// operatorStore is what Operator needs.
type operatorStore interface {
	Store
	Lister
}

func TestExerciseFake(t *testing.T) {
	t.Parallel()
	exercise(t, func(*testing.T) operatorStore { return newMemStore() })
}

func TestExerciseKV(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			store := kvtest.Store(t, kvtest.Options{Nodes: nodes})
			calls, err := store.Calls(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			exercise(t, func(*testing.T) operatorStore { return calls })
		})
	}
}

var exerciseKeys atomic.Int64

// freshID is a key that no other subtest uses: they share a store.
func freshID() string {
	return goal.Digest("exercise", strconv.FormatInt(exerciseKeys.Add(1), 10))
}

// exercise is what every store must do: the contract of Store, and the
// transitions of the ledger on top of it.
func exercise(t *testing.T, open func(*testing.T) operatorStore) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s operatorStore)
	}{
		{"create is create-only", exerciseCreate},
		{"update compares and sets", exerciseUpdate},
		{"expiry leaves a trace that can be claimed", exerciseExpiry},
		{"an update sets the time to live anew", exerciseRenew},
		{"large and binary data come back as they are", exerciseData},
		{"one of many claims wins", exerciseClaims},
		{"each shows calls only", exerciseEach},
		{"the ledger's life of a call", exerciseLedger},
		{"a stale holder changes nothing", exerciseStale},
		{"a late holder may complete what nobody took", exerciseLate},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

func exerciseCreate(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, id := t.Context(), freshID()
	if _, rev, err := s.Get(ctx, id); !errors.Is(err, goal.ErrNotFound) || rev != 0 {
		t.Fatalf("Get of nothing = rev %d, %v; want 0, ErrNotFound", rev, err)
	}
	rev, err := s.Create(ctx, id, []byte("one"), 0)
	if err != nil || rev == 0 {
		t.Fatalf("Create = %d, %v", rev, err)
	}
	if _, err := s.Create(ctx, id, []byte("two"), 0); !errors.Is(err, goal.ErrExists) {
		t.Fatalf("second Create = %v; want ErrExists", err)
	}
	wantData(t, s, id, "one", rev)
}

func exerciseUpdate(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, id := t.Context(), freshID()
	first, err := s.Create(ctx, id, []byte("one"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Update(ctx, id, []byte("two"), first, time.Minute)
	if err != nil || second <= first {
		t.Fatalf("Update = %d, %v; want more than %d", second, err, first)
	}
	for _, stale := range []uint64{first, second + 1000} {
		if _, err := s.Update(ctx, id, []byte("three"), stale, 0); !errors.Is(err, goal.ErrFenced) {
			t.Fatalf("Update at %d = %v; want ErrFenced", stale, err)
		}
	}
	wantData(t, s, id, "two", second)
}

func exerciseExpiry(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, id := t.Context(), freshID()
	rev, err := s.Create(ctx, id, []byte("one"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	trace := untilGone(t, s, id)
	if trace <= rev {
		t.Fatalf("trace of revision %d; want more than %d", trace, rev)
	}
	if _, err := s.Create(ctx, id, []byte("two"), 0); !errors.Is(err, goal.ErrExists) {
		t.Fatalf("Create over a trace = %v; want ErrExists", err)
	}
	if _, err := s.Update(ctx, id, []byte("two"), rev, 0); !errors.Is(err, goal.ErrFenced) {
		t.Fatalf("Update at the expired revision = %v; want ErrFenced", err)
	}
	next, err := s.Update(ctx, id, []byte("two"), trace, 0)
	if err != nil || next <= trace {
		t.Fatalf("Update of the trace = %d, %v", next, err)
	}
	wantData(t, s, id, "two", next)
}

func exerciseRenew(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, short, long := t.Context(), freshID(), freshID()
	for _, id := range []string{short, long} {
		if _, err := s.Create(ctx, id, []byte("x"), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	_, rev, err := s.Get(ctx, long)
	if err != nil {
		t.Fatal(err)
	}
	rev, err = s.Update(ctx, long, []byte("y"), rev, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	untilGone(t, s, short)
	wantData(t, s, long, "y", rev)
	if _, err = s.Update(ctx, long, []byte("z"), rev, time.Second); err != nil {
		t.Fatal(err)
	}
	untilGone(t, s, long) // a write without its own time to live would live for ever
}

func exerciseData(t *testing.T, s operatorStore) {
	t.Helper()
	id := freshID()
	data := bytes.Repeat([]byte{0, 1, '\n', 0xFF, 0xFE}, (600<<10)/5)
	rev, err := s.Create(t.Context(), id, data, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	wantData(t, s, id, string(data), rev)
}

func exerciseClaims(t *testing.T, s operatorStore) {
	t.Helper()
	l, id := ledger{s}, freshID()
	var (
		group sync.WaitGroup
		wins  atomic.Int64
	)
	for range 50 {
		group.Go(func() {
			c, cur, err := l.claim(t.Context(), id, Record{Owner: newOwner(), Fingerprint: "f"}, time.Minute, false)
			switch {
			case err != nil:
				t.Error(err)
			case c != nil:
				wins.Add(1)
			case cur.State != InProgress:
				t.Errorf("loser sees %s", cur.State)
			}
		})
	}
	group.Wait()
	if wins.Load() != 1 {
		t.Fatalf("%d claims won; want 1", wins.Load())
	}
}

func exerciseEach(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, id := t.Context(), freshID()
	c, _, err := ledger{s}.claim(ctx, id, Record{Owner: newOwner(), Fingerprint: "f"}, time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), inlineBody+1)
	if err := (ledger{s}).complete(ctx, c, Answer{Status: 200, Body: body}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, slotID("t", "s", "1", id), []byte(id), time.Minute); err != nil {
		t.Fatal(err)
	}
	// A replica may be a little behind.
	eventually(t, "the call is listed at its last revision", func() bool {
		seen := 0
		err := s.Each(ctx, func(key string, data []byte, rev uint64) bool {
			if strings.Contains(key, ".") {
				t.Errorf("Each shows %s", key)
			}
			if key == id && rev == c.rev && len(data) > 0 {
				seen++
			}
			return true
		})
		return err == nil && seen == 1
	})
}

func exerciseLedger(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, l, id := t.Context(), ledger{s}, freshID()
	claim := func(fp string) (*claim, found) {
		t.Helper()
		c, cur, err := l.claim(ctx, id, Record{Owner: newOwner(), Fingerprint: fp}, time.Minute, false)
		if err != nil {
			t.Fatal(err)
		}
		return c, cur
	}
	c, _ := claim("f")
	if c == nil || c.rec.Attempt != 1 {
		t.Fatalf("first claim = %+v", c)
	}
	if err := l.renew(ctx, c, time.Now().Add(time.Minute), time.Minute); err != nil {
		t.Fatal(err)
	}
	if other, cur := claim("g"); other != nil || cur.Fingerprint != "f" {
		t.Fatalf("claim with another fingerprint = %+v, %+v", other, cur)
	}
	if err := l.release(ctx, c, "status 500"); err != nil {
		t.Fatal(err)
	}
	if other, cur := claim("g"); other != nil || cur.State != Released {
		t.Fatalf("claim of a released call with another fingerprint = %+v, %+v", other, cur)
	}
	again, _ := claim("f")
	if again == nil || again.rec.Attempt != 2 || again.rev <= c.rev {
		t.Fatalf("second claim = %+v; want attempt 2", again)
	}
	body := bytes.Repeat([]byte{0, '\n', 0xFF}, bodyPart) // three parts
	a := Answer{Status: 201, Header: http.Header{"Etag": {`"1"`}}, Body: body, At: time.Now().UTC()}
	if err := l.complete(ctx, again, a, time.Minute); err != nil {
		t.Fatal(err)
	}
	none, cur := claim("f")
	if none != nil || cur.State != Completed || cur.Answer.Parts != 3 || cur.Answer.Header.Get("Etag") != `"1"` {
		t.Fatalf("claim of a completed call = %+v, %+v", none, cur.Record)
	}
	got, err := l.body(ctx, id, cur.Owner, cur.Answer)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("body: %d bytes, %v; want %d", len(got), err, len(body))
	}
	if err := l.release(ctx, c, ""); !errors.Is(err, errLost) {
		t.Fatalf("release by the first holder = %v; want errLost", err)
	}
}

func exerciseStale(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, l, id := t.Context(), ledger{s}, freshID()
	want := Record{Fingerprint: "f", Owner: newOwner()}
	a, _, err := l.claim(ctx, id, want, time.Second, false)
	if err != nil {
		t.Fatal(err)
	}
	untilGone(t, s, id)
	if err := l.renew(ctx, a, time.Now(), time.Minute); !errors.Is(err, errLost) {
		t.Fatalf("renewal after expiry = %v; want errLost", err)
	}
	want.Owner = newOwner()
	b, _, err := l.claim(ctx, id, want, time.Minute, false)
	if err != nil || b == nil || b.rec.Attempt != 2 {
		t.Fatalf("second claim = %+v, %v; want attempt 2", b, err)
	}
	for name, err := range map[string]error{
		"renew":    l.renew(ctx, a, time.Now(), time.Minute),
		"release":  l.release(ctx, a, ""),
		"hold":     l.hold(ctx, a, "", time.Minute),
		"complete": l.complete(ctx, a, Answer{Status: 200}, time.Minute),
	} {
		if !errors.Is(err, errLost) {
			t.Errorf("%s by the first holder = %v; want errLost", name, err)
		}
	}
	cur, err := l.read(ctx, id)
	if err != nil || cur.Owner != want.Owner || cur.State != InProgress || cur.rev != b.rev {
		t.Fatalf("record = %+v, %v; want the second holder's", cur.Record, err)
	}
}

func exerciseLate(t *testing.T, s operatorStore) {
	t.Helper()
	ctx, l, id := t.Context(), ledger{s}, freshID()
	a, _, err := l.claim(ctx, id, Record{Fingerprint: "f", Owner: newOwner()}, time.Second, false)
	if err != nil {
		t.Fatal(err)
	}
	untilGone(t, s, id)
	if err := l.complete(ctx, a, Answer{Status: 204}, time.Minute); err != nil {
		t.Fatalf("late completion = %v", err)
	}
	_, cur, err := l.claim(ctx, id, Record{Fingerprint: "f", Owner: newOwner()}, time.Second, false)
	if err != nil || cur.Record == nil || cur.State != Completed {
		t.Fatalf("claim = %+v, %v; want the late answer", cur.Record, err)
	}
}

func wantData(t *testing.T, s Store, id, want string, rev uint64) {
	t.Helper()
	data, got, err := s.Get(t.Context(), id)
	if err != nil || string(data) != want || got != rev {
		t.Fatalf("Get = %d bytes, rev %d, %v; want %d bytes, rev %d", len(data), got, err, len(want), rev)
	}
}

// untilGone waits for the record to expire and returns its trace's revision.
func untilGone(t *testing.T, s Store, id string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, rev, err := s.Get(ctx, id)
		if errors.Is(err, goal.ErrNotFound) {
			if rev == 0 {
				t.Fatal("the expired record left no trace")
			}
			return rev
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the record does not expire: %v", err)
		}
	}
}

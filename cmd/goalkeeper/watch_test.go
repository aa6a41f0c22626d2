package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestReadEvents(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		in   string
		want []string
	}{
		"one":               {"id: 1\nevent: x\ndata: {}\n\n", []string{"{}"}},
		"comments":          {": hello\n\n:\ndata: a\n\n", []string{"a"}},
		"several data":      {"data: a\ndata: b\n\n", []string{"a\nb"}},
		"no space":          {"data:a\n\n", []string{"a"}},
		"two spaces":        {"data:  a\n\n", []string{" a"}},
		"carriage returns":  {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"cut off at end":    {"data: a\n\ndata: b\n", []string{"a"}},
		"no data":           {"id: 1\n\n", nil},
		"an unknown field":  {"retry: 10\nfoo: bar\ndata: a\n\n", []string{"a"}},
		"empty data is one": {"data:\n\n", []string{""}},
	} {
		var got []string
		err := readEvents(strings.NewReader(row.in), func() {}, func(s string) error { got = append(got, s); return nil })
		if err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, row.want)
		}
	}
}

// TestFollowTakesUpAgain: a stream that breaks is resumed after the last event,
// and what is sent twice is shown once.
func TestFollowTakesUpAgain(t *testing.T) {
	t.Parallel()
	var visits atomic.Int32
	var resumed atomic.Value
	c := dialTo(t, func(w http.ResponseWriter, r *http.Request) {
		send := func(events ...goal.Event) {
			for _, e := range events {
				b, _ := json.Marshal(e)
				_, _ = w.Write([]byte("data: " + string(b) + "\n\n"))
			}
		}
		switch visits.Add(1) {
		case 1:
			send(goal.Event{N: 1, Type: goal.TaskStarted}, goal.Event{N: 2, Type: goal.StateObserved})
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // the connection breaks
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable) // the server restarts
		default:
			resumed.Store(r.Header.Get("Last-Event-ID"))
			send(goal.Event{N: 2, Type: goal.StateObserved}, goal.Event{Type: goal.KeyConflict}, goal.Event{N: 3, Type: goal.TaskEnded, Ended: &goal.Ended{Status: goal.Succeeded}})
		}
	})
	var got []int
	err := follow(t.Context(), c, newTerminal(streams{err: &bytes.Buffer{}}, nil), "tsk_1", func(e goal.Event) error {
		got = append(got, e.N)
		return nil
	})
	if err != nil || !slices.Equal(got, []int{1, 2, 0, 3}) {
		t.Errorf("got events %v, %v; want 1, 2, the note 0, and 3", got, err)
	}
	if resumed.Load() != "2" {
		t.Errorf("Last-Event-ID: got %v, want 2", resumed.Load())
	}
}

func TestFollowEndsWithItsCallback(t *testing.T) {
	t.Parallel()
	api, url := startFake(t)
	_ = api
	c, err := newClient(url, "", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	id, full := submitTo(t, url, "reach"), errors.New("disk is full")
	err = follow(t.Context(), c, newTerminal(streams{err: &bytes.Buffer{}}, nil), id, func(goal.Event) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// TestLiveWatch: on a terminal one block is drawn again and again in place.
func TestLiveWatch(t *testing.T) {
	t.Parallel()
	_, url := startFake(t)
	id := submitTo(t, url, "reach")
	c, err := newClient(url, "", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var out bytes.Buffer
	term := &terminal{streams: streams{out: &out, err: &bytes.Buffer{}}, format: formatTable, live: true, colour: true, width: 60}
	err = watchTask(t.Context(), c, term, id)
	if code := exitCode(t.Context(), err); err != nil && code != exitReached {
		t.Fatalf("watch: %v", err)
	}
	screen := out.String()
	last := screen[strings.LastIndex(screen, "A\x1b[2K")+1:]
	for _, want := range []string{"\x1b[32msucceeded\x1b[0m", "steps 1/12", "1 of 1 reached", "last: step 1: ok in 120ms", "\x1b[J"} {
		if !strings.Contains(last, want) {
			t.Errorf("the last block has no %q: %q", want, last)
		}
	}
	if !strings.Contains(screen, "\x1b[2A") && !strings.Contains(screen, "\x1b[3A") {
		t.Errorf("the cursor never goes up: %q", screen)
	}
}

func TestBlockFitsTheTerminal(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deadline := now.Add(112 * time.Second)
	b := block{
		t: &terminal{width: 40}, of: 9, last: strings.Repeat("long ", 50),
		task: goal.Task{
			ID: "tsk_1", Status: goal.Running, Intent: strings.Repeat("words ", 40), Deadline: &deadline, LeftTotal: 9,
			Guardrails: goal.Guardrails{MaxSteps: 12}, Usage: goal.Usage{Steps: 3},
		},
	}
	for range 9 {
		b.task.Left = append(b.task.Left, goal.Difference{Pointer: "/a/" + strings.Repeat("x", 80), Want: json.RawMessage("1")})
	}
	lines := b.text(now)
	for _, l := range lines {
		if n := len([]rune(l)); n > 39 {
			t.Errorf("%d characters on a terminal of 40: %q", n, l)
		}
	}
	if len(lines) != 3+linesOfLeft+1 || !strings.Contains(lines[1], "steps 3/12, time left 1m52s") {
		t.Errorf("got %q", lines)
	}
}

func TestWatchIsInterrupted(t *testing.T) {
	t.Parallel()
	api, url := startFake(t)
	id := submitTo(t, url, "hang")
	for _, live := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-api.watched
			cancel()
		}()
		c, err := newClient(url, "", t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		term := &terminal{streams: streams{out: &bytes.Buffer{}, err: &bytes.Buffer{}}, format: formatTable, live: live, width: 60}
		err = watchTask(ctx, c, term, id)
		if code := exitCode(ctx, err); code != exitInterrupted || !strings.Contains(term.hint, "goalkeeper watch "+id) {
			t.Errorf("live = %t: %v is exit code %d with hint %q", live, err, code, term.hint)
		}
		cancel()
		c.close()
	}
}

// FuzzReadEvents: no stream of bytes breaks the reader.
func FuzzReadEvents(f *testing.F) {
	f.Add([]byte("id: 1\ndata: {\"n\":1}\n\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		_ = readEvents(bytes.NewReader(raw), func() {}, func(string) error { return nil })
	})
}

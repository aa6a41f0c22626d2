package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// listener is a `webhook listen` that runs in this process.
type listener struct {
	url  string
	out  *bytes.Buffer // read it after wait
	code chan int
	stop context.CancelFunc
}

func listen(t *testing.T, args ...string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	errs, w := io.Pipe()
	l := &listener{out: &bytes.Buffer{}, code: make(chan int, 1), stop: cancel}
	go func() { // ends with the context or --count; wait reads its code
		code := run(ctx, append([]string{"webhook", "listen", "--listen", "127.0.0.1:0", "-q"}, args...), streams{in: strings.NewReader(""), out: l.out, err: w})
		_ = w.Close()
		l.code <- code
	}()
	r := bufio.NewReader(errs)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("webhook listen says nothing: %v", err)
	}
	l.url = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	go func() { _, _ = io.Copy(io.Discard, r) }()
	return l
}

func (l *listener) wait(t *testing.T) []received {
	t.Helper()
	if code := <-l.code; code != exitReached {
		t.Fatalf("webhook listen: exit code %d", code)
	}
	var got []received
	for line := range strings.Lines(l.out.String()) {
		var r received
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got = append(got, r)
	}
	return got
}

// post sends a webhook and returns the status of the answer.
func (l *listener) post(t *testing.T, secret, id string, attempt int, body string) int {
	t.Helper()
	at := time.Now()
	signature, err := notifier.Sign([]notifier.Secret{{Key: secret}}, id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(notifier.HeaderID, id)
	req.Header.Set(notifier.HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(notifier.HeaderSignature, signature)
	req.Header.Set("Goalkeeper-Attempt", strconv.Itoa(attempt))
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode
}

func TestWebhookListen(t *testing.T) {
	t.Parallel()
	secret := notifier.NewSecret()
	l := listen(t, "--secret", secret, "--fail-first", "1", "--count", "2", "-o", "jsonl")
	for i, step := range []struct {
		secret, id string
		want       int
	}{
		{secret, "msg_1", 500},               // the first attempt fails, as asked
		{notifier.NewSecret(), "msg_1", 401}, // somebody else's
		{secret, "msg_1", 204},
		{secret, "msg_1", 204}, // again: a duplicate
		{secret, "msg_2", 500},
		{secret, "msg_2", 204}, // the second one that is taken: the end
	} {
		if got := l.post(t, step.secret, step.id, i+1, `{"type":"goal.target_reached"}`); got != step.want {
			t.Errorf("step %d: answered %d, want %d", i, got, step.want)
		}
	}
	got := l.wait(t)
	if len(got) != 6 {
		t.Fatalf("%d webhooks were printed, want 6", len(got))
	}
	if got[0].Verified != true || got[1].Verified || !strings.Contains(got[1].Why, "another secret") {
		t.Errorf("verification: %+v, %+v", got[0], got[1])
	}
	if got[2].Again || !got[3].Again || got[4].Attempt != "5" {
		t.Errorf("duplicates and attempts: %+v, %+v, %+v", got[2], got[3], got[4])
	}
}

func TestWebhookListenForPeople(t *testing.T) {
	t.Parallel()
	secret := notifier.NewSecret()
	l := listen(t, "--secret", secret)
	l.post(t, secret, "msg_1", 1, `{"type":"goal.failed","note":"\u001b[31m"}`)
	l.stop() // an interrupt is how it ends
	if code := <-l.code; code != exitReached {
		t.Errorf("exit code %d, want 0", code)
	}
	out := l.out.String()
	for _, want := range []string{"msg_1  verified  answered 204  attempt 1\n", "  \"type\": \"goal.failed\",\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
}

func TestSinceTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"24h": now.Add(-24 * time.Hour), "90m": now.Add(-90 * time.Minute), "2026-01-01T00:00:00+01:00": time.Date(2025, 12, 31, 23, 0, 0, 0, time.UTC),
	} {
		if got, err := sinceTime(s, now); err != nil || !got.Equal(want) {
			t.Errorf("sinceTime(%q) = %s, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1h", "0s", "yesterday", "2026-01-01"} {
		if got, err := sinceTime(s, now); err == nil {
			t.Errorf("sinceTime(%q) = %s, want an error", s, got)
		}
	}
}

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// fakeOperator remembers what it was asked.
type fakeOperator struct {
	since time.Time
	url   string
	err   error
}

func (f *fakeOperator) RedeliverSince(_ context.Context, _ string, since time.Time) (int, error) {
	f.since = since
	return 12, f.err
}

func (f *fakeOperator) SendTest(_ context.Context, _, url string) (string, error) {
	f.url = url
	return "msg_1", f.err
}

func TestWebhookAdmin(t *testing.T) {
	t.Parallel()
	check := func(url string) error {
		if !strings.HasPrefix(url, "https://") {
			return errors.New("must be https")
		}
		return nil
	}
	for name, row := range map[string]struct {
		path, body string
		err        error
		status     int
		answer     string
	}{
		"redeliver":          {"/webhooks/redeliver?since=2026-01-02T03:04:05Z", "", nil, 202, `{"redelivered":12}`},
		"redeliver, no time": {"/webhooks/redeliver", "", nil, 400, "since must be a time"},
		"store down":         {"/webhooks/redeliver?since=2026-01-02T03:04:05Z", "", goal.ErrUnavailable, 503, "store-unavailable"},
		"test":               {"/webhooks/test", `{"url":"https://example.com/x"}`, nil, 202, `{"webhook_id":"msg_1"}`},
		"test, refused URL":  {"/webhooks/test", `{"url":"http://example.com/x"}`, nil, 400, "must be https"},
		"test, no JSON":      {"/webhooks/test", `{`, nil, 400, "malformed-json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			op := &fakeOperator{err: row.err}
			webhookAdmin(op, check).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, row.path, strings.NewReader(row.body)))
			if w.Code != row.status || !strings.Contains(w.Body.String(), row.answer) {
				t.Errorf("POST %s: got %d %s, want %d with %s", row.path, w.Code, w.Body, row.status, row.answer)
			}
		})
	}
}

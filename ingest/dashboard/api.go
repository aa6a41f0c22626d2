package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// call asks the API in process, with the viewer's credentials, and decodes the
// answer into out. A refusal is a *goal.Problem.
func (d *Dashboard) call(r *http.Request, method, path string, header map[string]string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	req, err := d.request(ctx, r, method, path, body)
	if err != nil {
		return err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	rec := &recorder{header: http.Header{}, status: http.StatusOK}
	d.cfg.API.ServeHTTP(rec, req)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if rec.status >= http.StatusBadRequest {
		var p goal.Problem
		if err := json.Unmarshal(rec.body.Bytes(), &p); err != nil || p.Status == 0 {
			return fmt.Errorf("%s %s: status %d", method, path, rec.status)
		}
		return &p
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(rec.body.Bytes(), out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// request is a request to the API from the viewer. It carries no mark of the
// page that it is made for: that page's own origin was checked.
func (d *Dashboard) request(ctx context.Context, r *http.Request, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(unrouted(ctx), method, path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Host, req.RemoteAddr, req.TLS, req.RequestURI = r.Host, r.RemoteAddr, r.TLS, path
	if v, ok := visitOf(r); ok && v.authorization != "" {
		req.Header.Set("Authorization", v.authorization)
	}
	return req, nil
}

// recorder keeps an answer of the API.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

const maxAnswer = 16 << 20 // bytes; no answer of the API that is read here comes near

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	if r.body.Len()+len(p) > maxAnswer {
		return 0, errors.New("the answer is too large")
	}
	return r.body.Write(p)
}

// events opens the API's event stream and calls wake for everything that comes,
// until the stream ends. It returns the status of an answer that is no stream.
func (d *Dashboard) events(ctx context.Context, r *http.Request, path, lastID string, wake func()) (int, error) {
	req, err := d.request(ctx, r, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	s := &eventSink{header: http.Header{}, wake: wake}
	d.cfg.API.ServeHTTP(s, req)
	return s.status, nil
}

// eventSink is the writer that the API streams into.
type eventSink struct {
	header http.Header
	status int
	wake   func()
}

// Header implements http.ResponseWriter.
func (s *eventSink) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *eventSink) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter. What an event says is not read here:
// the page is rendered from the store.
func (s *eventSink) Write(p []byte) (int, error) {
	if s.status == http.StatusOK && !bytes.HasPrefix(p, []byte(":")) {
		s.wake()
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (s *eventSink) Flush() {}

var (
	_ http.Flusher = (*eventSink)(nil)
	_ io.Writer    = (*recorder)(nil)
)

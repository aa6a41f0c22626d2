package idempotency

import (
	"bytes"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

// capture is the ResponseWriter that a protected handler writes to. It keeps
// the whole answer until it is stored, then the execution sends it. An answer
// that outgrows the limit, or is a stream of events, passes through instead,
// after pass has stored that the call was executed.
//
// It offers neither Hijack nor CloseNotify nor Unwrap: a handler must not reach
// past it, and httputil.ReverseProxy would cancel the backend's request when
// the caller's connection closes. Flush does nothing for a kept answer.
type capture struct {
	w       http.ResponseWriter
	limit   int
	streams []string
	// pass is called once, before the first byte passes. It stores a tombstone
	// and sends the status and header.
	pass func()

	header  http.Header
	head    http.Header // header as it was when the status was written
	status  int         // 0 until the handler answered
	body    bytes.Buffer
	size    int
	passing bool
	stream  bool
	over    bool // the body outgrew the limit and is not kept
	at      time.Time
}

// Header implements http.ResponseWriter.
func (c *capture) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter. Informational answers go out at
// once and are not kept.
func (c *capture) WriteHeader(status int) {
	if c.status != 0 {
		return
	}
	if status >= 100 && status < 200 {
		c.inform(status)
		return
	}
	c.status, c.head, c.at = status, c.header.Clone(), time.Now()
	maps.DeleteFunc(c.head, func(k string, _ []string) bool { return strings.HasPrefix(k, http.TrailerPrefix) })
	media, _, err := mime.ParseMediaType(c.head.Get("Content-Type"))
	if c.stream = err == nil && slices.Contains(c.streams, media) && status < 300; c.stream {
		c.open()
	}
}

func (c *capture) inform(status int) {
	if status == http.StatusContinue || status == http.StatusSwitchingProtocols {
		return // the server's own business; a protected call is never upgraded
	}
	h := c.w.Header()
	maps.Copy(h, c.header)
	c.w.WriteHeader(status)
	for k := range c.header {
		delete(h, k)
	}
}

// Write implements http.ResponseWriter. A caller that went away does not make
// it fail: the handler's work goes on.
func (c *capture) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	c.size += len(p)
	if !c.over && c.size > c.limit {
		c.over = true
		if !c.passing {
			c.open()
			c.forward(c.body.Bytes())
		}
		c.body = bytes.Buffer{}
	}
	if c.passing {
		c.forward(p)
	}
	if !c.over {
		c.body.Write(p)
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (c *capture) Flush() {
	if c.status == 0 {
		return
	}
	if f, ok := c.w.(http.Flusher); ok && c.passing {
		f.Flush()
	}
}

func (c *capture) open() {
	c.pass()
	c.passing = true
}

func (c *capture) forward(p []byte) {
	_, _ = c.w.Write(p) //nolint:gosec // the backend's answer, as it is; the caller may be gone; the handler goes on
}

// answer is what was captured, once the handler has returned.
func (c *capture) answer() Answer {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	return Answer{
		Status: c.status, Header: storedHeader(c.head), Trailer: c.trailer(),
		Dropped: c.over, At: c.at.UTC(), Body: c.body.Bytes(),
	}
}

// trailer collects the fields that were declared before the body, and those
// with http.TrailerPrefix.
func (c *capture) trailer() http.Header {
	out := http.Header{}
	for _, name := range listed(c.head, "Trailer") {
		if lines, ok := c.header[name]; ok && !slices.Contains(notStored, name) {
			out[name] = lines
		}
	}
	for k, lines := range c.header {
		if name, ok := strings.CutPrefix(k, http.TrailerPrefix); ok && !slices.Contains(notStored, name) {
			out[name] = lines
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

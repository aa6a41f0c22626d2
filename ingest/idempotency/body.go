package idempotency

import (
	"bytes"
	"io"
	"net/http"
)

// setBody gives the request a body from memory. GetBody lets a Transport send
// it again on another connection when not one byte of it was written.
func setBody(r *http.Request, body []byte) {
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	r.GetBody = func() (io.ReadCloser, error) {
		if len(body) == 0 {
			return http.NoBody, nil
		}
		return io.NopCloser(bytes.NewReader(body)), nil
	}
	r.Body, _ = r.GetBody() // never fails
}

package ingest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// compressFrom is the size in bytes from which an answer is worth compressing:
// below it the answer fits into one packet anyway.
const compressFrom = 1400

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// respond encodes v and answers with it.
func (s *Server) respond(w http.ResponseWriter, r *http.Request, status int, mediaType string, v any) {
	body, err := goal.Marshal(v)
	if err != nil { // no value of ours fails to encode, unless the store holds bytes that are no JSON
		s.cfg.Log.ErrorContext(r.Context(), "answer cannot be encoded", "path", r.URL.Path, "request_id", requestID(r), "error", err)
		status, mediaType = http.StatusInternalServerError, "application/problem+json"
		body, _ = goal.Marshal(goal.NewProblem(goal.InternalError, "")) // strings and ints only
	}
	writeBody(w, r, status, mediaType, body)
}

func (s *Server) respondJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	s.respond(w, r, status, "application/json", v)
}

// writeBody sends a whole body, compressed where that pays and is wanted.
func writeBody(w http.ResponseWriter, r *http.Request, status int, mediaType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Add("Vary", "Accept-Encoding")
	if len(body) >= compressFrom && acceptsGzip(r.Header.Values("Accept-Encoding")) {
		body = compress(body)
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) //nolint:gosec // JSON, sent as such and with nosniff; an error means that the client is gone
	}
}

func compress(body []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(body) / 2)
	zw, _ := gzipWriters.Get().(*gzip.Writer) // the pool holds nothing else
	defer gzipWriters.Put(zw)
	zw.Reset(&out)
	_, _ = zw.Write(body) // writes to memory do not fail
	_ = zw.Close()
	return out.Bytes()
}

// acceptsGzip reads Accept-Encoding (RFC 9110 section 12.5.3): gzip must be
// named, or "*", and not with q=0.
func acceptsGzip(lines []string) bool {
	star := false
	for coding := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		name, params, _ := strings.Cut(coding, ";")
		wanted := !zeroQuality(params)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			return wanted
		case "*":
			star = wanted
		}
	}
	return star
}

func zeroQuality(params string) bool {
	name, value, _ := strings.Cut(strings.TrimSpace(params), "=")
	if !strings.EqualFold(strings.TrimSpace(name), "q") {
		return false
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	return err != nil || q == 0
}

// etagOf is a weak validator of a representation: the bytes sent may be
// compressed.
func etagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return `W/"` + hex.EncodeToString(sum[:12]) + `"`
}

// matches compares by the weak rule that If-None-Match has (RFC 9110 section
// 13.1.2).
func matches(ifNoneMatch []string, etag string) bool {
	want := strings.TrimPrefix(etag, "W/")
	for tag := range strings.SplitSeq(strings.Join(ifNoneMatch, ","), ",") {
		tag = strings.TrimSpace(tag)
		if tag == "*" || strings.TrimPrefix(tag, "W/") == want {
			return true
		}
	}
	return false
}

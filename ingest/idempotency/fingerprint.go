package idempotency

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Body kinds of a fingerprint. They separate the domains: no two bodies of
// different kinds have one fingerprint.
const (
	kindJSON      = "j" // canonical, numbers exact
	kindMultipart = "m" // digests of the parts, since the boundary is random
	kindRaw       = "r" // bytes as they are
)

var errTooLarge = errors.New("the decoded body is too large")

// fingerprint tells whether two requests are the same: method, path, raw query,
// media type and body. It also returns the decoded JSON body, nil for others.
// Errors: *goal.SyntaxError for JSON, errTooLarge for a compressed body beyond
// limit, others for a body that is not what its headers say.
func fingerprint(r *http.Request, body []byte, limit int64) (sum string, payload []byte, err error) {
	path, query := target(r)
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media, params = strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Type"))), nil
	}
	body, coding, err := decodeBody(r.Header.Get("Content-Encoding"), body, limit)
	if err != nil {
		return "", nil, err
	}
	kind, part := kindRaw, digestBytes(body)
	switch {
	case coding != "" || len(body) == 0:
	case isJSON(media):
		exact, err := goal.Exact(body)
		if err != nil {
			return "", nil, err
		}
		kind, part, payload = kindJSON, digestBytes(exact), body
	case strings.HasPrefix(media, "multipart/"):
		if parts, ok := multipartDigest(body, params["boundary"]); ok {
			kind, part = kindMultipart, parts
		}
	}
	return goal.Digest("gk-call-1", r.Method, path, query, media, coding, kind, part), payload, nil
}

// target is the path and query as they came over the wire: a StripPrefix
// between the server and the middleware must not make two routes one.
func target(r *http.Request) (path, query string) {
	u := r.URL
	if wire, err := url.ParseRequestURI(r.RequestURI); err == nil {
		u = wire
	}
	return u.EscapedPath(), u.RawQuery
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// decodeBody undoes gzip, whose bytes differ from one attempt to the next.
// Other codings are compared as they are, under their name.
func decodeBody(coding string, body []byte, limit int64) (decoded []byte, left string, err error) {
	coding = strings.ToLower(strings.TrimSpace(coding))
	if coding == "" || coding == "identity" {
		return body, "", nil
	}
	if coding != "gzip" && coding != "x-gzip" {
		return body, coding, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	decoded, err = io.ReadAll(io.LimitReader(z, limit+1))
	if err != nil {
		return nil, "", err
	}
	if int64(len(decoded)) > limit {
		return nil, "", errTooLarge
	}
	return decoded, "", nil
}

// multipartDigest covers each part's name, file name, type and content, in
// order. A body that is no multipart is compared byte by byte by the caller.
func multipartDigest(body []byte, boundary string) (string, bool) {
	if boundary == "" {
		return "", false
	}
	var parts []string
	mr := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		p, err := mr.NextRawPart()
		if errors.Is(err, io.EOF) {
			return goal.Digest(parts...), true
		}
		if err != nil {
			return "", false
		}
		content := sha256.New()
		if _, err := io.Copy(content, p); err != nil {
			return "", false
		}
		parts = append(parts, p.Header.Get("Content-Disposition"), p.Header.Get("Content-Type"),
			p.Header.Get("Content-Transfer-Encoding"), hex.EncodeToString(content.Sum(nil)))
	}
}

func digestBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return string(sum[:])
}

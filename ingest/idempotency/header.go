package idempotency

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// The header fields of the contract.
const (
	HeaderKey          = "Idempotency-Key"
	HeaderReplayed     = "Idempotent-Replayed"      // "true" on a stored answer
	HeaderLookup       = "X-Cache-Lookup"           // HIT or MISS
	HeaderAttempt      = "Goalkeeper-Attempt"       // to backend and caller; above 1: an earlier attempt may have taken effect
	HeaderFence        = "Goalkeeper-Fence"         // to the backend: grows with every attempt of one key
	HeaderIdempotency  = "Goalkeeper-Idempotency"   // "unrecorded": the answer is true but was not stored
	HeaderOriginalDate = "Goalkeeper-Original-Date" // when a stored answer was made
	HeaderSession      = "Goalkeeper-Session"
	HeaderStep         = "Goalkeeper-Step"
	HeaderTool         = "Goalkeeper-Tool"
	headerShouldRetry  = "X-Should-Retry"
)

const (
	lookupHit  = "HIT"
	lookupMiss = "MISS"
	unrecorded = "unrecorded"
)

// ownFields are ours to set. A backend's are dropped, since there may be
// another cache behind it, and so are a caller's Attempt and Fence.
var ownFields = []string{
	HeaderKey, HeaderReplayed, HeaderLookup, HeaderAttempt, HeaderFence, HeaderIdempotency, HeaderOriginalDate,
}

// hopByHop fields belong to one connection (RFC 9110, section 7.6.1).
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// notStored belong to one exchange or one caller: replaying them would hand a
// session or a trace to somebody else, or be wrong by then.
var notStored = []string{
	"Authentication-Info", "Authorization", "Content-Length", "Date", "Ratelimit", "Ratelimit-Limit", "Ratelimit-Policy",
	"Ratelimit-Remaining", "Ratelimit-Reset", "Set-Cookie", "Set-Cookie2", "Traceparent", "Tracestate",
	"Www-Authenticate", "X-Request-Id",
}

// storedHeader is what of h is kept. Fields with several lines keep them apart.
func storedHeader(h http.Header) http.Header {
	out := make(http.Header, len(h))
	named := connectionNamed(h)
	for k, lines := range h {
		name := textproto.CanonicalMIMEHeaderKey(k)
		if slices.Contains(hopByHop, name) || slices.Contains(notStored, name) ||
			slices.Contains(ownFields, name) || slices.Contains(named, name) {
			continue
		}
		out[k] = slices.Clone(lines)
	}
	return out
}

// connectionNamed lists the fields that Connection declares hop-by-hop.
func connectionNamed(h http.Header) []string { return listed(h, "Connection") }

func listed(h http.Header, field string) []string {
	var names []string
	for _, line := range h[field] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// quoteKey is the key as an RFC 9651 string.
func quoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// expose lists our fields for scripts in browsers, where the backend allows
// another origin at all.
func expose(h http.Header) {
	if h.Get("Access-Control-Allow-Origin") != "" {
		h.Add("Access-Control-Expose-Headers", strings.Join(append(slices.Clone(ownFields), "Retry-After"), ", "))
	}
}

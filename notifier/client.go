package notifier

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits of one attempt, from the public contract section 4.
const (
	attemptTimeout = 20 * time.Second // all of it: resolve, connect, TLS, headers
	bodyTimeout    = 2 * time.Second  // reading the answer's body, after its headers
	maxHeaders     = 64 << 10
	maxBodyRead    = 16 << 10
	tlsTimeout     = 5 * time.Second
	idleTimeout    = 30 * time.Second // below the 60 to 75 s of common servers
)

// Error classes of an attempt. They name a kind of failure, never an address.
const (
	ClassRefused  = "refused"      // the destination is not allowed
	ClassDNS      = "dns"          // the name does not resolve
	ClassConnect  = "connect"      // no connection
	ClassTLS      = "tls"          // handshake or certificate
	ClassTimeout  = "timeout"      // no answer in time
	ClassReset    = "reset"        // the connection ended before the answer
	ClassResponse = "bad_response" // not HTTP, or headers over the limit
	ClassRedirect = "redirect"     // 3xx: never followed
	ClassGone     = "gone"         // 410
	Class4xx      = "http_4xx"
	Class5xx      = "http_5xx" // and every other status
	// ClassOwn is a fault of ours; it never becomes an attempt.
	ClassOwn = "own_fault"
)

// answer is the outcome of one attempt.
type answer struct {
	status     int
	class      string // empty: success
	body       string // first goal.MaxAnswer bytes, as valid UTF-8
	retryAfter string
	took       time.Duration
	err        error // for our log only: may name addresses
}

// suspicious reports whether the outcome says something about the destination
// as a whole: outages count, an answer to this one request does not.
func (a answer) suspicious() bool {
	switch a.class {
	case ClassDNS, ClassConnect, ClassTLS, ClassTimeout, ClassReset, ClassResponse:
		return true
	}
	switch a.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// newTransport makes the one transport of all attempts. It asks no proxy,
// because a proxy would be told to connect to what the guard never sees. It
// decompresses nothing, so that the limit on read bytes is a limit on memory.
func newTransport(g *Guard, roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            g.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    tlsTimeout,
		ForceAttemptHTTP2:      true, // a DialContext of one's own switches it off
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaders,
		MaxIdleConns:           maxInFlight,
		MaxIdleConnsPerHost:    maxPerDestination,
		IdleConnTimeout:        idleTimeout,
	}
}

// post makes one attempt: it sends the body as it is and reads the verdict off
// the status line. It follows no redirect and keeps no cookie, since it uses
// the transport itself.
func (n *Notifier) post(work context.Context, t Target, header http.Header, body []byte) answer {
	ctx, cancel := context.WithTimeout(work, attemptTimeout)
	defer cancel()
	// A bytes.Reader sets GetBody: the transport can send again after an HTTP/2
	// GOAWAY. The Idempotency-Key header lets it after a stale keep-alive.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://target.invalid/", bytes.NewReader(body))
	if err != nil {
		return answer{class: ClassOwn, err: err}
	}
	req.URL, req.Host, req.Header = t.URL, t.URL.Host, header
	start := time.Now()
	res, err := n.transport.RoundTrip(req)
	if err != nil {
		return answer{class: classify(work, err), took: time.Since(start), err: err}
	}
	a := answer{status: res.StatusCode, class: statusClass(res.StatusCode), retryAfter: res.Header.Get("Retry-After")}
	if res.StatusCode == http.StatusSwitchingProtocols {
		_ = res.Body.Close() // a bare connection, which no context interrupts
	} else {
		a.body = readAnswer(res.Body, cancel)
	}
	a.took = time.Since(start)
	return a
}

// readAnswer reads a bounded part of the body in bounded time and keeps its
// start. Whatever happens to the body, the verdict stands.
func readAnswer(body io.ReadCloser, cancel func()) string {
	stop := time.AfterFunc(bodyTimeout, cancel)
	defer stop.Stop()
	var kept bytes.Buffer
	limited := io.LimitReader(body, maxBodyRead)
	_, _ = io.CopyN(&kept, limited, goal.MaxAnswer)
	_, _ = io.Copy(io.Discard, limited) // so that the connection can be used again
	_ = body.Close()
	return text(kept.Bytes())
}

// text makes an answer's bytes storable: valid UTF-8, cut at a whole character.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	if len(s) <= goal.MaxAnswer {
		return s
	}
	n := goal.MaxAnswer
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func statusClass(status int) string {
	switch {
	case status >= 200 && status <= 299:
		return ""
	case status >= 300 && status <= 399:
		return ClassRedirect
	case status == http.StatusGone:
		return ClassGone
	case status >= 400 && status <= 499:
		return Class4xx
	default:
		return Class5xx
	}
}

// classify turns a transport's error into a class.
func classify(work context.Context, err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.Is(err, ErrRefused):
		return ClassRefused
	case work.Err() != nil, ownFault(err):
		return ClassOwn // we are stopping, or this machine is out of something
	case errors.As(err, &dns):
		// A name server that fails is not the receiver's word: an outage of
		// ours would spend every delivery's attempts at once.
		if !dns.IsNotFound {
			return ClassOwn
		}
		return ClassDNS
	case isTLS(err):
		return ClassTLS
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return ClassTimeout
	case errors.As(err, &op) && op.Op == "dial":
		return ClassConnect
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ClassReset
	default:
		return ClassResponse
	}
}

// ownFault reports whether this machine could not do its part.
func ownFault(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM, syscall.ENETDOWN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func isTLS(err error) bool {
	var (
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
		alert  tls.AlertError
		op     *net.OpError
	)
	if errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &alert) {
		return true
	}
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") || strings.HasPrefix(err.Error(), "tls: ")
}

// headers of one attempt. The timestamp and the signature are the attempt's,
// the rest is the delivery's.
func (n *Notifier) headers(ctx context.Context, d goal.Delivery, at time.Time, number int, trigger goal.Trigger) (http.Header, error) {
	secrets, err := n.secrets(ctx, d.Webhook.Tenant)
	if err != nil {
		return nil, err
	}
	signature, err := Sign(secrets, d.Webhook.ID, at, []byte(d.Webhook.Body))
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", n.userAgent)
	h.Set(HeaderID, d.Webhook.ID)
	h.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(HeaderSignature, signature)
	h.Set("Idempotency-Key", d.Webhook.ID)
	h.Set("Goalkeeper-Attempt", strconv.Itoa(number))
	h.Set("Goalkeeper-Trigger", string(trigger))
	return h, nil
}

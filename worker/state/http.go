package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// HTTPConfig configures a state that is read by GET.
type HTTPConfig struct {
	// URL is a template (see tool.ParseTemplate). With {collection} and {id}
	// it reads one entity, with {collection} a member of the root, without
	// both the whole state, which must be an object.
	URL string
	// CollectionURL reads a member of the root whole, where URL reads
	// entities; empty: such members cannot be observed.
	CollectionURL string
	// Pointer is the RFC 6901 pointer of the value in the answer; empty: the
	// answer is the value.
	Pointer string
	Headers map[string]string // may hold secrets; never logged
	// MissingAsEmpty takes 404 for absent. Otherwise it is an error, since a
	// wrong URL must not look like a state.
	MissingAsEmpty bool
	Timeout        time.Duration // of one read; 0: DefaultTimeout
	MaxBytes       int64         // of one answer; 0: DefaultMaxBytes
}

// HTTP is a state that is read by GET. The ETag of an observation is that of
// the answer, if one read was enough and the tag is strong: a weak one may
// stay the same while the value changes (RFC 9110 section 8.8.1).
type HTTP struct {
	cfg       HTTPConfig
	url       *tool.Template
	member    *tool.Template // nil: none
	scope     scope
	transport *http.Transport
	client    *http.Client
}

// NewHTTP checks the configuration. Close it at the end.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	h := &HTTP{cfg: cfg}
	var err error
	if h.url, err = tool.ParseTemplate(cfg.URL); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if h.scope, err = scopeOf(h.url.Arguments()); err != nil {
		return nil, fmt.Errorf("state: URL: %w", err)
	}
	if cfg.CollectionURL != "" {
		if h.member, err = tool.ParseTemplate(cfg.CollectionURL); err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
		if s, err := scopeOf(h.member.Arguments()); err != nil || s != wholeMember || h.scope != oneEntity {
			return nil, errors.New("state: a collection URL has {collection}, and goes with a URL that has {collection} and {id}")
		}
	}
	if err := checkPointer(cfg.Pointer); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if h.cfg.Timeout == 0 {
		h.cfg.Timeout = DefaultTimeout
	}
	if h.cfg.MaxBytes == 0 {
		h.cfg.MaxBytes = DefaultMaxBytes
	}
	h.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
	}
	h.client = &http.Client{Transport: h.transport, CheckRedirect: sameOrigin}
	return h, nil
}

// scopeOf is how much a template with these places reads.
func scopeOf(places []string) (scope, error) {
	switch {
	case len(places) == 0:
		return wholeState, nil
	case slices.Equal(places, []string{"collection"}):
		return wholeMember, nil
	case slices.Equal(places, []string{"collection", "id"}):
		return oneEntity, nil
	default:
		return 0, fmt.Errorf("places are {collection} and {id}, or {collection}, or none: not %q", places)
	}
}

// sameOrigin keeps configured secrets where they belong.
func sameOrigin(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

// Close closes idle connections.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Observe implements agent.State.
func (h *HTTP) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	return observe(ctx, entities, h.scope, h.read)
}

func (h *HTTP) read(ctx context.Context, e agent.Entity) (answer, error) {
	template := h.url
	if h.scope == oneEntity && e.ID == "" {
		if template = h.member; template == nil {
			return answer{}, errWhole
		}
	}
	u, err := template.Expand(map[string]any{"collection": e.Collection, "id": e.ID})
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	return h.get(ctx, u)
}

func (h *HTTP) get(ctx context.Context, u *url.URL) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return answer{}, errors.New("the request could not be made")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Cache-Control", "no-cache") // a cache between would show the past
	req.Header.Set("User-Agent", "goalkeeper")
	for name, value := range h.cfg.Headers {
		req.Header.Set(name, value)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return answer{}, withoutURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound && h.cfg.MissingAsEmpty {
		return answer{}, nil
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, h.cfg.MaxBytes+1))
	if err != nil {
		return answer{}, fmt.Errorf("read the answer: %w", err)
	}
	if int64(len(raw)) > h.cfg.MaxBytes {
		return answer{}, fmt.Errorf("the answer is larger than %d bytes", h.cfg.MaxBytes)
	}
	a, err := decode(raw, h.cfg.Pointer)
	if etag := resp.Header.Get("ETag"); !strings.HasPrefix(etag, "W/") {
		a.etag = etag
	}
	return a, err
}

// withoutURL drops the URL, whose query may hold secrets, from a client's error.
func withoutURL(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err
	}
	return err
}

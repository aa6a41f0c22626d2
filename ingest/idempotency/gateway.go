package idempotency

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// GatewayConfig makes a [Gateway].
type GatewayConfig struct {
	// Guard holds what all routes share: Store, Tenant, MaxWaiters, StoreTimeout,
	// Registerer, Log. Its other fields are the routes' defaults.
	Guard  Config
	Routes []Route
}

// Route sends the requests below a path to one upstream. Zero values mean the
// defaults of the gateway's Guard, and for the two timeouts the ones named.
type Route struct {
	Name     string `yaml:"name"`     // for logs and metrics; default Path
	Path     string `yaml:"path"`     // whole segments: /pay matches /pay and /pay/x, not /payments; the longest wins
	Upstream string `yaml:"upstream"` // http or https URL; its path goes before the request's
	// StripPath removes Path before the request is forwarded.
	StripPath bool `yaml:"strip_path"`
	// PreserveHost forwards the caller's Host instead of the upstream's.
	PreserveHost bool `yaml:"preserve_host"`
	// Unprotected forwards every method without the contract.
	Unprotected bool `yaml:"unprotected"`

	ConnectTimeout time.Duration `yaml:"connect_timeout"` // default 5 s
	// Timeout of a protected call's whole exchange, and for what passes
	// unprotected, of the wait for the answer's header. Default 2 min.
	Timeout time.Duration `yaml:"timeout"`
	// TLS configures the connections to an https upstream. Default: the system's roots.
	TLS *tls.Config `yaml:"-"`

	Lease             time.Duration `yaml:"lease"`
	ResultTTL         time.Duration `yaml:"result_ttl"`
	MaxRequest        int64         `yaml:"max_request"`
	MaxResponse       int64         `yaml:"max_response"`
	StreamTypes       []string      `yaml:"stream_types"`
	OnAmbiguous       Ambiguous     `yaml:"on_ambiguous"`
	RequireDerivedKey bool          `yaml:"require_derived_key"`
	SlotGuard         bool          `yaml:"slot_guard"`
}

// Gateway is a reverse proxy that protects backends in any language. It is an
// http.Handler, safe for concurrent use.
type Gateway struct {
	routes []*route // longest path first
}

type route struct {
	path    string
	handler http.Handler
	guard   *Guard
	close   func()
}

// NewGateway checks the configuration; it does not connect to the upstreams.
func NewGateway(cfg GatewayConfig) (*Gateway, error) {
	if len(cfg.Routes) == 0 {
		return nil, errors.New("idempotency: the gateway has no routes")
	}
	m, err := newMetrics(cfg.Guard.Registerer)
	if err != nil {
		return nil, err
	}
	g := &Gateway{}
	for _, r := range cfg.Routes {
		built, err := r.build(cfg.Guard, m)
		if err != nil {
			return nil, fmt.Errorf("route %q: %w", r.Path, err)
		}
		if slices.ContainsFunc(g.routes, func(other *route) bool { return other.path == built.path }) {
			return nil, fmt.Errorf("route %q is there twice", r.Path)
		}
		g.routes = append(g.routes, built)
	}
	slices.SortFunc(g.routes, func(a, b *route) int { return len(b.path) - len(a.path) })
	return g, nil
}

// Close ends what still writes to the store and closes idle connections. The
// HTTP server must have been shut down.
func (g *Gateway) Close() {
	for _, r := range g.routes {
		r.guard.Close()
		r.close()
	}
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if dotted(r.URL.Path) {
		// A backend that resolves them would see another route than we do.
		writeProblem(w, goal.NewProblem(goal.NotFound, "The path has dot segments."))
		return
	}
	for _, route := range g.routes {
		if below(r.URL.Path, route.path) {
			route.handler.ServeHTTP(w, r)
			return
		}
	}
	writeProblem(w, goal.NewProblem(goal.NotFound, "No route leads there."))
}

func dotted(p string) bool {
	for segment := range strings.FieldsFuncSeq(p, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// below reports whether p is prefix or lies below it; prefix has no final slash.
func below(p, prefix string) bool {
	rest, ok := strings.CutPrefix(p, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

func (r Route) build(shared Config, m *metrics) (*route, error) {
	target, err := url.Parse(r.Upstream)
	switch {
	case err != nil:
		return nil, errors.New("the upstream is no URL")
	case target.Scheme != "http" && target.Scheme != "https", target.Host == "", target.User != nil, target.RawQuery != "":
		return nil, errors.New("the upstream must be an http or https URL with a host, without user and query")
	case !strings.HasPrefix(r.Path, "/") || path.Clean(r.Path) != strings.TrimSuffix(r.Path, "/") && r.Path != "/":
		return nil, errors.New("the path must start with / and have no dot or empty segments")
	case r.Timeout < 0 || r.ConnectTimeout < 0:
		return nil, errors.New("a timeout is negative")
	}
	fill(&r.Name, r.Path)
	fill(&r.Timeout, 2*time.Minute)
	fill(&r.ConnectTimeout, 5*time.Second)
	cfg, err := r.over(shared).withDefaults()
	if err != nil {
		return nil, err
	}
	r.Path = strings.TrimSuffix(r.Path, "/")
	guard := newGuard(cfg, m)
	proxy, closeIdle := r.proxy(target, cfg)
	out := &route{path: r.Path, handler: guard.Wrap(proxy), guard: guard, close: closeIdle}
	if r.Unprotected {
		out.handler = proxy
	}
	return out, nil
}

// over returns the shared configuration with what the route sets itself.
func (r Route) over(c Config) Config {
	c.Name, c.MaxRun = r.Name, r.Timeout
	override(&c.Lease, r.Lease)
	override(&c.ResultTTL, r.ResultTTL)
	override(&c.MaxRequest, r.MaxRequest)
	override(&c.MaxResponse, r.MaxResponse)
	override(&c.OnAmbiguous, r.OnAmbiguous)
	override(&c.RequireDerivedKey, r.RequireDerivedKey)
	override(&c.SlotGuard, r.SlotGuard)
	if len(r.StreamTypes) > 0 {
		c.StreamTypes = r.StreamTypes
	}
	return c
}

func override[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

package ingest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Principal is who calls.
type Principal struct {
	Tenant string
	Name   string // of the key, for logs; never the key
	Roles  []string
}

// Has reports whether the caller has the role.
func (p Principal) Has(role string) bool { return slices.Contains(p.Roles, role) }

// May reports whether a caller may use what names these roles. No roles:
// everybody.
func (p Principal) May(roles []string) bool {
	return len(roles) == 0 || slices.ContainsFunc(roles, p.Has)
}

// Authenticator says who calls. A *goal.Problem is shown to the caller. It is
// called concurrently, for every request.
type Authenticator interface {
	Authenticate(r *http.Request) (Principal, error)
}

// Key is an API key as it is configured. The key itself is stored nowhere.
type Key struct {
	SHA256 string // lower-case hex of the key's SHA-256, see HashKey
	Tenant string
	Name   string
	Roles  []string
}

// HashKey is the form in which an API key is configured.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Keys authenticates by bearer keys (RFC 6750). The set can be replaced while
// requests are served.
type Keys struct {
	set atomic.Pointer[[]hashedKey]
}

type hashedKey struct {
	sum [sha256.Size]byte
	who Principal
}

// NewKeys checks the keys and makes an Authenticator of them.
func NewKeys(keys []Key) (*Keys, error) {
	k := &Keys{}
	if err := k.Replace(keys); err != nil {
		return nil, err
	}
	return k, nil
}

// Replace puts other keys into force at once, or changes nothing and returns an
// error. It may be called concurrently with everything.
func (k *Keys) Replace(keys []Key) error {
	set := make([]hashedKey, 0, len(keys))
	seen := map[[sha256.Size]byte]bool{}
	for i, key := range keys {
		raw, err := hex.DecodeString(key.SHA256)
		if err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("api key %d (%s): sha256 must be 64 hex digits", i+1, key.Name)
		}
		if !goal.ValidTenant(key.Tenant) {
			return fmt.Errorf("api key %d (%s): tenant %q is not a name", i+1, key.Name, key.Tenant)
		}
		sum := [sha256.Size]byte(raw)
		if seen[sum] {
			return fmt.Errorf("api key %d (%s): the same key is configured twice", i+1, key.Name)
		}
		seen[sum] = true
		set = append(set, hashedKey{sum: sum, who: Principal{Tenant: key.Tenant, Name: key.Name, Roles: slices.Clone(key.Roles)}})
	}
	k.set.Store(&set)
	return nil
}

// Authenticate implements Authenticator. Every key is compared, in constant
// time, so that the time says nothing about the keys.
func (k *Keys) Authenticate(r *http.Request) (Principal, error) {
	token, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	sum := sha256.Sum256([]byte(token))
	set := *k.set.Load()
	found := -1
	for i := range set {
		if subtle.ConstantTimeCompare(set[i].sum[:], sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Principal{}, goal.NewProblem(goal.Unauthenticated, "The API key is not known.")
	}
	return set[found].who, nil
}

func bearer(r *http.Request) (string, error) {
	lines := r.Header.Values("Authorization")
	if len(lines) == 0 {
		return "", goal.NewProblem(goal.Unauthenticated, "An Authorization header with a bearer key is needed.")
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	token = strings.Trim(token, " ")
	if len(lines) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", goal.NewProblem(goal.Unauthenticated, `The Authorization header must be "Bearer" and one key.`)
	}
	return token, nil
}

// Anonymous lets everybody in as one tenant. It is for a server without keys,
// which must listen on loopback only (MustBeLoopback). So that a web page cannot
// reach it through a name of its own that resolves to loopback (DNS rebinding),
// the Host must be a loopback address or localhost.
func Anonymous(tenant string, roles ...string) Authenticator {
	return anonymous{who: Principal{Tenant: tenant, Name: "anonymous", Roles: roles}}
}

// AnonymousEverywhere is Anonymous under any Host: for a server without keys
// that listens beyond loopback, in a network whose every member may do
// everything.
func AnonymousEverywhere(tenant string, roles ...string) Authenticator {
	return anonymous{who: Principal{Tenant: tenant, Name: "anonymous", Roles: roles}, everywhere: true}
}

type anonymous struct {
	who        Principal
	everywhere bool // whatever the Host
}

func (a anonymous) Authenticate(r *http.Request) (Principal, error) {
	if a.everywhere {
		return a.who, nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if !loopbackHost(strings.Trim(host, "[]")) {
		return Principal{}, goal.NewProblem(goal.Forbidden, "Without configured API keys only localhost is served.")
	}
	return a.who, nil
}

// ErrNotLoopback is returned by MustBeLoopback.
var ErrNotLoopback = errors.New("without configured API keys the server listens on loopback only")

// MustBeLoopback returns an error unless the listen address is a loopback one:
// "localhost:8080", "127.0.0.1:8080", "[::1]:8080". An empty host listens
// everywhere and is refused.
func MustBeLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", addr, err)
	}
	if !loopbackHost(host) {
		return fmt.Errorf("listen address %q: %w", addr, ErrNotLoopback)
	}
	return nil
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

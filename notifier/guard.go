package notifier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrRefused says that a URL or an address may not be called. What it wraps is
// for the operator's log; a tenant is told no more than the class.
var ErrRefused = errors.New("destination is not allowed")

// refused4 are the IPv4 ranges that are not public: the IANA special-purpose
// registry, multicast, reserved, and the Azure host agent, which has a public
// address.
var refused4 = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
	"192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
)

// allowed6 is the only IPv6 space in public use; refused6 are the special
// ranges inside it: Teredo, ORCHID and benchmarking, documentation, 6to4,
// AS112. All that lies outside (mapped, compatible, NAT64, ULA, link-local,
// multicast …) is refused without being named.
var (
	allowed6 = netip.MustParsePrefix("2000::/3")
	refused6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)

// metadata addresses hand out credentials of the machine: no wider exception
// opens them, only one for the single address.
var metadata = prefixes(
	"169.254.0.0/16",     // AWS, GCP, Azure and most others; ECS and EKS beside it
	"100.100.100.200/32", // Alibaba
	"168.63.129.16/32",   // Azure host agent
	"192.0.0.192/32",     // Oracle
	"fd00:ec2::/32",      // AWS
	"fd20:ce::254/128",   // GCP
)

// IPv6 ranges whose addresses lead to an IPv4 address.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	nat64Own  = netip.MustParsePrefix("64:ff9b:1::/48")
	compat4   = netip.MustParsePrefix("::/96")
	siit      = netip.MustParsePrefix("::ffff:0:0:0/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func within(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// public reports whether a is an address of the public internet.
func public(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	if a = a.Unmap(); a.Is4() {
		return !within(refused4, a)
	}
	return allowed6.Contains(a) && !within(refused6, a)
}

// embedded is the IPv4 address that an IPv6 address leads to by way of a
// translator, or the invalid address.
func embedded(a netip.Addr) netip.Addr {
	b := a.As16()
	switch {
	case nat64.Contains(a), nat64Own.Contains(a), compat4.Contains(a), siit.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}

func isMetadata(a netip.Addr) bool {
	if a.Is6() {
		if v4 := embedded(a); v4.IsValid() && within(metadata, v4) {
			return true
		}
	}
	return within(metadata, a)
}

// exception is one entry of the operator's allow list.
type exception struct {
	prefix netip.Prefix // valid: an address entry
	host   string       // else: a name; with a leading dot every name below it
	port   uint16       // 0: any
}

func (e exception) matchesPort(port uint16) bool { return e.port == 0 || e.port == port }

func (e exception) matchesHost(host string) bool {
	if e.host == "" {
		return false
	}
	if strings.HasPrefix(e.host, ".") {
		return strings.HasSuffix(host, e.host)
	}
	return host == e.host
}

// Guard decides which URLs may be called and which addresses connected to. It
// never changes, and may be used by many at the same time.
type Guard struct {
	exceptions []exception
	resolver   *net.Resolver
}

// NewGuard makes a guard that lets only public addresses pass, and what the
// operator lists beside them. An entry is a CIDR, an address, a host name or
// "*.suffix", each with ":port" if it is for one port only ("[::1]:8080" for
// IPv6). Entries are additions, never an exclusive list. A host entry permits
// what the name resolves to, except loopback and link-local addresses (unless
// the name is localhost itself). Metadata addresses pass only by an entry for
// the one address. For listed destinations http is allowed, too.
func NewGuard(exceptions ...string) (*Guard, error) {
	g := &Guard{resolver: &net.Resolver{PreferGo: true}} // the C resolver takes 127.1 and 0x7f000001
	for _, text := range exceptions {
		e, err := parseException(text)
		if err != nil {
			return nil, err
		}
		g.exceptions = append(g.exceptions, e)
	}
	return g, nil
}

func parseException(text string) (exception, error) {
	body, port, err := splitPort(strings.TrimSpace(text))
	if err != nil {
		return exception{}, fmt.Errorf("allowed destination %q: %w", text, err)
	}
	if p, err := netip.ParsePrefix(body); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return exception{prefix: p.Masked(), port: port}, nil
	}
	if a, err := netip.ParseAddr(body); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return exception{prefix: netip.PrefixFrom(a, a.BitLen()), port: port}, nil
	}
	name, wild := strings.CutPrefix(body, "*.")
	host, err := asciiHost(name)
	if err != nil {
		return exception{}, fmt.Errorf("allowed destination %q: neither CIDR, address nor host name", text)
	}
	if wild {
		host = "." + host
	}
	return exception{host: host, port: port}, nil
}

// splitPort cuts ":port" off an entry, and the brackets of an IPv6 address.
func splitPort(text string) (body string, port uint16, err error) {
	if _, err := netip.ParseAddr(text); err == nil {
		return text, 0, nil
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return text, 0, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 || strings.HasSuffix(text, "]") {
		return strings.Trim(text, "[]"), 0, nil
	}
	n, err := strconv.ParseUint(text[i+1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, errors.New("bad port")
	}
	return strings.Trim(text[:i], "[]"), uint16(n), nil
}

// address reports whether the guard lets a connection to host (as it was
// named), address and port pass.
func (g *Guard) address(host string, a netip.Addr, port uint16) error {
	if !a.IsValid() || a.Zone() != "" {
		return fmt.Errorf("%w: address has a zone or is none", ErrRefused)
	}
	a = a.Unmap()
	meta := isMetadata(a)
	for _, e := range g.exceptions {
		if e.matchesPort(port) && e.permits(host, a, meta) {
			return nil
		}
	}
	if meta || !public(a) {
		return fmt.Errorf("%w: %s is not a public address", ErrRefused, a)
	}
	return nil
}

// permits reports whether the entry opens the address.
func (e exception) permits(host string, a netip.Addr, meta bool) bool {
	if e.prefix.IsValid() {
		return e.prefix.Contains(a) && (!meta || e.prefix.IsSingleIP())
	}
	if meta || !e.matchesHost(host) {
		return false
	}
	local := a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast()
	return !local || (e.host == "localhost" && a.IsLoopback())
}

// listed reports whether an entry names the destination itself, so that http
// and names without a dot are allowed for it.
func (g *Guard) listed(host string, port uint16) bool {
	a, err := netip.ParseAddr(host)
	for _, e := range g.exceptions {
		switch {
		case !e.matchesPort(port):
		case err == nil && e.permits(host, a.Unmap(), isMetadata(a.Unmap())):
			return true
		case err != nil && e.matchesHost(host):
			return true
		}
	}
	return false
}

// hostKey carries the name that is dialed to the hook that sees its addresses.
type hostKey struct{}

// DialContext connects to address ("host:port") if every rule allows the
// address that is really connected to: the check runs after name resolution, on
// the socket, so that a name which changes its address has no window. Refusals
// match ErrRefused. It fits http.Transport.DialContext. Dials end after 5 s.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	d := net.Dialer{Timeout: dialTimeout, Resolver: g.resolver, ControlContext: g.control}
	return d.DialContext(context.WithValue(ctx, hostKey{}, canonicalName(host)), network, address)
}

// dialTimeout bounds resolution and connecting together.
const dialTimeout = 5 * time.Second

// control is the hook: it sees each candidate address just before connect(2).
// What it cannot parse it refuses (an empty host arrives as ":80").
func (g *Guard) control(ctx context.Context, network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%w: network %s", ErrRefused, network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", ErrRefused, address)
	}
	host, _ := ctx.Value(hostKey{}).(string)
	return g.address(host, ap.Addr(), ap.Port())
}

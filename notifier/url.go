package notifier

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// maxURL is the longest URL that is taken, in bytes.
const maxURL = 2048

// Target is a URL that may be called: its path and query exactly as they were
// given, its host in the ASCII form that is dialed.
type Target struct {
	URL  *url.URL
	Host string // lower case, ASCII, without a final dot; an address without brackets
	Port uint16
}

// origin names the destination that limits and breakers are kept for.
func (t Target) origin() string {
	return t.URL.Scheme + "://" + t.Host + ":" + strconv.Itoa(int(t.Port))
}

// CheckURL reports whether a webhook URL can be taken when it is submitted. It
// asks no name server: a host name that resolves to a forbidden address is
// refused when it is connected to. The error matches ErrRefused and may be
// shown to the caller.
func (g *Guard) CheckURL(raw string) error {
	_, err := g.Target(raw)
	return err
}

// Target checks a URL and makes it ready to be called.
func (g *Guard) Target(raw string) (Target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return Target{}, err
	}
	host, err := urlHost(u)
	if err != nil {
		return Target{}, err
	}
	port, err := urlPort(u)
	if err != nil {
		return Target{}, err
	}
	listed := g.listed(host, port)
	if u.Scheme == "http" && !listed {
		return Target{}, fmt.Errorf("%w: the scheme must be https", ErrRefused)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if g.address(host, a, port) != nil {
			return Target{}, fmt.Errorf("%w: the address is not public", ErrRefused)
		}
	} else if !listed && localName(host) {
		return Target{}, fmt.Errorf("%w: the host is not a public name", ErrRefused)
	}
	u.Host = hostPort(host, u.Port())
	return Target{URL: u, Host: host, Port: port}, nil
}

// parseURL takes only what has one meaning for every parser.
func parseURL(raw string) (*url.URL, error) {
	if raw == "" || len(raw) > maxURL {
		return nil, fmt.Errorf("%w: the URL must have 1 to %d bytes", ErrRefused, maxURL)
	}
	for i := range len(raw) {
		if c := raw[i]; c <= ' ' || c == 0x7f || c == '\\' {
			return nil, fmt.Errorf("%w: the URL holds a space, a control character or a backslash", ErrRefused)
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the URL cannot be read", ErrRefused) // url.Error would repeat the query
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%w: the scheme must be https", ErrRefused)
	case u.Opaque != "" || u.Host == "":
		return nil, fmt.Errorf("%w: the URL names no host", ErrRefused)
	case u.User != nil:
		return nil, fmt.Errorf("%w: the URL holds a user or password", ErrRefused)
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, fmt.Errorf("%w: the URL holds a fragment", ErrRefused)
	}
	return u, nil
}

// urlHost is the host in the form that is dialed.
func urlHost(u *url.URL) (string, error) {
	h := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		a, err := netip.ParseAddr(h)
		if err != nil || !a.Is6() || a.Zone() != "" {
			return "", fmt.Errorf("%w: the host is not an IPv6 address", ErrRefused)
		}
		return a.String(), nil
	}
	if a, err := netip.ParseAddr(h); err == nil && a.Is4() {
		return a.String(), nil
	}
	host, err := asciiHost(h)
	if err != nil {
		return "", fmt.Errorf("%w: the host is not a valid name", ErrRefused)
	}
	return host, nil
}

func urlPort(u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		if strings.HasSuffix(u.Host, ":") {
			return 0, fmt.Errorf("%w: the port is empty", ErrRefused)
		}
		if u.Scheme == "http" {
			return 80, nil
		}
		return 443, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: the port must be 1 to 65535", ErrRefused)
	}
	return uint16(n), nil
}

// asciiHost maps a name as net/http will (IDNA lookup), and refuses what then
// reads as an address: circled and full-width digits, and every spelling of
// inet_aton (decimal, octal, hexadecimal, short), which ends in a number.
func asciiHost(name string) (string, error) {
	host, err := idna.Lookup.ToASCII(strings.ToLower(name))
	if err != nil {
		// The lookup profile refuses underscores, which names in use have.
		if host, err = asciiName(name); err != nil {
			return "", err
		}
	}
	host = canonicalName(host)
	if host == "" || len(host) > 253 || strings.Contains(host, "..") || strings.HasPrefix(host, ".") || strings.HasSuffix(host, ".") {
		return "", fmt.Errorf("%w: not a host name", ErrRefused)
	}
	if numeric(host[strings.LastIndexByte(host, '.')+1:]) {
		return "", fmt.Errorf("%w: the host ends in a number", ErrRefused)
	}
	return host, nil
}

// asciiName accepts a plain ASCII name with underscores.
func asciiName(name string) (string, error) {
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return "", fmt.Errorf("%w: not a host name", ErrRefused)
		}
	}
	return strings.ToLower(name), nil
}

// canonicalName is a name in lower case without the dot of the root.
func canonicalName(host string) string {
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// numeric reports whether a last label would be read as a number (URL standard,
// "ends in a number").
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// localName reports whether a name can only mean something inside.
func localName(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal", ".localdomain", ".home.arpa", ".intranet", ".lan"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// hostPort puts a host and an optional port together again.
func hostPort(host, port string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == "" {
		return host
	}
	return host + ":" + port
}

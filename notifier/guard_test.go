package notifier

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustGuard(t testing.TB, exceptions ...string) *Guard { //nolint:thelper // fails only on a typing error in a test
	g, err := NewGuard(exceptions...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// hostile are addresses that must never be connected to, one at least for every
// range, at its edges where there is room.
var hostile = []string{
	"0.0.0.0", "0.1.2.3", "10.0.0.0", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.255.255.254",
	"168.63.129.16", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1",
	"192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "192.175.48.1", "198.18.0.1", "198.19.255.255",
	"198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
	"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1",
	"64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "100:0:0:1::1", "2001::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1",
	"2002:7f00:1::", "2002:0808:0808::1", "2620:4f:8000::1", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "febf::1",
	"fec0::1", "ff02::1", "ff0e::1", "1fff::1", "e000::1",
}

var friendly = []string{"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "168.63.129.17", "172.32.0.1", "192.0.1.1", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001:80b::200e", "2001:4860:4860::8888", "2620:4f:8001::1", "3ffe::1"}

// control is what the dialer asks before each connect.
func control(g *Guard, host, network, address string) error {
	return g.control(context.WithValue(context.Background(), hostKey{}, host), network, address, nil)
}

func networkOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "tcp4"
	}
	return "tcp6"
}

func TestGuardAddresses(t *testing.T) {
	t.Parallel()
	g := mustGuard(t)
	for _, text := range hostile {
		a := netip.MustParseAddr(text)
		if err := control(g, "example.com", networkOf(a), netip.AddrPortFrom(a, 443).String()); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: control = %v, want refused", text, err)
		}
		host := text
		if a.Is6() {
			host = "[" + text + "]"
		}
		if err := g.CheckURL("https://" + host + "/"); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: CheckURL = %v, want refused", text, err)
		}
	}
	for _, text := range friendly {
		a := netip.MustParseAddr(text)
		if err := control(g, "example.com", networkOf(a), netip.AddrPortFrom(a, 443).String()); err != nil {
			t.Errorf("%s: control = %v, want passed", text, err)
		}
	}
}

func TestGuardRefusesWhatItCannotParse(t *testing.T) {
	t.Parallel()
	g := mustGuard(t, "0.0.0.0/0", "::/0")
	for _, tt := range []struct{ name, network, address string }{
		{"no address", "tcp4", ":9"},
		{"zone", "tcp6", "[fe80::1%lo]:9"},
		{"zone on a public address", "tcp6", "[2606:4700::1111%eth0]:443"},
		{"name", "tcp4", "example.com:443"},
		{"no port", "tcp4", "1.1.1.1"},
		{"udp", "udp4", "1.1.1.1:443"},
		{"unix", "unix", "/run/docker.sock"},
		{"empty", "tcp4", ""},
	} {
		if err := control(g, "example.com", tt.network, tt.address); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: control = %v, want refused", tt.name, err)
		}
	}
}

// Whatever IPv6 address leads to an IPv4 address is no way around the IPv4 rules.
func TestGuardSeesThroughMappedAddresses(t *testing.T) {
	t.Parallel()
	g := mustGuard(t)
	rapid.Check(t, func(t *rapid.T) {
		v4 := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
		mapped := netip.AddrFrom16(v4.As16())
		want := g.address("", v4, 443) == nil
		if got := g.address("", mapped, 443) == nil; got != want {
			t.Fatalf("%s passes: %v, %s passes: %v", v4, want, mapped, got)
		}
		b := v4.As4()
		for _, prefix := range []string{"64:ff9b::", "::", "::ffff:0:0:0"} {
			p := netip.MustParseAddr(prefix).As16()
			copy(p[12:], b[:])
			if g.address("", netip.AddrFrom16(p), 443) == nil {
				t.Fatalf("%s passes", netip.AddrFrom16(p))
			}
		}
	})
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	g := mustGuard(t)
	for _, tt := range []struct {
		name, url string
		ok        bool
	}{
		{"plain", "https://example.com/hooks/goals", true},
		{"port and query", "https://example.com:8443/a%2Fb/?q=%20&q", true},
		{"no path", "https://example.com", true},
		{"upper case", "HTTPS://EXAMPLE.COM/", true},
		{"IDN", "https://bücher.example/", true},
		{"punycode", "https://xn--bcher-kva.example/", true},
		{"underscore", "https://my_hook.example.com/", true},
		{"dot of the root", "https://example.com./", true},
		{"public IPv4", "https://1.1.1.1/", true},
		{"public IPv6", "https://[2606:4700::1111]/", true},
		{"digits inside a name", "https://127.0.0.1.example.com/", true},

		{"http", "http://example.com/", false},
		{"ftp", "ftp://example.com/", false},
		{"file", "file:///etc/passwd", false},
		{"gopher", "gopher://example.com/", false},
		{"unix", "http+unix://%2Frun%2Fdocker.sock/", false},
		{"no scheme", "//example.com/", false},
		{"opaque", "https:example.com", false},
		{"relative", "example.com/hook", false},
		{"empty", "", false},
		{"too long", "https://example.com/" + strings.Repeat("x", 2048), false},
		{"empty host", "https:///hook", false},
		{"port only", "https://:443/", false},
		{"empty port", "https://example.com:/", false},
		{"port 0", "https://example.com:0/", false},
		{"port 65536", "https://example.com:65536/", false},
		{"user", "https://user@example.com/", false},
		{"user and password", "https://example.com:x@127.0.0.1/", false},
		{"empty user", "https://@example.com/", false},
		{"fragment", "https://example.com/#x", false},
		{"empty fragment", "https://example.com/#", false},
		{"space", "https://example.com/a b", false},
		{"newline", "https://example.com/\nHost: x", false},
		{"tab", "https://exa\tmple.com/", false},
		{"NUL", "https://example.com/\x00", false},
		{"DEL", "https://example.com/\x7f", false},
		{"backslash", `https://example.com\@127.0.0.1/`, false},
		{"percent in the host", "https://%31%32%37.0.0.1/", false},
		{"percent NUL", "https://example.com%00/", false},
		{"bad percent in the path", "https://example.com/%zz", false},
		{"short", "https://127.1/", false},
		{"decimal", "https://2130706433/", false},
		{"hexadecimal", "https://0x7f000001/", false},
		{"hexadecimal parts", "https://0x7f.0x0.0x0.0x1/", false},
		{"octal", "https://0177.0.0.1/", false},
		{"zero", "https://0/", false},
		{"empty hexadecimal", "https://example.0x/", false},
		{"numeric last label", "https://example.12/", false},
		{"circled digits", "https://①②⑦.⓪.⓪.①/", false},
		{"full-width digits", "https://１２７.０.０.１/", false},
		{"ideographic stops", "https://127。0。0。1/", false},
		{"mapped to localhost", "https://ｌｏｃａｌｈｏｓｔ/", false},
		{"soft hyphen", "https://local\u00adhost/", false},
		{"address with a root dot", "https://127.0.0.1./", false},
		{"two root dots", "https://example.com../", false},
		{"empty label", "https://example..com/", false},
		{"leading dot", "https://.example.com/", false},
		{"only a dot", "https://./", false},
		{"localhost", "https://localhost/", false},
		{"localhost with a root dot", "https://localhost./", false},
		{"below localhost", "https://a.localhost/", false},
		{"local", "https://printer.local/", false},
		{"internal", "https://metadata.google.internal/", false},
		{"single label", "https://kubernetes/", false},
		{"loopback", "https://127.0.0.1/", false},
		{"IPv6 loopback", "https://[::1]/", false},
		{"mapped", "https://[::ffff:127.0.0.1]/", false},
		{"mapped, hexadecimal", "https://[::ffff:7f00:1]/", false},
		{"NAT64", "https://[64:ff9b::7f00:1]/", false},
		{"zone", "https://[fe80::1%25eth0]/", false},
		{"zone on a public address", "https://[2606:4700::1111%25eth0]/", false},
		{"IPv4 in brackets", "https://[127.0.0.1]/", false},
		{"name in brackets", "https://[example.com]/", false},
		{"bare IPv6", "https://::1/", false},
		{"unspecified", "https://[::]/", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := g.CheckURL(tt.url)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("CheckURL(%q) = %v, want ok %v", tt.url, err, tt.ok)
			}
		})
	}
}

func TestTargetKeepsPathAndQuery(t *testing.T) {
	t.Parallel()
	g := mustGuard(t)
	for _, tt := range []struct{ url, host, uri string }{
		{"https://Example.COM/Hooks/", "example.com", "/Hooks/"},
		{"https://example.com", "example.com", "/"},
		{"https://example.com?x=1", "example.com", "/?x=1"},
		{"https://example.com/a%2Fb/../c//d/?", "example.com", "/a%2Fb/../c//d/?"},
		{"https://example.com/%7Ea/%e4?q=a+b&q=%zz;c", "example.com", "/%7Ea/%e4?q=a+b&q=%zz;c"},
		{"https://bücher.example:8443/", "xn--bcher-kva.example:8443", "/"},
		{"https://[2606:4700:0::1111]/", "[2606:4700::1111]", "/"},
		{"https://example.com.:443/x", "example.com:443", "/x"},
	} {
		target, err := g.Target(tt.url)
		if err != nil {
			t.Errorf("Target(%q): %v", tt.url, err)
			continue
		}
		if target.URL.Host != tt.host || target.URL.RequestURI() != tt.uri {
			t.Errorf("Target(%q) = %s %s, want %s %s", tt.url, target.URL.Host, target.URL.RequestURI(), tt.host, tt.uri)
		}
	}
}

func TestExceptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		exceptions []string
		host, addr string
		ok         bool
	}{
		{"CIDR", []string{"10.0.0.0/8"}, "x.example", "10.1.2.3:443", true},
		{"outside the CIDR", []string{"10.0.0.0/8"}, "x.example", "11.1.2.3:443", true},
		{"another private one", []string{"10.0.0.0/8"}, "x.example", "192.168.1.1:443", false},
		{"mapped form", []string{"10.0.0.0/8"}, "x.example", "[::ffff:10.1.2.3]:443", true},
		{"CIDR in mapped form", []string{"::ffff:10.0.0.0/104"}, "x.example", "10.1.2.3:443", true},
		{"CIDR with port", []string{"10.0.0.0/8:8080"}, "x.example", "10.1.2.3:8080", true},
		{"CIDR with another port", []string{"10.0.0.0/8:8080"}, "x.example", "10.1.2.3:443", false},
		{"address", []string{"127.0.0.1"}, "x.example", "127.0.0.1:9", true},
		{"address with port", []string{"[::1]:8080"}, "x.example", "[::1]:8080", true},
		{"address with another port", []string{"[::1]:8080"}, "x.example", "[::1]:9", false},
		{"host", []string{"hooks.internal"}, "hooks.internal", "10.1.2.3:443", true},
		{"host in other spelling", []string{"HOOKS.internal."}, "hooks.internal", "10.1.2.3:443", true},
		{"host, other name with that address", []string{"hooks.internal"}, "x.example", "10.1.2.3:443", false},
		{"host on loopback", []string{"hooks.internal"}, "hooks.internal", "127.0.0.1:443", false},
		{"host on link-local", []string{"hooks.internal"}, "hooks.internal", "169.254.1.1:443", false},
		{"localhost", []string{"localhost"}, "localhost", "127.0.0.1:443", true},
		{"localhost, IPv6", []string{"localhost"}, "localhost", "[::1]:443", true},
		{"localhost elsewhere", []string{"localhost"}, "localhost", "169.254.169.254:443", false},
		{"suffix", []string{"*.corp.example"}, "a.b.corp.example", "10.1.2.3:443", true},
		{"suffix itself", []string{"*.corp.example"}, "corp.example", "10.1.2.3:443", false},
		{"suffix without a dot", []string{"*.corp.example"}, "evilcorp.example", "10.1.2.3:443", false},
		{"metadata by CIDR", []string{"169.254.0.0/16"}, "x.example", "169.254.169.254:80", false},
		{"metadata by everything", []string{"0.0.0.0/0", "::/0"}, "x.example", "169.254.169.254:80", false},
		{"metadata by host", []string{"metadata.example"}, "metadata.example", "169.254.169.254:80", false},
		{"metadata by CGNAT", []string{"100.64.0.0/10"}, "x.example", "100.100.100.200:80", false},
		{"metadata of Azure", []string{"168.63.129.0/24"}, "x.example", "168.63.129.16:80", false},
		{"metadata by ULA", []string{"fd00::/8"}, "x.example", "[fd00:ec2::254]:80", false},
		{"metadata by NAT64", []string{"64:ff9b::/96"}, "x.example", "[64:ff9b::a9fe:a9fe]:80", false},
		{"metadata by 6to4", []string{"2002::/16"}, "x.example", "[2002:a9fe:a9fe::1]:80", false},
		{"NAT64 otherwise", []string{"64:ff9b::/96"}, "x.example", "[64:ff9b::808:808]:443", true},
		{"metadata, the one", []string{"169.254.169.254"}, "x.example", "169.254.169.254:80", true},
		{"metadata, the one as CIDR", []string{"169.254.169.254/32"}, "x.example", "169.254.169.254:80", true},
		{"metadata, another one", []string{"169.254.169.254/32"}, "x.example", "169.254.170.2:80", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := mustGuard(t, tt.exceptions...)
			a := netip.MustParseAddrPort(tt.addr)
			err := control(g, tt.host, networkOf(a.Addr()), tt.addr)
			if (err == nil) != tt.ok {
				t.Errorf("control(%s, %s) with %v = %v, want ok %v", tt.host, tt.addr, tt.exceptions, err, tt.ok)
			}
		})
	}
	for _, bad := range []string{"", "10.0.0.0/33", "example.com:0", "example.com:99999", "a b", "*", "*.", "127.1", "https://example.com"} {
		if _, err := NewGuard(bad); err == nil {
			t.Errorf("NewGuard(%q) = nil, want an error", bad)
		}
	}
}

func TestExceptionsAllowHTTP(t *testing.T) {
	t.Parallel()
	g := mustGuard(t, "10.0.0.0/8", "hooks.internal:8080", "receiver")
	for url, ok := range map[string]bool{
		"http://10.0.0.1/": true, "http://hooks.internal:8080/x": true, "http://receiver/": true, "https://receiver:9/": true,
		"http://hooks.internal/": false, "https://hooks.internal/": false, "http://192.168.0.1/": false, "http://1.1.1.1/": false, "http://other/": false,
	} {
		if err := g.CheckURL(url); (err == nil) != ok {
			t.Errorf("CheckURL(%s) = %v, want ok %v", url, err, ok)
		}
	}
}

// The guard sees the address of the connection itself, whatever the name was
// checked to be before.
func TestGuardChecksTheConnection(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := mustGuard(t)
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "::", "::ffff:127.0.0.1", ""} {
		c, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if !errors.Is(err, ErrRefused) {
			t.Errorf("dial %q: %v, want refused", host, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
	c, err := mustGuard(t, "127.0.0.1:"+port).DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", port))
	if err != nil {
		t.Errorf("dial an allowed address: %v", err)
	} else {
		_ = c.Close()
	}
}

func TestTransportAsksNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	tr := newTransport(mustGuard(t), nil)
	if tr.Proxy != nil {
		t.Error("the transport has a proxy function")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://127.0.0.1:9/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := tr.RoundTrip(req)
	if !errors.Is(err, ErrRefused) {
		t.Errorf("RoundTrip = %v, want refused by the guard", err)
	}
	if err == nil {
		_ = res.Body.Close()
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"https://example.com/a?b", "https://[::1]:9/", "https://①②⑦.⓪.⓪.①/", "http://a@b:1/#", "https://xn--/", "https://0x7f.1/"} {
		f.Add(s)
	}
	g := mustGuard(f)
	f.Fuzz(func(t *testing.T, raw string) {
		target, err := g.Target(raw)
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("Target(%q) = %v, want ErrRefused", raw, err)
			}
			return
		}
		if target.URL.Scheme != "https" || target.URL.User != nil || target.Host == "" || target.Port == 0 {
			t.Fatalf("Target(%q) = %+v", raw, target)
		}
		if a, err := netip.ParseAddr(target.Host); err == nil && !public(a) {
			t.Fatalf("Target(%q) lets %s pass", raw, a)
		}
		again, err := g.Target(target.URL.String())
		if err != nil || again.Host != target.Host || again.Port != target.Port || again.URL.RequestURI() != target.URL.RequestURI() {
			t.Fatalf("Target(%q) is %+v, read again %+v, %v", raw, target.URL, again.URL, err)
		}
	})
}

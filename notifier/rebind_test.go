package notifier

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers the nth question for an IPv4 address with answers[n].
type nameServer struct {
	answers [][]string
	asked   atomic.Int64
}

// serve answers questions that arrive on c, as DNS over TCP frames them.
func (s *nameServer) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil || n < 2 {
			return
		}
		out, err := s.answer(buf[2:n])
		if err != nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(nil, uint16(len(out))) //nolint:gosec // far below
		if _, err := c.Write(append(framed, out...)); err != nil {
			return
		}
	}
}

func (s *nameServer) answer(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		i := min(int(s.asked.Add(1)), len(s.answers)) - 1
		for _, a := range s.answers[i] {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
			})
		}
	}
	return m.Pack()
}

// resolver asks the name server over pipes.
func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go s.serve(there)
		return here, nil
	}}
}

// A name that changes its address between the check and the connection, or
// between two connections, gains nothing: the connection itself is checked.
func TestRebinding(t *testing.T) {
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
	const name = "rebind.example"
	dial := func(g *Guard, s *nameServer) error {
		g.resolver = s.resolver()
		c, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort(name, port))
		if err == nil {
			_ = c.Close()
		}
		return err
	}

	inside := &nameServer{answers: [][]string{{"127.0.0.1"}}}
	if err := mustGuard(t).CheckURL("https://" + name + "/"); err != nil {
		t.Errorf("CheckURL = %v, want passed: it asks no name server", err)
	}
	if err := dial(mustGuard(t), inside); !errors.Is(err, ErrRefused) {
		t.Errorf("a name of loopback: %v, want refused", err)
	}
	mixed := &nameServer{answers: [][]string{{"10.0.0.1", "169.254.169.254", "127.0.0.1"}}}
	if err := dial(mustGuard(t), mixed); !errors.Is(err, ErrRefused) {
		t.Errorf("a name of several inside addresses: %v, want refused", err)
	}
	// The first dial is allowed, the second resolves anew and is not.
	moving := &nameServer{answers: [][]string{{"127.0.0.1"}, {"127.0.0.2"}}}
	g := mustGuard(t, "127.0.0.1")
	if err := dial(g, moving); err != nil {
		t.Errorf("first dial: %v, want passed", err)
	}
	if err := dial(g, moving); !errors.Is(err, ErrRefused) {
		t.Errorf("after the name moved: %v, want refused", err)
	}
	// One allowed address among refused ones is used.
	if err := dial(mustGuard(t, "127.0.0.1"), &nameServer{answers: [][]string{{"10.0.0.1", "127.0.0.1"}}}); err != nil {
		t.Errorf("one allowed address of two: %v, want passed", err)
	}
}

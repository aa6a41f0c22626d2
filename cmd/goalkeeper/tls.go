package main

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
)

// certificates is a certificate that can be replaced while connections come in.
type certificates struct {
	current atomic.Pointer[tls.Certificate]
}

// openCertificates loads the files, or returns nil where none are configured.
func openCertificates(c tlsConfig) (*certificates, error) {
	if c == (tlsConfig{}) {
		return nil, nil //nolint:nilnil // no TLS is an ordinary setting
	}
	cert, err := c.load()
	if err != nil {
		return nil, err
	}
	s := &certificates{}
	s.current.Store(cert)
	return s, nil
}

func (c tlsConfig) load() (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return &cert, nil
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

package main

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
)

// certificates is a certificate that can be replaced while connections come in.
type certificates struct {
	files   tlsConfig
	current atomic.Pointer[tls.Certificate]
}

// openCertificates loads the files, or returns nil where none are configured.
func openCertificates(c tlsConfig) (*certificates, error) {
	if c.Cert == "" && c.Key == "" {
		return nil, nil //nolint:nilnil // no TLS is an ordinary setting
	}
	s := &certificates{files: c}
	return s, s.load()
}

// load reads the files again; on an error the old certificate stays.
func (c *certificates) load() error {
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	c.current.Store(&cert)
	return nil
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
)

// writeCertificate writes a self-signed certificate for loopback with that
// serial number.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeConfig(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeConfig(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// served asks with an API key on a new connection, and returns the status and
// the serial number of the server's certificate.
func (p *instance) served(key string) (status int, serial int64) {
	p.t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // the test looks at the certificate itself
		VerifyConnection: func(s tls.ConnectionState) error {
			serial = s.PeerCertificates[0].SerialNumber.Int64()
			return nil
		},
	}}
	defer tr.CloseIdleConnections()
	r, err := sendTo(p.t.Context(), &http.Client{Transport: tr}, http.MethodGet, p.url+"/v1/environments", nil, "Authorization", "Bearer "+key)
	if err != nil {
		p.t.Fatal(err)
	}
	return r.status, serial
}

// TestReload: SIGHUP replaces keys and certificate together, or nothing at all.
func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key, path := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "goalkeeper.yaml")
	configure := func(text, apiKey string) {
		writeConfig(t, path, strings.NewReplacer("CERT", cert, "KEY", key, "HASH", ingest.HashKey(apiKey)).Replace(text))
	}
	const sound = "tls: {cert: CERT, key: KEY}\ntenants: [{name: a, keys: [{name: k, sha256: HASH}]}]\n"
	writeCertificate(t, cert, key, 1)
	configure(sound, "first")
	p := launch(t, nil, "serve", "--config", path, "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0")
	want := func(when string, serial int64, keys map[string]int) {
		t.Helper()
		for k, status := range keys {
			if got, number := p.served(k); got != status || number != serial {
				t.Errorf("%s: key %s: %d with certificate %d, want %d with %d", when, k, got, number, status, serial)
			}
		}
	}
	want("at the start", 1, map[string]int{"first": 200, "second": 401})

	writeCertificate(t, cert, key, 2)
	configure(sound, "second")
	p.signal(syscall.SIGHUP)
	p.await(regexp.MustCompile(`(reloaded) API keys`))
	want("after the reload", 2, map[string]int{"first": 401, "second": 200})

	for _, c := range []struct{ name, text, why string }{
		{"no YAML", "tenants: [", "reload failed.*configuration"},
		{"a key that is no hash", "tls: {cert: CERT, key: KEY}\ntenants: [{name: a, keys: [{name: k, sha256: abc}]}]", `reload failed.*keys\[0\].sha256`},
		{"a misspelt member", sound + "tenant: x\n", "reload failed.*unknown field"},
		{"no keys", "tls: {cert: CERT, key: KEY}\n", "reload failed.*the last one removed"},
		{"a new tenant", sound[:len(sound)-2] + ", {name: b, keys: [{name: k, sha256: " + ingest.HashKey("b") + "}]}]\n", "reload failed.*tenant b is new"},
		{"no certificate", "tls: {cert: CERT.none, key: KEY}\ntenants: [{name: a, keys: [{name: k, sha256: HASH}]}]", "reload failed.*no such file"},
		{"TLS turned off", "tenants: [{name: a, keys: [{name: k, sha256: HASH}]}]", "reload failed.*TLS can be turned"},
	} {
		configure(c.text, "third")
		p.signal(syscall.SIGHUP)
		p.await(regexp.MustCompile(c.why))
		want(c.name, 2, map[string]int{"first": 401, "second": 200, "third": 401})
	}
	configure(sound, "third")
	p.signal(syscall.SIGHUP)
	p.await(regexp.MustCompile(`(?s)reloaded API keys.*reloaded (API) keys`))
	want("repaired", 2, map[string]int{"second": 401, "third": 200})
	if text := p.text(); strings.Contains(text, "panic") {
		t.Errorf("log:\n%s", text)
	}
}

// TestListenWithoutKeys: without keys the server stays on loopback and answers
// local names only, unless it is told otherwise; its callers have every role.
func TestListenWithoutKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := outputOf(t, nil, "goalkeeper", "serve", "--data", filepath.Join(dir, "refused"), "--listen", "0.0.0.0:0")
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || !failed.Exited() || !strings.Contains(out, "--insecure") || strings.Contains(out, "listening on") {
		t.Errorf("serve beyond loopback: %v\n%s", err, out)
	}
	config := writeConfig(t, filepath.Join(dir, "roles.yaml"), `environments:
  - name: default
    roles: [operators]
    tools: [{name: orders.refund, url: "http://127.0.0.1:9/refund", roles: [refunds]}]
`)
	for _, c := range []struct {
		name   string
		flags  []string
		remote int
	}{
		{"loopback", []string{"--listen", "127.0.0.1:0"}, http.StatusForbidden},
		{"insecure", []string{"--listen", "0.0.0.0:0", "--insecure"}, http.StatusOK},
	} {
		p := launch(t, nil, append([]string{"serve", "--config", config, "--data", filepath.Join(dir, c.name)}, c.flags...)...)
		_, port, err := net.SplitHostPort(strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		p.url = "http://127.0.0.1:" + port
		if r := p.call(http.MethodGet, "/v1/environments", nil, "Host", "goalkeeper.example.com"); r.status != c.remote {
			t.Errorf("%s: under another name: %d %s", c.name, r.status, r.body)
		}
		if r := p.call(http.MethodGet, "/v1/tools", nil); !strings.Contains(string(r.body), "orders.refund") {
			t.Errorf("%s: tools = %s", c.name, r.body)
		}
		g := writeGoal("x", 1)
		g["guardrails"] = map[string]any{"max_steps": 1, "timeout_seconds": 10, "allowed_tools": []string{"orders.refund"}}
		if r := p.post("k", g); r.status != http.StatusAccepted {
			t.Errorf("%s: a goal with a tool that names a role: %d %s", c.name, r.status, r.body)
		}
		if r := p.call(http.MethodPost, "/v1/tasks", encodedJSON(t, writeGoal("x", 1)), "Idempotency-Key", "page", "Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site"); r.status != http.StatusForbidden {
			t.Errorf("%s: a page of another origin: %d %s", c.name, r.status, r.body)
		}
		p.end()
	}
}

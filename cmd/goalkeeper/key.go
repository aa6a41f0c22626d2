package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// keyCmd derives and makes keys.
type keyCmd struct {
	Derive keyDeriveCmd `cmd:"" default:"withargs" help:"Print the idempotency key of a tool call (the default)."`
	Task   keyTaskCmd   `cmd:"" help:"Print the id of the task that a tenant's key stands for."`
	New    keyNewCmd    `cmd:"" help:"Make a random API key and print it with its SHA-256 for the configuration."`
	Hash   keyHashCmd   `cmd:"" help:"Read an API key from stdin and print its SHA-256."`
}

type keyDeriveCmd struct {
	Payload string `arg:"" help:"File with the tool's arguments, as JSON; - is stdin."`
	Session string `required:"" placeholder:"ID" help:"Session id; for calls by our workers the task id."`
	Step    int    `required:"" placeholder:"N" help:"Index of the call in its session."`
	Tool    string `required:"" placeholder:"NAME" help:"Name of the tool."`
	outputFlags
}

// Run prints the key.
func (c *keyDeriveCmd) Run(t *terminal) error {
	payload, err := readInput(c.Payload, t.in)
	if err != nil {
		return err
	}
	key, err := goal.ToolCallKey(c.Session, c.Step, c.Tool, payload)
	if err != nil {
		return usageError("%w", err)
	}
	if t.machine() {
		return t.document(map[string]string{"idempotency_key": key})
	}
	return t.printf("%s\n", key)
}

type keyTaskCmd struct {
	Key    string `arg:"" help:"The Idempotency-Key of the submission."`
	Tenant string `default:"default" help:"The tenant."`
	outputFlags
}

// Run prints the task id.
func (c *keyTaskCmd) Run(t *terminal) error {
	if !goal.ValidTenant(c.Tenant) {
		return usageError("%q cannot be a tenant", c.Tenant)
	}
	key, problem := goal.ParseKey([]string{quoteKey(c.Key)})
	if problem != nil {
		return problem
	}
	id := goal.TaskID(c.Tenant, key)
	if t.machine() {
		return t.document(map[string]string{"task_id": id})
	}
	return t.printf("%s\n", id)
}

type keyNewCmd struct{ outputFlags }

// apiKey is a key as key new and key hash print it.
type apiKey struct {
	Key    string `json:"key,omitempty"`
	SHA256 string `json:"sha256"`
}

// Run makes an API key: 256 random bits.
func (*keyNewCmd) Run(t *terminal) error {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	key := "gk_" + base64.RawURLEncoding.EncodeToString(b[:])
	k := apiKey{Key: key, SHA256: ingest.HashKey(key)}
	if t.machine() {
		return t.document(k)
	}
	t.notef("Give the key to the client and the SHA-256 to the configuration (tenants[].keys[].sha256).")
	return t.table([][]string{{"key", k.Key}, {"sha256", k.SHA256}})
}

type keyHashCmd struct{ outputFlags }

// Run hashes the key on stdin: as an argument it would be in the shell's history.
func (*keyHashCmd) Run(t *terminal) error {
	raw, err := io.ReadAll(io.LimitReader(t.in, 4096))
	if err != nil {
		return fmt.Errorf("read the key: %w", err)
	}
	key := strings.TrimSpace(string(raw))
	if key == "" {
		return usageError("there is no key on stdin")
	}
	if t.machine() {
		return t.document(apiKey{SHA256: ingest.HashKey(key)})
	}
	return t.printf("%s\n", ingest.HashKey(key))
}

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// config is the whole configuration, from a YAML file. ${NAME} in a value is
// replaced by the environment variable NAME, which must be set.
type config struct {
	Listen       string              `yaml:"listen"`       // default 127.0.0.1:8080
	AdminListen  string              `yaml:"admin_listen"` // profiles and metrics; empty: none
	Insecure     bool                `yaml:"insecure"`     // listen beyond loopback without keys
	Data         string              `yaml:"data"`         // folder of the embedded store
	Durability   string              `yaml:"durability"`   // group (default) or always
	Retention    duration            `yaml:"retention"`    // default 168h, 48h to 720h
	NATS         natsConfig          `yaml:"nats"`
	TLS          tlsConfig           `yaml:"tls"`
	CORS         []string            `yaml:"cors_origins"`
	Log          logConfig           `yaml:"log"`
	Telemetry    telemetryConfig     `yaml:"telemetry"`
	Worker       workerConfig        `yaml:"worker"`
	Webhooks     webhooksConfig      `yaml:"webhooks"`
	Tenants      []tenantConfig      `yaml:"tenants"`
	Environments []environmentConfig `yaml:"environments"`
	Gateway      gatewayConfig       `yaml:"gateway"`
}

type natsConfig struct {
	URL         string `yaml:"url"`          // empty: the embedded server
	Listen      string `yaml:"listen"`       // the embedded server's own port; empty: none
	Credentials string `yaml:"credentials"`  // file
	InboxPrefix string `yaml:"inbox_prefix"` // where answers come, by the user's permissions; default _INBOX
	Replicas    int    `yaml:"replicas"`     // default 1 embedded, 3 external
}

type tlsConfig struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

type logConfig struct {
	Format string `yaml:"format"` // text (default) or json
	Level  string `yaml:"level"`  // debug, info (default), warn, error
}

type telemetryConfig struct {
	OTLPEndpoint string `yaml:"otlp_endpoint"` // http(s)://host:port of a collector; empty: no traces
}

type workerConfig struct {
	Concurrency int      `yaml:"concurrency"`
	AckWait     duration `yaml:"ack_wait"`
	Grace       duration `yaml:"grace"`
}

type webhooksConfig struct {
	Allow []string `yaml:"allow"` // CIDRs or hosts of internal receivers
}

type tenantConfig struct {
	Name           string       `yaml:"name"`
	Keys           []keyConfig  `yaml:"keys"`
	Rate           float64      `yaml:"rate"`            // submissions a second; 0: no limit
	Burst          int          `yaml:"burst"`           // default twice the rate
	DirectRoles    []string     `yaml:"direct_roles"`    // of submissions over NATS, which carry no key
	MaxQueued      int          `yaml:"max_queued"`      // 0: no limit
	MaxRunning     int          `yaml:"max_running"`     // goals in work at a time, over all workers; 0: 10,000
	WebhookSecrets []hookSecret `yaml:"webhook_secrets"` // the first is current
	TokenBalance   *int64       `yaml:"token_balance"`   // granted once; absent: no balance is kept
}

// hookSecret is one signing secret. An old one stays beside the new one until
// receivers have changed over.
type hookSecret struct {
	Key   secret    `yaml:"key"`   // whsec_… or whsk_…
	Until time.Time `yaml:"until"` // not used from then on; absent: current
}

type keyConfig struct {
	Name   string   `yaml:"name"`
	SHA256 string   `yaml:"sha256"` // of the key, lower-case hex
	Roles  []string `yaml:"roles"`
}

type environmentConfig struct {
	Name    string        `yaml:"name"`
	Tenants []string      `yaml:"tenants"` // empty: every tenant
	Roles   []string      `yaml:"roles"`   // empty: everybody
	State   stateConfig   `yaml:"state"`
	Planner plannerConfig `yaml:"planner"`
	Tools   []toolConfig  `yaml:"tools"`
	NoState bool          `yaml:"no_state_tools"` // leave out the built-in state.* tools
	MCP     []mcpConfig   `yaml:"mcp"`
	Probes  []probeConfig `yaml:"probes"`
}

type stateConfig struct {
	Type           string            `yaml:"type"`      // kv (default), http, mcp
	Namespace      string            `yaml:"namespace"` // kv: default the environment's name
	URL            string            `yaml:"url"`       // http
	Headers        map[string]secret `yaml:"headers"`
	MissingAsEmpty bool              `yaml:"missing_as_empty"`
	CollectionURL  string            `yaml:"collection_url"`
	Pointer        string            `yaml:"pointer"` // of the value in the answer
	Server         string            `yaml:"server"`  // mcp: name under mcp
	Tool           string            `yaml:"tool"`
	Arguments      map[string]any    `yaml:"arguments"`
	Resource       string            `yaml:"resource"`
	JSONText       bool              `yaml:"json_text"` // mcp: the value is a string that holds JSON
	Timeout        duration          `yaml:"timeout"`
}

type plannerConfig struct {
	Type              string            `yaml:"type"`     // builtin (default), openai, http, script
	BaseURL           string            `yaml:"base_url"` // openai: up to /chat/completions
	Model             string            `yaml:"model"`
	APIKey            secret            `yaml:"api_key"`
	Instructions      string            `yaml:"instructions"`
	Temperature       *float64          `yaml:"temperature"`
	MaxTokens         int               `yaml:"max_tokens"`
	ParallelToolCalls *bool             `yaml:"parallel_tool_calls"`
	NoReasoningEcho   bool              `yaml:"no_reasoning_echo"`
	ExtraBody         map[string]any    `yaml:"extra_body"`
	URL               string            `yaml:"url"` // http
	Headers           map[string]secret `yaml:"headers"`
	Timeout           duration          `yaml:"timeout"`
	Script            []scriptAction    `yaml:"script"`
}

type scriptAction struct {
	Tool      string         `yaml:"tool"`
	Arguments map[string]any `yaml:"arguments"`
	JSON      string         `yaml:"json"` // arguments as JSON text, where numbers must stay exact
}

type toolConfig struct {
	Name        string            `yaml:"name"`
	Description string            `yaml:"description"`
	Method      string            `yaml:"method"`
	URL         string            `yaml:"url"`
	InputSchema map[string]any    `yaml:"input_schema"`
	Headers     map[string]secret `yaml:"headers"`
	Roles       []string          `yaml:"roles"`
	Timeout     duration          `yaml:"timeout"`
	Retries     *int              `yaml:"retries"`
	Replay      goal.Replay       `yaml:"replay"`
}

type mcpConfig struct {
	Name            string                 `yaml:"name"`
	Command         []string               `yaml:"command"`
	Env             map[string]secret      `yaml:"env"`
	Dir             string                 `yaml:"dir"`
	URL             string                 `yaml:"url"`
	Headers         map[string]secret      `yaml:"headers"`
	Tools           []string               `yaml:"tools"` // empty: all
	Trusted         bool                   `yaml:"trusted"`
	Replay          map[string]goal.Replay `yaml:"replay"`
	Roles           []string               `yaml:"roles"`
	Timeout         duration               `yaml:"timeout"`
	ProtocolVersion string                 `yaml:"protocol_version"`
}

type probeConfig struct {
	Name    string   `yaml:"name"`
	HTTP    string   `yaml:"http"` // URL; GET must answer below 500
	TCP     string   `yaml:"tcp"`  // host:port
	Timeout duration `yaml:"timeout"`
}

type gatewayConfig struct {
	Listen string              `yaml:"listen"` // default 127.0.0.1:8090
	Tenant string              `yaml:"tenant"` // whose keys these are; default the first tenant
	Routes []idempotency.Route `yaml:"routes"`
}

// secret is a value that is never printed.
type secret string

// MarshalYAML masks the secret.
func (s secret) MarshalYAML() (any, error) { return s.String(), nil } //nolint:unparam // the interface has an error

// String masks the secret.
func (s secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// reveal maps secrets to plain values.
func reveal(m map[string]secret) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}

// duration is a time.Duration written like 15s or 168h.
type duration time.Duration

// UnmarshalYAML reads a duration.
func (d *duration) UnmarshalYAML(b []byte) error {
	v, err := time.ParseDuration(strings.Trim(strings.TrimSpace(string(b)), `"'`))
	if err != nil {
		return fmt.Errorf("want a duration such as 15s or 168h: %w", err)
	}
	*d = duration(v)
	return nil
}

// MarshalYAML writes a duration.
func (d duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil } //nolint:unparam // the interface has an error

// or is the duration, or def where none was given.
func (d duration) or(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

const (
	defaultTenant  = "default"
	durableGroup   = "group"
	durableAlways  = "always"
	minRetention   = 48 * time.Hour
	maxRetention   = 30 * 24 * time.Hour
	weekRetention  = 7 * 24 * time.Hour
	defaultListen  = "127.0.0.1:8080"
	gatewayListen  = "127.0.0.1:8090"
	defaultDataDir = "./data"
)

// loadConfig reads, completes and checks the configuration. An empty path
// means all defaults: one tenant, one environment.
func loadConfig(path string) (*config, error) {
	c := &config{}
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if err := parseConfig(raw, c); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	c.defaults()
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// parseConfig decodes strictly: an unknown member is an error, and every error
// names its line.
func parseConfig(raw []byte, c *config) error {
	var missing []string
	var text []byte
	n := 0
	for line := range bytes.Lines(raw) {
		n++
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) { // a comment may speak of variables
			line = variable.ReplaceAllFunc(line, func(m []byte) []byte {
				name := string(m[2 : len(m)-1])
				v, ok := os.LookupEnv(name)
				if !ok {
					missing = append(missing, fmt.Sprintf("line %d: environment variable %s is not set", n, name))
				}
				return []byte(v)
			})
		}
		text = append(text, line...)
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict(), yaml.DisallowUnknownField()).Decode(c)
	if err != nil && !errors.Is(err, io.EOF) {
		return errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return nil
}

func (c *config) defaults() {
	setDefault(&c.Listen, defaultListen)
	setDefault(&c.Gateway.Listen, gatewayListen)
	setDefault(&c.Data, defaultDataDir)
	setDefault(&c.Durability, durableGroup)
	setDefault(&c.Log.Format, "text")
	setDefault(&c.Log.Level, "info")
	setDefault(&c.Retention, duration(weekRetention))
	if c.NATS.Replicas == 0 {
		c.NATS.Replicas = 1
		if c.NATS.URL != "" {
			c.NATS.Replicas = 3
		}
	}
	if len(c.Tenants) == 0 {
		c.Tenants = []tenantConfig{{Name: defaultTenant}}
	}
	if len(c.Environments) == 0 {
		c.Environments = []environmentConfig{{Name: goal.DefaultEnvironment}}
	}
	for i := range c.Environments {
		e := &c.Environments[i]
		setDefault(&e.State.Type, "kv")
		setDefault(&e.State.Namespace, e.Name)
		setDefault(&e.Planner.Type, "builtin")
	}
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// check refuses what cannot work; every message names the place.
func (c *config) check() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !slices.Contains([]string{durableGroup, durableAlways}, c.Durability) {
		bad("durability: %q is neither group nor always", c.Durability)
	}
	if r := time.Duration(c.Retention); r < minRetention || r > maxRetention {
		bad("retention: %s is outside %s to %s", r, minRetention, maxRetention)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		bad("log.format: %q is neither text nor json", c.Log.Format)
	}
	names := map[string]bool{}
	for i, t := range c.Tenants {
		if !goal.ValidTenant(t.Name) {
			bad("tenants[%d].name: %q is not 1 to 64 of A-Z a-z 0-9 - _", i, t.Name)
		}
		if names[t.Name] {
			bad("tenants[%d].name: %q is there twice", i, t.Name)
		}
		names[t.Name] = true
		if t.MaxQueued < 0 || t.MaxRunning < 0 || t.Rate < 0 || t.Burst < 0 {
			bad("tenants[%d]: rate, burst, max_queued and max_running must not be negative", i)
		}
		for j, h := range t.WebhookSecrets {
			if err := notifier.CheckSecret(string(h.Key)); err != nil {
				bad("tenants[%d].webhook_secrets[%d].key: %w", i, j, err)
			}
		}
		for j, k := range t.Keys {
			if b, err := hex.DecodeString(k.SHA256); err != nil || len(b) != sha256.Size || strings.ToLower(k.SHA256) != k.SHA256 {
				bad("tenants[%d].keys[%d].sha256: want 64 lower-case hex digits (goalkeeper key hash makes them)", i, j)
			}
		}
	}
	for i, e := range c.Environments {
		if e.Name == "" {
			bad("environments[%d].name: is missing", i)
		}
		for j, t := range e.Tools {
			if t.Replay != "" && !slices.Contains(goal.Replays(), t.Replay) {
				bad("environments[%d].tools[%d].replay: %q is not one of %v", i, j, t.Replay, goal.Replays())
			}
		}
		if !slices.Contains([]string{"kv", "http", "mcp"}, e.State.Type) {
			bad("environments[%d].state.type: %q is not kv, http or mcp", i, e.State.Type)
		}
		if !slices.Contains([]string{"builtin", "openai", "http", "script"}, e.Planner.Type) {
			bad("environments[%d].planner.type: %q is not builtin, openai, http or script", i, e.Planner.Type)
		}
	}
	return errors.Join(errs...)
}

// hasKeys reports whether any API key is configured.
func (c *config) hasKeys() bool {
	return slices.ContainsFunc(c.Tenants, func(t tenantConfig) bool { return len(t.Keys) > 0 })
}

// checkListen refuses an address beyond loopback while nobody needs a key.
func (c *config) checkListen(addr string) error {
	if c.hasKeys() || c.Insecure {
		return nil
	}
	err := ingest.MustBeLoopback(addr)
	if errors.Is(err, ingest.ErrNotLoopback) {
		return fmt.Errorf("listen address %s is not loopback and no API key is configured: "+
			"configure tenants[].keys, or say --insecure", addr)
	}
	return err
}

// String is the settings in force, with secrets masked.
func (c *config) String() string {
	masked := *c
	masked.NATS.URL = redactURLs(c.NATS.URL)
	out, err := yaml.Marshal(masked)
	if err != nil {
		return "unprintable: " + err.Error()
	}
	return string(out)
}

// rawJSON turns a value from YAML into JSON.
func rawJSON(v any) (json.RawMessage, error) {
	b, err := goal.Marshal(v)
	if err != nil {
		return nil, err
	}
	return b, nil
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// fenced is one fenced block of the README: language, what to do with it, text.
type fenced struct{ lang, how, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w+)(?: (\\w+))?\n(.*?)^```$")

func readmeBlocks(t *testing.T) []fenced {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(kvtest.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var out []fenced
	for _, m := range fence.FindAllStringSubmatch(string(raw), -1) {
		out = append(out, fenced{m[1], m[2], m[3]})
	}
	return out
}

// TestReadmeCommands runs the README's commands in their order, as a newcomer
// would, on ports of its own. The two set-up commands and the build are left to
// CI: they would run this test again.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	for _, need := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("%s is not on this machine", need)
		}
	}
	ports := strings.NewReplacer(
		"127.0.0.1:8080", freePort(t), "127.0.0.1:8090", freePort(t), "127.0.0.1:9000", freePort(t), "127.0.0.1:9001", freePort(t), "127.0.0.1:4222", freePort(t),
	)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	env := append(os.Environ(), "GOALKEEPER_URL=http://"+ports.Replace("127.0.0.1:8080"), "GOALKEEPER_CONFIG_HOME="+dir, "GOALKEEPER_CONTEXT=", "GOALKEEPER_TOKEN=")
	var script strings.Builder
	script.WriteString("set -euo pipefail\n" + `trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT` + "\n")
	_, noNATS := exec.LookPath("nats")
	for _, b := range readmeBlocks(t) {
		if b.lang != "sh" {
			continue
		}
		text := ports.Replace(strings.TrimSpace(b.text))
		switch b.how {
		case "demo", "tests", "build":
		case "start": // the flags are those that later paragraphs tell to add
			fmt.Fprintf(&script, "%s --config allow.yaml --nats-listen %s 2>serve.log & \n", text, ports.Replace("127.0.0.1:4222"))
			fmt.Fprintf(&script, "curl -s -o /dev/null --retry 50 --retry-delay 1 --retry-connrefused http://%s/readyz\n", ports.Replace("127.0.0.1:8080"))
		case "gateway":
			fmt.Fprintf(&script, "%s 2>gateway.log & \n", text)
		case "background":
			fmt.Fprintf(&script, "%s >hooks.log 2>&1 & \nhooks=$!\n", text)
		case "nats":
			if noNATS == nil {
				fmt.Fprintf(&script, "%s\n", text)
			}
		case "":
			fmt.Fprintf(&script, "%s\n", text)
		default:
			t.Errorf("README: block %q: nobody runs it", b.how)
		}
	}
	script.WriteString("wait $hooks\n") // it ends after the one webhook that it counts
	config := "listen: " + ports.Replace("127.0.0.1:8080") + "\nwebhooks: {allow: [127.0.0.1/32]}\n"
	if err := os.WriteFile(filepath.Join(dir, "allow.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, 10*time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		serve, _ := os.ReadFile(filepath.Join(dir, "serve.log"))
		hooks, _ := os.ReadFile(filepath.Join(dir, "hooks.log"))
		t.Fatalf("%v\nscript:\n%s\noutput:\n%s\nserver:\n%s\nreceiver:\n%s", err, script.String(), out.String(), tail1(serve), hooks)
	}
	for _, want := range []string{"202 Accepted", "TARGET_STATE_REACHED", "already_satisfied"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the session does not show %q:\n%s", want, out.String())
		}
	}
}

func tail1(b []byte) []byte { return b[max(0, len(b)-4000):] }

// freePort is an address that is free now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestReadmeConfiguration loads every configuration that the README shows.
func TestReadmeConfiguration(t *testing.T) {
	for _, name := range []string{"ACME_KEY_SHA256", "ACME_OPS_SHA256"} {
		t.Setenv(name, strings.Repeat("0", 64))
	}
	t.Setenv("LLM_API_KEY", "k")
	t.Setenv("ACME_WEBHOOK_SECRET", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	n := 0
	for _, b := range readmeBlocks(t) {
		if b.lang != "yaml" {
			continue
		}
		n++
		path := filepath.Join(t.TempDir(), "goalkeeper.yaml")
		if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := loadConfig(path)
		if err != nil {
			t.Errorf("%v\n%s", err, b.text)
			continue
		}
		if text := c.String(); strings.Contains(text, "whsec_AAEC") || strings.Contains(text, "api_key: k") {
			t.Errorf("a secret is printed:\n%s", text)
		}
	}
	if n < 3 {
		t.Errorf("the README shows %d configurations", n)
	}
}

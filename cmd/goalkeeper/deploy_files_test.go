package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// yamlDocuments decodes every document of a file below deploy.
func yamlDocuments(t *testing.T, name string) []map[string]any {
	t.Helper()
	var docs []map[string]any
	for dec := yaml.NewDecoder(bytes.NewReader(readDeploy(t, name))); ; {
		var doc map[string]any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		docs = append(docs, doc)
	}
}

// TestDeployYAML: every YAML file below deploy can be read.
func TestDeployYAML(t *testing.T) {
	t.Parallel()
	n := 0
	err := fs.WalkDir(os.DirFS(deployFile(t, ".")), ".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")) {
			n++
			if len(yamlDocuments(t, name)) == 0 {
				t.Errorf("%s has no document", name)
			}
		}
		return err
	})
	if err != nil || n < 10 {
		t.Errorf("%d files were read: %v", n, err)
	}
}

// deployEnv sets what the configurations below deploy take from the environment.
func deployEnv(t *testing.T) {
	t.Helper()
	t.Setenv("GOALKEEPER_API_KEY_SHA256", strings.Repeat("0f", 32))
	t.Setenv("GOALKEEPER_WEBHOOK_SECRET", notifier.NewSecret())
}

// TestDeployConfigurations: the program takes the configurations, and says what
// is missing in the environment.
func TestDeployConfigurations(t *testing.T) {
	inMap := filepath.Join(t.TempDir(), "goalkeeper.yaml")
	data := at[map[string]any](t, yamlDocuments(t, "kubernetes/configmap.yaml")[0], "data")
	if err := os.WriteFile(inMap, []byte(at[string](t, data, "goalkeeper.yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"compose": deployFile(t, "goalkeeper.yaml"), "kubernetes": inMap} {
		t.Run(name, func(t *testing.T) {
			if _, err := loadConfig(path); err == nil || !strings.Contains(err.Error(), "GOALKEEPER_API_KEY_SHA256 is not set") {
				t.Errorf("without the environment: %v", err)
			}
			deployEnv(t)
			c, err := loadConfig(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.checkListen("0.0.0.0:8080"); err != nil {
				t.Error(err)
			}
			if c.NATS.Replicas != 3 {
				t.Errorf("replicas = %d", c.NATS.Replicas)
			}
		})
	}
}

// at is a member of a document.
func at[T any](t *testing.T, doc map[string]any, path ...string) T {
	t.Helper()
	var v any = doc
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("%v: no object on the way to %s", path, name)
		}
		v = m[name]
	}
	out, ok := v.(T)
	if !ok {
		t.Fatalf("%v is %T", path, v)
	}
	return out
}

func list(t *testing.T, doc map[string]any, path ...string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, v := range at[[]any](t, doc, path...) {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("%v holds %T", path, v)
		}
		out = append(out, m)
	}
	return out
}

func texts(t *testing.T, doc map[string]any, path ...string) []string {
	t.Helper()
	var out []string
	for _, v := range at[[]any](t, doc, path...) {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// checkArgs checks arguments against the program's command line, and
// environment names against its flags and configurations.
func checkArgs(t *testing.T, where string, args, env []string) {
	t.Helper()
	var c cli
	parser, err := newParser(&c, newTerminal(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}, args), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		t.Fatalf("%s: %v: %v", where, args, err)
	}
	known := []string{"GOALKEEPER_API_KEY_SHA256", "GOALKEEPER_WEBHOOK_SECRET", "GOMEMLIMIT", "NATS_PASSWORD"}
	for _, f := range parsed.Flags() {
		known = append(known, f.Envs...)
	}
	for _, name := range env {
		if !slices.Contains(known, name) {
			t.Errorf("%s: %v do not know %s", where, args, name)
		}
	}
}

// TestCompose: services start verbs that exist, with flags and variables that
// they know and files that exist.
func TestCompose(t *testing.T) {
	t.Parallel()
	doc := yamlDocuments(t, "compose.yaml")[0]
	services := at[map[string]any](t, doc, "services")
	if got := slices.Sorted(maps.Keys(services)); !slices.Equal(got, []string{"ingest", "nats-1", "nats-2", "nats-3", "notifier", "worker"}) {
		t.Errorf("services are %v", got)
	}
	for name := range services {
		s := at[map[string]any](t, services, name)
		for _, v := range texts(t, s, "volumes") {
			source, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, "./") {
				if _, err := os.Stat(deployFile(t, source)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			} else if _, ok := at[map[string]any](t, doc, "volumes")[source]; !ok {
				t.Errorf("%s: there is no volume %s", name, source)
			}
		}
		if strings.HasPrefix(name, "nats") {
			continue
		}
		if n := fmt.Sprint(at[map[string]any](t, s, "deploy")["replicas"]); n != "2" {
			t.Errorf("%s has %s replicas", name, n)
		}
		args := texts(t, s, "command")
		if args[0] != name {
			t.Errorf("%s runs %v", name, args)
		}
		checkArgs(t, "compose "+name, args, slices.Collect(maps.Keys(at[map[string]any](t, s, "environment"))))
	}
}

// TestNATSConfiguration: the server takes both configurations of a cluster.
func TestNATSConfiguration(t *testing.T) { //nolint:paralleltest // the configuration reads the environment
	for _, u := range natsUsers {
		t.Setenv("GOALKEEPER_NATS_"+strings.ToUpper(u)+"_PASSWORD", natsPassword(u))
	}
	for _, name := range []string{"cluster.conf", "secured.conf"} {
		o, err := server.ProcessConfigFile(deployFile(t, "nats/"+name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !o.JetStream || !o.SyncAlways || o.Cluster.Name == "" || len(o.Routes) != 3 {
			t.Errorf("%s: JetStream %v, sync always %v, cluster %q, %d routes", name, o.JetStream, o.SyncAlways, o.Cluster.Name, len(o.Routes))
		}
		if secured := len(o.Accounts) > 0; secured != (name == "secured.conf") {
			t.Errorf("%s: %d accounts", name, len(o.Accounts))
		}
	}
}

// TestKubernetes: the manifests fit together and to the program.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	secrets := at[map[string]any](t, yamlDocuments(t, "kubernetes/secret.example.yaml")[0], "stringData")
	for _, role := range []string{"ingest", "worker", "notifier"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			byKind := map[string]map[string]any{}
			for _, doc := range yamlDocuments(t, "kubernetes/"+role+".yaml") {
				byKind[at[string](t, doc, "kind")] = doc
			}
			deployment := byKind["Deployment"]
			labels := at[map[string]any](t, deployment, "spec", "template", "metadata", "labels")
			for _, doc := range []map[string]any{deployment, byKind["PodDisruptionBudget"]} {
				if got := at[map[string]any](t, doc, "spec", "selector", "matchLabels"); !reflect.DeepEqual(got, labels) {
					t.Errorf("%s selects %v, pods have %v", doc["kind"], got, labels)
				}
			}
			if hpa, ok := byKind["HorizontalPodAutoscaler"]; ok {
				if got := at[string](t, hpa, "spec", "scaleTargetRef", "name"); got != at[string](t, deployment, "metadata", "name") {
					t.Errorf("the autoscaler scales %s", got)
				}
			}
			containers := list(t, deployment, "spec", "template", "spec", "containers")
			checkContainer(t, role, containers[0], secrets)
		})
	}
}

func checkContainer(t *testing.T, role string, c, secrets map[string]any) {
	t.Helper()
	var env []string
	for _, e := range list(t, c, "env") {
		env = append(env, at[string](t, e, "name"))
		if from, ok := e["valueFrom"].(map[string]any); ok {
			if key := at[string](t, from, "secretKeyRef", "key"); secrets[key] == nil {
				t.Errorf("the secret has no key %s", key)
			}
		}
	}
	args := texts(t, c, "args")
	if args[0] != role {
		t.Errorf("%s runs %v", role, args)
	}
	checkArgs(t, role, args, env)
	var ports []string
	for _, p := range list(t, c, "ports") {
		ports = append(ports, at[string](t, p, "name"))
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		if port := at[string](t, c, probe, "httpGet", "port"); !slices.Contains(ports, port) {
			t.Errorf("%s asks the port %s of %v", probe, port, ports)
		}
	}
}

// TestKustomize builds the manifests with kubectl, where there is one.
func TestKustomize(t *testing.T) {
	t.Parallel()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl is not installed")
	}
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", deployFile(t, "kubernetes")).CombinedOutput()
	if err != nil || bytes.Count(out, []byte("\nkind: ")) < 11 || !bytes.Contains(out, []byte("image: registry.example.com/goalkeeper:1")) {
		t.Errorf("kubectl kustomize: %v\n%s", err, out)
	}
}

var execStart = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/goalkeeper (.*)$`)

// TestUnits: the units start verbs that exist, and systemd takes them.
func TestUnits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, instances := range map[string][]string{"goalkeeper.service": {""}, "goalkeeper@.service": {"ingest", "worker", "notifier"}} {
		text := string(readDeploy(t, "systemd/"+name))
		m := execStart.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no ExecStart", name)
		}
		for _, instance := range instances {
			args := strings.Fields(strings.ReplaceAll(m[1], "%i", instance))
			checkArgs(t, name, args, []string{"GOALKEEPER_NATS", "GOALKEEPER_NATS_INBOX", "GOALKEEPER_ADMIN_LISTEN"})
			// The program, the user and the environment are not on this machine.
			unit := strings.NewReplacer("/usr/local/bin/goalkeeper", self, "EnvironmentFile=/", "EnvironmentFile=-/", "User=goalkeeper\n", "").Replace(text)
			if err := os.WriteFile(filepath.Join(dir, strings.Replace(name, "@", "@"+instance, 1)), []byte(unit), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: the units' settings are unchecked")
	}
	units, err := filepath.Glob(filepath.Join(dir, "*.service"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, units...)...).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte(dir)) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

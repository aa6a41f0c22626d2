package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// deployFile is a file below deploy.
func deployFile(tb testing.TB, name string) string {
	tb.Helper()
	return filepath.Join(kvtest.Root(tb), "deploy", filepath.FromSlash(name))
}

func readDeploy(tb testing.TB, name string) []byte {
	tb.Helper()
	raw, err := os.ReadFile(deployFile(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// described matches a metric's name and its labels in a descriptor's text.
var described = regexp.MustCompile(`fqName: "([a-z_0-9]+)".*variableLabels: \{([^}]*)\}`)

// exportedMetrics are the labels of every metric that a whole process and a
// gateway export, by name.
func exportedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	s := newSite(t, true, func(*config) {})
	store, err := s.service.store.Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	calls := prometheus.NewRegistry()
	guard, err := idempotency.New(idempotency.Config{Store: store, Registerer: calls})
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	out := map[string][]string{}
	for _, reg := range []*prometheus.Registry{s.service.reg, calls} {
		ch := make(chan *prometheus.Desc)
		go func() { defer close(ch); reg.Describe(ch) }()
		for d := range ch {
			m := described.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("descriptor %s", d)
			}
			labels := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })
			out[m[1]] = append(labels, "le", "job", "instance")
		}
	}
	return out
}

// dashboardExpressions are the PromQL texts of the dashboard, by panel, with Grafana's
// variables replaced.
func dashboardExpressions(t *testing.T) map[string]string {
	t.Helper()
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct {
				RefID string
				Expr  string
			}
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(readDeploy(t, "grafana/goalkeeper.json"), &d); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$tenant", ".*", "$environment", ".*")
	out := map[string]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is wider than the grid", p.Title)
		}
		for _, q := range p.Targets {
			out[p.Title+" "+q.RefID] = variables.Replace(q.Expr)
		}
	}
	return out
}

// ruleGroups are the groups of alerts and recordings: Prometheus evaluates the
// rules of a group in their order, and groups beside each other.
func ruleGroups(t *testing.T) [][]alertingRule {
	t.Helper()
	var f struct {
		Groups []struct{ Rules []alertingRule }
	}
	if err := yaml.Unmarshal(readDeploy(t, "prometheus/rules.yaml"), &f); err != nil {
		t.Fatal(err)
	}
	var groups [][]alertingRule
	for _, g := range f.Groups {
		groups = append(groups, g.Rules)
	}
	return groups
}

type alertingRule struct{ Alert, Record, Expr string }

var (
	metricName = regexp.MustCompile(`\b(goalkeeper|process|go)[_:][a-z_0-9:]+`)
	selector   = regexp.MustCompile(`(goalkeeper_[a-z_0-9]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
)

// TestDashboardAndRulesNameMetrics: every metric and label that the dashboard
// and the alerts name is exported, or recorded earlier in the same group (else
// an alert may see the round before), and every metric of ours is on the
// dashboard.
func TestDashboardAndRulesNameMetrics(t *testing.T) {
	t.Parallel()
	exported := exportedMetrics(t)
	shown := map[string]bool{}
	check := func(where, expr string, known ...string) {
		for _, name := range metricName.FindAllString(expr, -1) {
			base := baseName(name, exported)
			shown[base] = true
			if _, ok := exported[base]; !ok && !slices.Contains(known, name) {
				t.Errorf("%s: nothing exports %s", where, name)
			}
		}
		for _, sel := range selector.FindAllStringSubmatch(expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(sel[2], -1) {
				if !slices.Contains(exported[baseName(sel[1], exported)], m[1]) {
					t.Errorf("%s: %s has no label %s", where, sel[1], m[1])
				}
			}
		}
	}
	dashboard := dashboardExpressions(t)
	if len(dashboard) < 30 {
		t.Fatalf("%d queries were read", len(dashboard))
	}
	for where, expr := range dashboard {
		check(where, expr)
	}
	for name := range exported {
		if strings.HasPrefix(name, "goalkeeper_") && !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	rules := 0
	for _, group := range ruleGroups(t) {
		var recorded []string
		for _, r := range group {
			check(r.Alert+r.Record, r.Expr, recorded...)
			if r.Record != "" {
				recorded = append(recorded, r.Record)
			}
			rules++
		}
	}
	if rules < 15 {
		t.Fatalf("%d rules were read", rules)
	}
}

// baseName is the name of the histogram that a series belongs to.
func baseName(name string, exported map[string][]string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && exported[base] != nil {
			return base
		}
	}
	return name
}

// TestPromtool checks the alert rules, their unit tests, and the syntax of the
// dashboard's queries, as recording rules.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool (Debian: prometheus) is not installed")
	}
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var queries []rule
	for where, expr := range dashboardExpressions(t) {
		queries = append(queries, rule{Record: "panel:" + regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(where, "_"), Expr: expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	panels := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(panels, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "rules.yaml"},
		{"check", "rules", panels},
		{"test", "rules", "rules_test.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = deployFile(t, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

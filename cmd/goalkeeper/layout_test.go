package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestPackagesAreDocumented wants a package comment in every package: what it
// promises, and what it does not.
func TestPackagesAreDocumented(t *testing.T) {
	t.Parallel()
	root := kvtest.Root(t)
	documented := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || (file.Doc != nil && len(file.Doc.Text()) > 80)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
	if len(documented) < 10 {
		t.Errorf("only %d packages were found", len(documented))
	}
}

// TestStagesHaveDesigns wants a DESIGN.md beside every stage that makes a
// delivery promise.
func TestStagesHaveDesigns(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"ingest", "ingest/idempotency", "worker", "worker/agent", "notifier", "kv"} {
		if _, err := os.Stat(filepath.Join(kvtest.Root(t), stage, "DESIGN.md")); err != nil {
			t.Error(err)
		}
	}
}

// TestTopLevel keeps the top level small: everything has its room inside.
func TestTopLevel(t *testing.T) {
	t.Parallel()
	allowed := []string{"go.mod", "go.sum", "cmd", "ingest", "worker", "notifier", "kv", "deploy", "README.md", "LICENSE", "data", "goalkeeper"}
	entries, err := os.ReadDir(kvtest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		// The last two are ignored by git: what the README's commands leave.
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(allowed, e.Name()) {
			t.Errorf("%s lies at the top level", e.Name())
		}
	}
}

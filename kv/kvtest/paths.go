package kvtest

import (
	"os"
	"path/filepath"
	"testing"
)

// Root is the repository's root directory.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Shared is the path of a file of the shared test material: below the directory
// GOALKEEPER_SHARED, or ../shared beside the repository. The test is skipped
// when it is absent.
func Shared(tb testing.TB, name string) string {
	tb.Helper()
	base := os.Getenv("GOALKEEPER_SHARED")
	if base == "" {
		base = filepath.Join(Root(tb), "..", "shared")
	}
	path := filepath.Join(base, filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil { //nolint:gosec // the developer's own directory
		tb.Skipf("shared test material is absent (set GOALKEEPER_SHARED): %v", err)
	}
	return path
}

// Heavy skips the test unless GOALKEEPER_HEAVY=1: soak, crash and many-process
// tests.
func Heavy(tb testing.TB) {
	tb.Helper()
	if os.Getenv("GOALKEEPER_HEAVY") != "1" {
		tb.Skip("a heavy test: set GOALKEEPER_HEAVY=1")
	}
}

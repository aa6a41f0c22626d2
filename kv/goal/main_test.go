package goal_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shared is a file of the published vectors, which lie beside the repository.
func shared(t *testing.T, name string) []byte {
	t.Helper()
	root := os.Getenv("GOALKEEPER_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	data, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // the names are constants of the tests
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the vectors are not here (set GOALKEEPER_SHARED): %s", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// golden compares got with the file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is now\n%s\nwant\n%s", name, got, want)
	}
}

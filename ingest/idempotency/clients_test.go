package idempotency

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// The helpers for other languages give the keys that this package checks.
func TestClients(t *testing.T) {
	t.Parallel()
	clients := filepath.Join(kvtest.Root(t), "deploy", "clients")
	for _, test := range []struct {
		name, dir, program string
		args               []string
	}{
		{"typescript", "typescript", "node", []string{"--test"}},
		{"python", "python", "python3", []string{"-m", "unittest", "discover"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(test.program)
			if err != nil {
				t.Skipf("needs %s: %v", test.program, err)
			}
			cmd := exec.CommandContext(t.Context(), program, test.args...)
			cmd.Dir = filepath.Join(clients, test.dir)
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1",
				"GOALKEEPER_KEY_VECTORS="+kvtest.Shared(t, "vectors/key-vectors.json"),
				"GOALKEEPER_ES6_NUMBERS="+kvtest.Shared(t, "vectors/es6-head-1000.txt"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", test.program, err, out)
			}
		})
	}
}

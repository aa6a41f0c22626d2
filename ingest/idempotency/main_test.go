package idempotency

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m, kvtest.Leaks()...)
}

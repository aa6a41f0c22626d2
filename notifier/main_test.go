package notifier_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestMain(m *testing.M) {
	if crashChild() {
		return
	}
	goleak.VerifyTestMain(m, kvtest.Leaks()...)
}

package tool_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(serverMode); mode != "" {
		serveStdio(mode) // this test binary plays an MCP server
		return
	}
	goleak.VerifyTestMain(m)
}

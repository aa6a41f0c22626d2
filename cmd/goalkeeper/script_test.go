package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"goalkeeper": main, "goalkeeper-unsynced": unsynced, "nats-node": natsNode})
}

// leakChecked runs the tests and then looks for goroutines that they left.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(kvtest.Leaks()...); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
		return 1
	}
	return code
}

// TestScripts runs the sessions in testdata/script. Each has an API of its own
// at $GOALKEEPER_URL, made by hand, and these commands besides the usual ones:
//
//	code N prog args...   run, and want exit code N
//	api auth|busy N|forget|watched   see below
//	save NAME             put the trimmed stdout into an environment variable
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:               setUpScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": cmdCode,
			"api":  cmdAPI,
			"save": cmdSave,
		},
	})
}

type apiValue struct{}

func setUpScript(env *testscript.Env) error {
	api := newFakeAPI()
	server := httptest.NewServer(api)
	env.Defer(func() { api.stop(); server.Close() })
	env.Values[apiValue{}] = api
	env.Setenv("GOALKEEPER_URL", server.URL)
	env.Setenv("GOALKEEPER_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
	env.Setenv("HOME", env.WorkDir)
	return nil
}

// cmdCode runs a program and compares its exit code.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code of %s: got %d, want %d\n%s%s", strings.Join(args[1:], " "), got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// cmdAPI tells the fake API what to do, or waits for it.
func cmdAPI(ts *testscript.TestScript, _ bool, args []string) {
	api, ok := ts.Value(apiValue{}).(*fakeAPI)
	if !ok {
		ts.Fatalf("there is no API")
	}
	switch args[0] {
	case "auth": // from now on the key "good" is needed
		api.set(func() { api.auth = true })
	case "busy": // answer 503 to the next N requests
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		api.set(func() { api.busy = n })
	case "forget": // who has watched until now
		for len(api.watched) > 0 {
			<-api.watched
		}
	case "watched": // wait until somebody watches or waits for a task
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		select {
		case <-api.watched:
		case <-ctx.Done():
			ts.Fatalf("nobody watches")
		}
	default:
		ts.Fatalf("unknown: api %s", args[0])
	}
}

// cmdSave keeps the last output in a variable.
func cmdSave(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

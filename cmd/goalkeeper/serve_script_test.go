package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestServeScripts runs the sessions in testdata/serve against the real server,
// as a process of its own. Commands besides the usual ones, code and save:
//
//	start NAME prog args...   run in the background until it says where it listens; the URL goes into $NAME
//	finish NAME               wait until it ends by itself; its output is in the files NAME.out and NAME.err
//	end NAME [KILL]           end it, by SIGINT or SIGKILL, and wait
//	backend NAME              a tool backend that holds its answers; its URL goes into $NAME
//	release                   let it answer
func TestServeScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "serve"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			all := &background{running: map[string]*process{}, held: make(chan struct{})}
			env.Values[backgroundKey{}] = all
			env.Defer(all.kill)
			env.Setenv("GOALKEEPER_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": cmdCode, "save": cmdSave, "start": cmdStart, "finish": cmdFinish, "end": cmdEnd, "backend": cmdBackend, "release": cmdRelease,
		},
	})
}

// background are a script's processes.
type background struct {
	running map[string]*process
	backend *httptest.Server
	held    chan struct{} // closed: the backend answers
	release sync.Once
}

type backgroundKey struct{}

func (b *background) kill() {
	for _, p := range b.running {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.wait()
	}
	b.letGo()
	if b.backend != nil {
		b.backend.Close()
	}
}

func (b *background) letGo() { b.release.Do(func() { close(b.held) }) }

func cmdBackend(ts *testscript.TestScript, _ bool, args []string) {
	all := processesOf(ts)
	all.backend = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-all.held
		answerJSON(w, http.StatusOK, map[string]bool{"done": true})
	}))
	ts.Setenv(args[0], all.backend.URL)
}

func cmdRelease(ts *testscript.TestScript, _ bool, _ []string) { processesOf(ts).letGo() }

// process is one background process.
type process struct {
	cmd     *exec.Cmd
	out     bytes.Buffer
	err     bytes.Buffer // guarded by copied
	copied  sync.WaitGroup
	waiting sync.Once
	ended   error
}

func (p *process) wait() error {
	p.waiting.Do(func() {
		p.copied.Wait()
		p.ended = p.cmd.Wait()
	})
	return p.ended
}

func processesOf(ts *testscript.TestScript) *background {
	all, ok := ts.Value(backgroundKey{}).(*background)
	if !ok {
		ts.Fatalf("no processes are kept")
	}
	return all
}

var listening = regexp.MustCompile(`listening on (https?://\S+)`)

// cmdStart starts a process and waits for the line that says where it listens.
func cmdStart(ts *testscript.TestScript, _ bool, args []string) {
	name := args[0]
	p := &process{cmd: exec.CommandContext(context.Background(), args[1], args[2:]...)}
	p.cmd.Dir = ts.Getenv("WORK")
	p.cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "GOALKEEPER_WEBHOOK_SECRET="+ts.Getenv("GOALKEEPER_WEBHOOK_SECRET"))
	p.cmd.Stdout = &p.out
	stderr, err := p.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	processesOf(ts).running[name] = p
	found := make(chan string, 1)
	p.copied.Go(func() {
		defer close(found)
		for in := bufio.NewReader(stderr); ; {
			line, err := in.ReadString('\n')
			p.err.WriteString(line)
			if m := listening.FindStringSubmatch(line); m != nil {
				found <- m[1]
				_, _ = io.Copy(&p.err, in) // until it ends
				return
			}
			if err != nil {
				return
			}
		}
	})
	select {
	case url, ok := <-found:
		if !ok {
			err := p.wait()
			ts.Fatalf("%v ended before it listened: %v\n%s", args[1:], err, p.err.String())
		}
		ts.Setenv(name, url)
	case <-time.After(30 * time.Second):
		ts.Fatalf("%v does not listen", args[1:])
	}
}

// cmdFinish waits for a process and writes its output into files.
func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	p := processesOf(ts).running[args[0]]
	err := p.wait()
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".out"), p.out.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".err"), p.err.Bytes(), 0o600))
	delete(processesOf(ts).running, args[0])
	if (err != nil) != neg {
		ts.Fatalf("%s ended with %v\n%s", args[0], err, p.err.String())
	}
}

// cmdEnd ends a process.
func cmdEnd(ts *testscript.TestScript, _ bool, args []string) {
	p := processesOf(ts).running[args[0]]
	if len(args) > 1 && args[1] == "KILL" {
		ts.Check(p.cmd.Process.Kill())
		if err := p.wait(); err == nil || !killed(err) {
			ts.Fatalf("%s ended with %v, not by the signal", args[0], err)
		}
		delete(processesOf(ts).running, args[0])
		return
	}
	ts.Check(p.cmd.Process.Signal(syscall.SIGINT))
	cmdFinish(ts, false, args[:1])
}

func killed(err error) bool {
	failed, ok := errors.AsType[*exec.ExitError](err)
	return ok && !failed.Exited()
}

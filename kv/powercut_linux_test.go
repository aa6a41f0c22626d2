package kv_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestPowerCut takes the power away from a store that answers writes as fast as
// it can: the process is stopped at a random moment and the image of its file
// system copied without a sync. Everything that was answered must be on the
// copy. Without the barrier the same cut must lose something, or this test
// could not fail.
func TestPowerCut(t *testing.T) {
	kvtest.Heavy(t)
	t.Run("barrier", func(t *testing.T) {
		for range 3 {
			answered, lost := powerCut(t, "group")
			t.Logf("%d answered, %d lost", answered, lost)
			if lost > 0 {
				t.Fatalf("%d of %d answered writes were lost", lost, answered)
			}
		}
	})
	t.Run("no barrier", func(t *testing.T) {
		for range 5 {
			answered, lost := powerCut(t, "none")
			t.Logf("%d answered, %d lost", answered, lost)
			if lost > 0 {
				return
			}
		}
		t.Fatal("nothing was lost without the barrier: the test proves nothing")
	})
}

// powerCut runs a writer until a random moment and counts what it was answered
// and what of that is gone.
func powerCut(t *testing.T, barrier string) (answered, lost int) {
	t.Helper()
	image := kvtest.NewImage(t)
	var after *kvtest.Image
	tasks := writeUntilCut(t, image.Dir(), barrier, func() { after = image.Cut(t) })
	image.Remove(t)

	after.Mount(t)
	defer after.Remove(t)
	c := kvtest.Server(t, kvtest.Options{Dir: after.Dir()})
	s := c.Store(t)
	for task, writes := range tasks {
		answered += writes
		lost += missing(t, s, task, writes)
	}
	c.Stop(0)
	return answered, lost
}

// The writes of one task, in the order that the child makes them.
const (
	wroteGoal = iota + 1
	wroteEvent
	wroteResult
)

// missing is how many of the first writes of the task are gone.
func missing(t *testing.T, s *kv.Store, task string, writes int) int {
	t.Helper()
	snap, err := s.Load(t.Context(), kv.DefaultTenant, task)
	switch {
	case errors.Is(err, goal.ErrNotFound):
		return writes
	case err != nil:
		t.Fatalf("load %s: %v", task, err)
	case writes >= wroteEvent && len(snap.Events) == 0:
		return writes - wroteGoal
	case writes >= wroteResult && (snap.Result == nil || len(snap.Events) != 2):
		return 1
	}
	return 0
}

// writeUntilCut starts the child on dir, stops it, lets cut do its work and
// ends the child. It returns how many writes of each task were answered.
func writeUntilCut(t *testing.T, dir, barrier string, cut func()) map[string]int {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, "pipe", err, nil)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPowerCutChild$") //nolint:gosec // this test
	child.Env = append(os.Environ(), "KV_POWERCUT_DIR="+dir, "KV_POWERCUT_BARRIER="+barrier)
	child.ExtraFiles, child.Stderr = []*os.File{w}, os.Stderr
	must(t, "start child", child.Start(), nil)
	must(t, "close pipe", w.Close(), nil)

	tasks := map[string]int{}
	first, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		once := sync.OnceFunc(func() { close(first) })
		for lines := bufio.NewScanner(r); lines.Scan(); once() {
			tasks[lines.Text()]++
		}
	}()
	select {
	case <-first:
	case <-done:
		t.Fatal("the child ended")
	}
	time.Sleep(time.Second + rand.N(2*time.Second)) //nolint:gosec // the moment of the cut
	must(t, "stop child", child.Process.Signal(syscall.SIGSTOP), nil)
	cut()
	must(t, "kill child", child.Process.Kill(), nil)
	_ = child.Wait() // killed
	<-done
	must(t, "close pipe", r.Close(), nil)
	return tasks
}

// TestPowerCutChild is the child of TestPowerCut. It reports every answered
// write with a line on descriptor 3: the task.
func TestPowerCutChild(t *testing.T) {
	dir := os.Getenv("KV_POWERCUT_DIR")
	if dir == "" {
		return // not in the child
	}
	c := kvtest.Server(t, kvtest.Options{Dir: dir})
	s := c.Store(t, func(c *kv.Config) {
		if os.Getenv("KV_POWERCUT_BARRIER") == "none" {
			return
		}
		g, err := kv.NewGroupCommit(dir)
		must(t, "group commit", err, nil)
		c.Barrier = g
	})
	report := os.NewFile(3, "report")
	var wg sync.WaitGroup
	for worker := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if err := writeTask(t, s, report, fmt.Sprintf("cut-%d-%d", worker, i)); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func writeTask(t *testing.T, s *kv.Store, report *os.File, task string) error {
	t.Helper()
	acc, _, err := s.Submit(t.Context(), submission(task))
	if err != nil {
		return err
	}
	if _, err := report.WriteString(task + "\n"); err != nil {
		return err
	}
	j, _, _, err := s.OpenJournal(t.Context(), acc)
	if err != nil {
		return err
	}
	if err := j.Append(t.Context(), started(acc)); err != nil {
		return err
	}
	if _, err := report.WriteString(task + "\n"); err != nil {
		return err
	}
	if _, err := s.Settle(t.Context(), acc, succeeded(), j.N()); err != nil {
		return err
	}
	_, err = report.WriteString(task + "\n")
	return err
}

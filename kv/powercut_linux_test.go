package kv_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "losetup", "cp"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
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
	dir := t.TempDir()
	image, mounted := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	makeImage(t, image)
	unmount := mount(t, image, mounted)
	tasks := writeUntilCut(t, mounted, barrier, func() { copyImage(t, image, image+".cut") })
	unmount()

	cut := filepath.Join(dir, "cut")
	defer mount(t, image+".cut", cut)()
	c := kvtest.Server(t, kvtest.Options{Dir: cut})
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
	j, _, err := s.OpenJournal(t.Context(), acc)
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

func makeImage(t *testing.T, image string) {
	t.Helper()
	f, err := os.Create(image)
	must(t, "create image", err, nil)
	must(t, "size image", f.Truncate(1<<30), nil)
	must(t, "close image", f.Close(), nil)
	command(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
}

// mount mounts the image and returns what unmounts it, at the end of the test
// at the latest.
func mount(t *testing.T, image, dir string) func() {
	t.Helper()
	must(t, "make mount point", os.MkdirAll(dir, 0o700), nil)
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("loop mounts do not work here: %v: %s", err, out)
	}
	unmount := sync.OnceFunc(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil { //nolint:noctx // also after the test's context has ended
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	t.Cleanup(unmount)
	return unmount
}

// copyImage copies the image as it is at one moment: again when the kernel
// wrote to it meanwhile by itself.
func copyImage(t *testing.T, image, to string) {
	t.Helper()
	loop := strings.TrimSpace(command(t, "losetup", "-j", image, "-O", "NAME", "-n"))
	for before := quiet(t, loop); ; {
		command(t, "cp", "--sparse=always", image, to)
		after := quiet(t, loop)
		if after == before {
			return
		}
		before = after
	}
}

// quiet waits until the loop device has nothing in flight and returns how many
// writes it has done.
func quiet(t *testing.T, loop string) int {
	t.Helper()
	for {
		raw, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/stat")
		must(t, "loop device", err, nil)
		f := strings.Fields(string(raw)) // Documentation/block/stat.rst: 4 is write I/Os, 8 is in flight
		writes, err := strconv.Atoi(f[4])
		must(t, "loop device", err, nil)
		if f[8] == "0" {
			return writes
		}
		time.Sleep(time.Millisecond)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

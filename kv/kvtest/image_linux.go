package kvtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Image is an ext4 file system in a file, from which a test can take the power
// away: what its device has at one moment, without what the kernel still holds
// in memory.
type Image struct {
	file    string
	dir     string
	mounted bool
}

const imageSize = 1 << 30 // bytes, sparse

// NewImage makes a file system and mounts it. The test is skipped where that
// does not work: it needs root and loop devices.
func NewImage(tb testing.TB) *Image {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("mounting a file system needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "losetup", "cp"} {
		if _, err := exec.LookPath(tool); err != nil {
			tb.Skipf("%s is not installed", tool)
		}
	}
	i := &Image{file: filepath.Join(tb.TempDir(), "image")}
	f, err := os.Create(i.file)
	if err != nil {
		tb.Fatalf("create image: %v", err)
	}
	if err := f.Truncate(imageSize); err != nil {
		tb.Fatalf("size image: %v", err)
	}
	if err := f.Close(); err != nil {
		tb.Fatalf("close image: %v", err)
	}
	command(tb, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", i.file)
	if out, err := i.mount(tb); err != nil {
		tb.Skipf("loop mounts do not work here: %v: %s", err, out)
	}
	return i
}

// Dir is where the file system is mounted.
func (i *Image) Dir() string { return i.dir }

// Cut takes the power away: it returns a copy of what the device has, not
// mounted. Whatever writes to the file system must have been stopped.
func (i *Image) Cut(tb testing.TB) *Image {
	tb.Helper()
	after := &Image{file: filepath.Join(tb.TempDir(), "image")}
	loop := strings.TrimSpace(command(tb, "losetup", "-j", i.file, "-O", "NAME", "-n"))
	// Again when the kernel wrote to it meanwhile by itself.
	for before := quiet(tb, loop); ; {
		command(tb, "cp", "--sparse=always", i.file, after.file)
		now := quiet(tb, loop)
		if now == before {
			return after
		}
		before = now
	}
}

// Mount mounts a copy, as the machine does when the power is back.
func (i *Image) Mount(tb testing.TB) {
	tb.Helper()
	if out, err := i.mount(tb); err != nil {
		tb.Fatalf("mount after the cut: %v: %s", err, out)
	}
}

func (i *Image) mount(tb testing.TB) (out []byte, err error) {
	tb.Helper()
	i.dir = filepath.Join(filepath.Dir(i.file), "mnt")
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return nil, err
	}
	out, err = exec.CommandContext(tb.Context(), "mount", "-o", "loop", i.file, i.dir).CombinedOutput() //nolint:gosec // files of the test
	if err == nil {
		i.mounted = true
		tb.Cleanup(func() { i.Remove(tb) })
	}
	return out, err
}

// Remove unmounts the file system and removes its file. It may be repeated, and
// happens at the end of the test at the latest.
func (i *Image) Remove(tb testing.TB) {
	tb.Helper()
	if !i.mounted {
		return
	}
	i.mounted = false
	if out, err := exec.Command("umount", i.dir).CombinedOutput(); err != nil { //nolint:gosec,noctx // a folder of the test, also after its context has ended
		tb.Errorf("umount: %v: %s", err, out)
	}
	if err := os.Remove(i.file); err != nil {
		tb.Errorf("remove image: %v", err)
	}
}

// quiet waits until the loop device has nothing in flight and returns how many
// writes it has done.
func quiet(tb testing.TB, loop string) int {
	tb.Helper()
	for {
		raw, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/stat")
		if err != nil {
			tb.Fatalf("loop device: %v", err)
		}
		f := strings.Fields(string(raw)) // Documentation/block/stat.rst: 4 is write I/Os, 8 is in flight
		writes, err := strconv.Atoi(f[4])
		if err != nil {
			tb.Fatalf("loop device: %v", err)
		}
		if f[8] == "0" {
			return writes
		}
		time.Sleep(time.Millisecond)
	}
}

func command(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), name, args...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

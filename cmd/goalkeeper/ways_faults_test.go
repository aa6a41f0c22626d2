package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// clients submit goals one after the other, each until it is taken, as clients
// should.
type clients struct {
	p    *instance
	stop chan struct{}
	all  sync.WaitGroup

	mu      sync.Mutex
	taken   []string      // tasks that were acknowledged; guarded by mu
	refused int           // 503 and 429; guarded by mu
	slowest time.Duration // of the refusals; guarded by mu
	wrong   []string      // answers that must not be; guarded by mu
}

// submitting starts n clients.
func submitting(t *testing.T, p *instance, n int) *clients {
	t.Helper()
	c := &clients{p: p, stop: make(chan struct{})}
	for i := range n {
		c.all.Go(func() {
			for k, goes := 0, true; goes; k++ {
				id := strconv.Itoa(i) + "-" + strconv.Itoa(k)
				goes = c.submit("client-"+id, encodedJSON(t, writeGoal(id, 1)))
			}
		})
	}
	return c
}

// submit repeats one goal until it is taken; false when the clients must stop.
func (c *clients) submit(key string, body []byte) bool {
	for {
		r, err := c.p.try(http.MethodPost, "/v1/tasks", body, "Idempotency-Key", key)
		pause := 20 * time.Millisecond
		c.mu.Lock()
		switch {
		case err != nil:
			c.wrong = append(c.wrong, err.Error())
		case r.status == http.StatusAccepted || r.status == http.StatusOK:
			c.taken = append(c.taken, r.task().ID)
		case (r.status == http.StatusServiceUnavailable || r.status == http.StatusTooManyRequests) && r.header.Get("Retry-After") != "":
			c.refused++
			c.slowest = max(c.slowest, r.took)
			pause = 200 * time.Millisecond
		default:
			c.wrong = append(c.wrong, fmt.Sprintf("%d %v %s", r.status, r.header, r.body))
		}
		c.mu.Unlock()
		select {
		case <-c.stop:
			return false
		case <-time.After(pause):
		}
		if err == nil && r.status < http.StatusMultipleChoices {
			return true
		}
	}
}

// counts are the acknowledged and the refused submissions so far.
func (c *clients) counts() (taken, refused int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.taken), c.refused
}

// more waits until n more goals were taken.
func (c *clients) more(t *testing.T, when string, n int) {
	t.Helper()
	before, _ := c.counts()
	comesTrue(t, "goals are taken "+when, func() bool {
		now, _ := c.counts()
		return now >= before+n
	})
}

// refusals waits until n more submissions were refused.
func (c *clients) refusals(t *testing.T, when string, n int) {
	t.Helper()
	_, before := c.counts()
	comesTrue(t, "submissions are refused "+when, func() bool {
		_, now := c.counts()
		return now >= before+n
	})
}

// end stops the clients and checks what they saw: every acknowledged goal is
// there and reaches its end.
func (c *clients) end(t *testing.T) {
	t.Helper()
	close(c.stop)
	c.all.Wait()
	if len(c.wrong) > 0 {
		t.Errorf("%d answers that must not be, such as %s", len(c.wrong), c.wrong[0])
	}
	// 1.5 s are allowed to the store; the rest is for a loaded machine.
	if c.slowest > 4*time.Second {
		t.Errorf("a refusal took %s", c.slowest)
	}
	for _, id := range c.taken {
		if task := c.p.settled(id); task.Status != goal.Succeeded {
			t.Errorf("task %s = %s %s", id, task.Status, task.Reason)
		}
	}
	t.Logf("%d goals were acknowledged, and none is lost; %d refusals, the slowest in %s", len(c.taken), c.refused, c.slowest.Round(time.Millisecond))
}

// fixedAddress is an address on loopback that stays free for a server which is
// started again: systems do not give out such ports by themselves.
func fixedAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := "127.0.0.1:" + strconv.Itoa(10_000+rand.IntN(20_000)) //nolint:gosec // any free one
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		if err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no free port on loopback")
	return ""
}

// TestStoreFaults: the NATS server of an ingest process stands still, is killed
// and comes back. Submissions are refused within about 2 s meanwhile, nothing
// that was acknowledged is lost, and the process goes on by itself.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	dir, addr := t.TempDir(), fixedAddress(t)
	serve := func() *instance {
		return launch(t, nil, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--nats-listen", addr)
	}
	node := serve()
	p := ingestOn(t, node.nats, "")
	c := submitting(t, p, 3)
	c.more(t, "at first", 10)

	node.signal(syscall.SIGSTOP)
	c.refusals(t, "while the store stands still", 6)
	first := func() string { c.mu.Lock(); defer c.mu.Unlock(); return c.taken[0] }()
	for path, want := range map[string]int{
		"/readyz": http.StatusServiceUnavailable, "/healthz": http.StatusOK, "/v1/tasks?limit=5": http.StatusOK,
		"/v1/tasks/" + first: http.StatusServiceUnavailable,
	} {
		r := p.call(http.MethodGet, path, nil)
		if r.status != want || r.took > 4*time.Second || (want == http.StatusServiceUnavailable && path != "/readyz" && r.header.Get("Retry-After") == "") {
			t.Errorf("%s while the store stands still: %d after %s %v", path, r.status, r.took, r.header)
		}
	}
	node.signal(syscall.SIGCONT)
	c.more(t, "after the stand-still", 10)
	comesTrue(t, "the process is ready again", func() bool { return p.call(http.MethodGet, "/readyz", nil).status == http.StatusOK })

	node.signal(syscall.SIGKILL)
	<-node.done
	c.refusals(t, "while the store is gone", 6)
	serve()
	c.more(t, "after the store was started again", 10)
	c.end(t)
	select {
	case <-p.done:
		t.Error("the ingest process has ended")
	default:
	}
}

// TestFullDisk: the disk of the embedded store is full. Submissions are refused,
// no acknowledged goal is lost, and all goes on without a restart when there is
// space again.
func TestFullDisk(t *testing.T) {
	kvtest.Heavy(t)
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"tmpfs", func(t *testing.T, dir string) {
			t.Helper()
			mountAt(t, dir, "-t", "tmpfs", "-o", "size=48m", "tmpfs")
		}},
		{"ext4", func(t *testing.T, dir string) {
			t.Helper()
			image := filepath.Join(t.TempDir(), "image")
			writeConfig(t, image, "")
			if err := os.Truncate(image, 64<<20); err != nil {
				t.Fatal(err)
			}
			if out, err := outputOf(t, nil, "mkfs.ext4", "-q", "-F", image); err != nil {
				t.Skipf("%v %s", err, out)
			}
			mountAt(t, dir, "-o", "loop", image)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), "disk")
			if err := os.Mkdir(disk, 0o700); err != nil {
				t.Fatal(err)
			}
			c.make(t, disk)
			p := launch(t, nil, "serve", "--data", filepath.Join(disk, "data"), "--listen", "127.0.0.1:0")
			all := submitting(t, p, 3)
			for round := range 2 {
				all.more(t, "with space", 20)
				filler := filepath.Join(disk, "filler")
				fillUp(t, filler)
				all.refusals(t, "on a full disk", 6)
				if r := p.call(http.MethodGet, "/readyz", nil); r.status != http.StatusServiceUnavailable {
					t.Errorf("round %d: readyz on a full disk: %d", round, r.status)
				}
				if err := os.Remove(filler); err != nil {
					t.Fatal(err)
				}
				all.more(t, "when there is space again", 20)
			}
			all.end(t)
			if r := p.call(http.MethodGet, "/readyz", nil); r.status != http.StatusOK {
				t.Errorf("readyz in the end: %d %s", r.status, r.body)
			}
			p.end()
		})
	}
}

// mountAt mounts a file system on dir for the test's time.
func mountAt(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := outputOf(t, nil, "mount", append(args, dir)...); err != nil {
		t.Skipf("mounts do not work here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
}

// fillUp takes all the space of a file system.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

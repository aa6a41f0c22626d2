package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// backedUp fills a service's store with an ended and a queued goal, which has no worker.
func backedUp(t *testing.T, s *site) (ended, queued string) {
	t.Helper()
	ended = s.submit("ended", securedGoal("ended", ""))
	if status, _, raw := s.post("/v1/tasks/"+ended+"/cancel", "", nil); status != http.StatusAccepted {
		t.Fatalf("cancel: %d %s", status, raw)
	}
	return ended, s.submit("queued", securedGoal("queued", ""))
}

// restored checks that the restored store goes on.
func restored(t *testing.T, s *site, ended, queued string) {
	t.Helper()
	if got := s.task(ended).Status; got != goal.Cancelled {
		t.Errorf("the ended task is %s", got)
	}
	eventually(t, func() bool { return s.task(queued).Status.Terminal() })
	body, err := goal.Marshal(securedGoal("queued", ""))
	if err != nil {
		t.Fatal(err)
	}
	if status, header, raw := s.post("/v1/tasks", "queued", body); status != http.StatusOK || header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the queued goal again: %d %s", status, raw)
	}
}

// TestBackupFolder restores a copy of the stopped embedded store.
func TestBackupFolder(t *testing.T) {
	t.Parallel()
	data, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "copy")
	var ended, queued string
	t.Run("before", func(t *testing.T) {
		ended, queued = backedUp(t, newSite(t, false, func(c *config) { c.Data = data }))
	})
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	restored(t, newSite(t, true, func(c *config) { c.Data = data }), ended, queued)
}

// TestBackupServers backs up and restores external servers with the commands of
// deploy/BACKUP.md.
func TestBackupServers(t *testing.T) {
	t.Parallel()
	nats, err := exec.LookPath("nats")
	if err != nil {
		t.Skip("the nats command line is not installed")
	}
	command := func(url string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), nats, append([]string{"--server", url}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nats %v: %v\n%s", args, err, out)
		}
	}
	dir := filepath.Join(t.TempDir(), "backup")
	from, to := kvtest.Server(t, kvtest.Options{Listen: true}), kvtest.Server(t, kvtest.Options{Listen: true})
	var ended, queued string
	t.Run("before", func(t *testing.T) {
		s := startRole(t, roleConfig(from.URL()), roles{ingest: true})
		ended, queued = backedUp(t, &site{t: t, url: s.url()})
		command(from.URL(), "backup", "account", "--force", dir)
	})
	// Leases are in memory, which has no backup: what is left of it is not one.
	if err := os.RemoveAll(filepath.Join(dir, "KV_LOCKS")); err != nil {
		t.Fatal(err)
	}
	command(to.URL(), "backup", "restore", "account", dir)
	s := startRole(t, roleConfig(to.URL()), allRoles)
	restored(t, &site{t: t, url: s.url()}, ended, queued)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// damage is what a disk or a power cut can do to the newest file of a stream.
type damage struct {
	name string
	most int // goals that it may cost
	do   func([]byte) []byte
}

const (
	damagedGoals = 40
	flippedBit   = "a bit in the middle"
)

var damages = []damage{
	{"torn: 37 bytes cut", 1, func(b []byte) []byte { return b[:len(b)-37] }},
	{"half cut", damagedGoals, func(b []byte) []byte { return b[:len(b)/2] }},
	{"64 bytes garbled", 1, func(b []byte) []byte {
		for i := len(b) - 64; i < len(b); i++ {
			b[i] ^= 0x5a
		}
		return b
	}},
	{"512 bytes zeroed", 1, func(b []byte) []byte { clear(b[len(b)-512:]); return b }},
	{flippedBit, damagedGoals, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
}

// TestDamagedStore damages the newest file of one stream after the other, of a
// store that was stopped or killed, and starts on it. It must work or say why
// not, lose nothing but what was damaged, tell what it has lost, and take new
// goals. The table in its log shows it.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	streams := []string{goal.GoalsStream(defaultTenant), "KV_" + goal.ResultsBucket, goal.EventsStream, "KV_" + goal.StateBucket}
	few := []damage{damages[0], damages[3]}
	if os.Getenv("GOALKEEPER_SOAK") != "" {
		streams, few = append(streams, goal.DeliveriesStream, "KV_"+goal.CallsBucket), damages
	}
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "ENDED BY\tSTREAM\tDAMAGE\tFOUND\tSETTLED\tWHOLE\tFIRST LOST\tNEW GOAL\tSAID")
	for _, killed := range []bool{false, true} {
		d := newDamagedStore(t, killed)
		for _, stream := range streams {
			for _, what := range few {
				d.try(tw, stream, what)
			}
		}
	}
	_ = tw.Flush()
	t.Logf("\n%s", table.String())
}

// damagedStore is a store with goals that have ended, to be copied and damaged.
type damagedStore struct {
	t     *testing.T
	how   string
	world *soakWorld
	data  string
	tasks []string // in the order of their acceptance
	tried int
}

func newDamagedStore(t *testing.T, killed bool) *damagedStore {
	t.Helper()
	d := &damagedStore{t: t, how: "SIGTERM", world: newSoakWorld(t), data: filepath.Join(t.TempDir(), "data")}
	serve, l := d.serve(d.data)
	serve.start()
	for i := range damagedGoals {
		d.tasks = append(d.tasks, d.send(l, i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, task := range d.tasks {
		if !d.settled(ctx, l, task) {
			t.Fatalf("%s does not settle", task)
		}
	}
	if killed {
		d.how = "SIGKILL"
		for !d.marked() && ctx.Err() == nil {
			waitABit(ctx, 100*time.Millisecond)
		}
		serve.kill()
	} else if err := serve.stop(); err != nil {
		t.Fatal(err)
	}
	return d
}

// marked reports whether it is noted how far the streams have come.
func (d *damagedStore) marked() bool {
	raw, err := os.ReadFile(filepath.Join(d.data, marksFile))
	var m marks
	return err == nil && json.Unmarshal(raw, &m) == nil && m.Last[goal.GoalsStream(defaultTenant)] == damagedGoals && m.Last["KV_"+goal.ResultsBucket] == damagedGoals
}

// serve prepares a server on a data folder and clients for it.
func (d *damagedStore) serve(data string) (*member, *load) {
	d.t.Helper()
	dir, port := d.t.TempDir(), freePorts(d.t, 1)[0]
	m := program(d.t, dir, fmt.Sprintf("serve-%s-%d", d.how, d.tried), "goalkeeper", "serve", "--config", d.world.config(d.t, dir, ""), "--data", data, "--listen", "127.0.0.1:"+port)
	return m, newLoad(d.t, d.world, 1, "http://127.0.0.1:"+port)
}

// send wants one goal and returns its task.
func (d *damagedStore) send(l *load, n int) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	key := fmt.Sprintf("d%d", n)
	body, err := goal.Marshal(map[string]any{
		"goal":       map[string]any{"intent": "Make it so: " + key, "target_state": map[string]any{"things": map[string]any{key: map[string]any{"done": true}}}},
		"guardrails": map[string]any{"max_steps": 8, "timeout_seconds": 60}, "webhook_url": l.world.url + "/hook",
	})
	if err != nil {
		d.t.Fatal(err)
	}
	task := goal.TaskID(defaultTenant, key)
	if !l.submit(ctx, key, task, body) {
		d.t.Errorf("%s was not taken", key)
	}
	return task
}

// settled waits until the task has ended.
func (d *damagedStore) settled(ctx context.Context, l *load, task string) bool {
	for ctx.Err() == nil {
		var seen goal.Task
		if l.get(ctx, task, "?trace=none", &seen) && seen.Status.Terminal() {
			return true
		}
		waitABit(ctx, 20*time.Millisecond)
	}
	return false
}

// try damages a copy of the store and starts on it.
func (d *damagedStore) try(out *tabwriter.Writer, stream string, what damage) {
	d.t.Helper()
	d.tried++
	data := filepath.Join(d.t.TempDir(), "data")
	if err := os.CopyFS(data, os.DirFS(d.data)); err != nil {
		d.t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(data, "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("no files of stream %s: %v", stream, err)
	}
	newest := slices.Max(files)
	raw, err := os.ReadFile(newest)
	if err != nil {
		d.t.Fatal(err)
	}
	if len(raw) < 1024 {
		fmt.Fprintf(out, "%s\t%s\t%s\tonly %d bytes\n", d.how, stream, what.name, len(raw))
		return
	}
	if err := os.WriteFile(newest, what.do(raw), 0o600); err != nil {
		d.t.Fatal(err)
	}
	serve, l := d.serve(data)
	defer serve.kill()
	serve.start()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	if err := answers(ctx, l.urls[0]+"/readyz"); err != nil {
		fmt.Fprintf(out, "%s\t%s\t%s\tdoes not start\t\t\t\t\t%s\n", d.how, stream, what.name, d.said(serve))
		d.t.Errorf("%s, %s, %s: does not start: %v", d.how, stream, what.name, err)
		return
	}
	found, settled, whole, first := d.look(ctx, l)
	next := d.send(l, damagedGoals+1)
	fresh := d.settled(ctx, l, next)
	said := d.said(serve)
	fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%v\t%s\n", d.how, stream, what.name, found, settled, whole, first, fresh, said)
	complain := func(format string, a ...any) {
		d.t.Errorf("%s, %s, %s: "+format, append([]any{d.how, stream, what.name}, a...)...)
	}
	if damagedGoals-settled > what.most || damagedGoals-whole > what.most {
		complain("of %d goals %d are settled and %d have a whole trace", damagedGoals, settled, whole)
	}
	if quiet := what.name == flippedBit && d.how == "SIGTERM"; quiet {
		return // the server trusts its index and finds out when it reads the record
	}
	if first >= 0 && !strings.Contains(said, "stream="+stream) {
		complain("goal %d lost something, and the start does not say so", first)
	}
	if !fresh {
		complain("a new goal does not settle")
	}
}

// look counts the tasks that are still found, that are settled, and whose
// trace is whole, and names the first that is not.
func (d *damagedStore) look(ctx context.Context, l *load) (found, settled, whole, first int) {
	first = -1
	for i, task := range d.tasks {
		status, _, body := l.do(ctx, http.MethodGet, "/v1/tasks/"+task+"?trace=none", "", nil)
		if status == http.StatusOK {
			found++
		}
		ok := status == http.StatusOK && bytes.Contains(body, []byte(`"status":"succeeded"`))
		if ok {
			settled++
		}
		_, _, trace := l.do(ctx, http.MethodGet, "/v1/tasks/"+task+"/trace", "", nil)
		if bytes.Contains(trace, []byte(goal.TaskEnded)) {
			whole++
		} else {
			ok = false
		}
		if !ok && first < 0 {
			first = i + 1
		}
	}
	return found, settled, whole, first
}

// said is what the server had to say about it.
func (d *damagedStore) said(m *member) string {
	raw, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "error:") {
			_, line, _ = strings.Cut(line, "msg=")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, " | ")
}

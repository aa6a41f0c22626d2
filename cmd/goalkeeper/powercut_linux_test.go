package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestPowerCut takes the power away from the whole product under load, again
// and again: the process is stopped at a random moment or in the very moment in
// which the world sees something, the image of its file system copied without a
// sync, and the program started on the copy. What clients, the tool backend and
// the webhook receiver saw before the cut must be true after it. Without the
// barrier that must fail, or this test could not. GOALKEEPER_SEED repeats the
// moments.
func TestPowerCut(t *testing.T) {
	kvtest.Heavy(t)
	for _, tc := range []struct {
		durability string
		cuts       int
		program    []string
	}{
		{durableGroup, 2*len(moments) + 1, []string{"goalkeeper", "serve", "--config"}},
		{durableAlways, 2, []string{"goalkeeper", "serve", "--config"}},
	} {
		t.Run(tc.durability, func(t *testing.T) {
			p := newPowerCut(t, tc.durability, patience, tc.program...)
			if bad := p.run(tc.cuts); len(bad) > 0 {
				t.Errorf("lost: %d\n%s", len(bad), strings.Join(bad[:min(len(bad), 40)], "\n"))
			}
			p.load.finish(t)
		})
	}
	t.Run("no barrier", func(t *testing.T) {
		p := newPowerCut(t, durableGroup, time.Second, "goalkeeper-unsynced", "--config")
		bad := p.run(5)
		if len(bad) == 0 {
			t.Error("nothing was lost without the barrier: the test proves nothing")
		}
		t.Logf("lost: %d\n%s", len(bad), strings.Join(bad[:min(len(bad), 8)], "\n"))
	})
}

// moments are those of the cuts, beside any moment.
var moments = []string{sawAnswer, sawCall, sawWebhook, sawCancel, sawEnd}

// powerCut is the product on a file system that loses its power.
type powerCut struct {
	t       *testing.T
	dir     string
	program []string // the configuration file follows
	head    string   // of the configuration
	rand    *rand.Rand
	image   *kvtest.Image
	serve   *member
	world   *soakWorld
	load    *load
}

func newPowerCut(t *testing.T, durability string, patience time.Duration, program ...string) *powerCut {
	t.Helper()
	seed, ports := soakSeed(t), freePorts(t, 2)
	t.Logf("GOALKEEPER_SEED=%d", seed)
	p := &powerCut{
		t: t, dir: t.TempDir(), program: program, rand: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // repeatable
		head:  fmt.Sprintf("durability: %s\nlisten: 127.0.0.1:%s\nnats: {listen: \"127.0.0.1:%s\"}\n", durability, ports[0], ports[1]),
		image: kvtest.NewImage(t), world: newSoakWorld(t),
	}
	p.world.slow = 200 * time.Millisecond // many calls are in flight at any moment
	p.load = newLoad(t, p.world, 20, "http://127.0.0.1:"+ports[0])
	p.load.cancels, p.load.waits, p.load.patience = true, true, patience
	nc, err := nats.Connect("nats://127.0.0.1:"+ports[1], nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	p.load.direct = nc
	return p
}

// run cuts the power so many times, or until something is lost, and says what.
func (p *powerCut) run(cuts int) (bad []string) {
	ctx, enough := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.load.run(ctx) }()
	bad = p.cuts(cuts)
	enough()
	<-done
	if len(bad) == 0 {
		bad, _ = p.missing(p.world.clone(), time.Time{}) // what ended long before the last cut, too
	}
	return bad
}

// recent is how far back before a cut a task must have been taken or ended to
// be looked at although it has ended.
const recent = 3 * time.Second

func (p *powerCut) cuts(cuts int) []string {
	if err := p.start(0); err != nil {
		return []string{err.Error()}
	}
	when := p.shuffled(slices.Concat(moments, moments, []string{""}))
	for n := range cuts {
		waitABit(p.t.Context(), 500*time.Millisecond+time.Duration(p.rand.Int64N(int64(2*time.Second))))
		moment := when[n%len(when)]
		before, at := p.cut(moment)
		if err := p.start(n + 1); err != nil {
			return []string{err.Error()}
		}
		bad, looked := p.missing(before, at.Add(-recent))
		p.t.Logf("cut %d, %s: %d lost; %d tasks looked at; seen by then: %s", n+1, cmp.Or(moment, "any moment"), len(bad), looked, before.seen())
		if len(bad) > 0 {
			return bad
		}
	}
	return nil
}

func (p *powerCut) shuffled(list []string) []string {
	list = slices.Clone(list)
	p.rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list
}

// start starts the program on the image.
func (p *powerCut) start(n int) error {
	config := p.world.config(p.t, p.dir, p.head+"data: "+filepath.Join(p.image.Dir(), "data")+"\n")
	p.serve = program(p.t, p.dir, fmt.Sprintf("serve-%d", n), append(slices.Clone(p.program), config)...)
	p.serve.start()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	if err := answers(ctx, p.load.urls[0]+"/readyz"); err != nil {
		return fmt.Errorf("does not start after cut %d: %w", n, err)
	}
	if len(p.serve.crashes) > 0 {
		return fmt.Errorf("ended by itself: %q", p.serve.crashes)
	}
	return nil
}

// cut takes the power away when the world sees something of that kind, or at
// once, and gives it back. It returns what the world has seen by then.
func (p *powerCut) cut(moment string) (before *history, at time.Time) {
	p.t.Helper()
	stopped := make(chan error, 1)
	stop := func() { stopped <- p.serve.freeze() }
	if moment == "" {
		stop()
	} else {
		p.world.ambush.Store(&ambush{moment, stop})
	}
	select {
	case err := <-stopped:
		if err != nil {
			p.t.Fatalf("stop the program: %v", err)
		}
	case <-time.After(20 * time.Second):
		p.t.Fatalf("no %s is seen any more", moment)
	}
	at = time.Now()
	after := p.image.Cut(p.t)
	p.serve.kill()
	p.image.Remove(p.t)
	p.image = after
	p.image.Mount(p.t)
	return p.world.clone(), at
}

// freeze stops the process and waits until no thread of it runs any more.
func (m *member) freeze() error {
	m.signal(syscall.SIGSTOP)
	m.mu.Lock()
	pid := m.cmd.Process.Pid
	m.mu.Unlock()
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// missing asks the program for everything that was seen of tasks that had not
// ended before since, and says what is not so any more. The program works
// meanwhile: it can add to what there is, not change it.
func (p *powerCut) missing(before *history, since time.Time) (bad []string, looked int) {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	tasks := before.since(since)
	var some errgroup.Group
	some.SetLimit(8)
	for _, task := range tasks {
		some.Go(func() error {
			now := p.look(ctx, before, task)
			before.note(func() {
				for _, what := range before.lost(task, now) {
					bad = append(bad, task+": "+what)
				}
			})
			return nil
		})
	}
	_ = some.Wait() // none fails
	slices.Sort(bad)
	return bad, len(tasks)
}

// since are the tasks of which something was seen, but for those that were
// taken and had ended before at.
func (h *history) since(at time.Time) (tasks []string) {
	for task := range h.sent {
		taken, acked := h.acked[task]
		ends := h.ends[task]
		old := acked && taken.Before(at) && len(ends) > 0 && ends[0].Before(at)
		// A call or a webhook may have come before its client had its 202.
		if !old && (acked || len(h.hooks[task])+len(h.calls[task]) > 0) {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// look is one task after a cut.
type look struct {
	task   goal.Task
	events []goal.Event
	bad    []string
}

// look reads a task whose 202, call or webhook was seen, submits it again, and
// looks whether the state that made it a success is there.
func (p *powerCut) look(ctx context.Context, before *history, task string) (now look) {
	var told []goal.State
	var g sentGoal
	var acked bool
	before.note(func() {
		_, acked = before.acked[task]
		g, told = before.sent[task], before.states[task]
	})
	var trace struct{ Events []goal.Event }
	err := errors.Join(p.read(ctx, task, "?trace=none", &now.task), p.read(ctx, task, "/trace", &trace))
	now.events = trace.Events
	if acked {
		err = errors.Join(err, p.replay(ctx, task, g))
	}
	if g.counter == "" && slices.Contains(told, goal.Succeeded) {
		err = errors.Join(err, p.holds(ctx, g))
	}
	if err != nil {
		now.bad = strings.Split(err.Error(), "\n")
	}
	return now
}

// lost is what was seen of a task before a cut and is not so any more. The
// caller holds mu.
func (h *history) lost(task string, now look) (bad []string) {
	h.traces[task] = now.events
	if now.task.ID != "" {
		h.states[task] = append(h.states[task], now.task.Status)
		h.ended(now.task)
	}
	bad = slices.Concat(now.bad, h.checkCalls(task), h.checkStates(task))
	for _, hook := range h.hooks[task] {
		if hook.status != now.task.Status {
			bad = append(bad, fmt.Sprintf("a webhook said %s and it is %s", hook.status, now.task.Status))
		}
	}
	if h.cancelled[task] && !now.task.CancelAsked && !now.task.Status.Terminal() {
		bad = append(bad, "its cancelling is forgotten")
	}
	return bad
}

// read reads something of a task that must be there.
func (p *powerCut) read(ctx context.Context, task, what string, v any) error {
	status, _, body := p.ask(ctx, http.MethodGet, "/v1/tasks/"+task+what, "", nil)
	if status != http.StatusOK {
		return fmt.Errorf("GET answers %d %s", status, body)
	}
	return json.Unmarshal(body, v)
}

// replay wants the submission to be known.
func (p *powerCut) replay(ctx context.Context, task string, g sentGoal) error {
	_, body := p.load.goal(g.n)
	status, header, answer := p.ask(ctx, http.MethodPost, "/v1/tasks", g.key, body)
	if (status != http.StatusAccepted && status != http.StatusOK) || header.Get("Idempotent-Replayed") != "true" || path.Base(header.Get("Location")) != task {
		return fmt.Errorf("its submission is answered %d, replayed %q, %s", status, header.Get("Idempotent-Replayed"), answer)
	}
	return nil
}

// holds wants the state that made a goal a success to be there.
func (p *powerCut) holds(ctx context.Context, g sentGoal) error {
	_, body := p.load.goal(g.n)
	for {
		status, _, answer := p.ask(ctx, http.MethodPost, "/v1/tasks?dry_run=true", "dry-"+g.key, body)
		var report ingest.Report
		err := json.Unmarshal(answer, &report)
		switch {
		case err == nil && report.Verdict == ingest.AlreadySatisfied:
			return nil
		case err != nil || report.Verdict != ingest.Unknown || ctx.Err() != nil:
			return fmt.Errorf("its success does not hold: %d %s", status, answer)
		}
		waitABit(ctx, 50*time.Millisecond) // the store is busy
	}
}

// ask sends a request until it has an answer that is not a fault.
func (p *powerCut) ask(ctx context.Context, method, target, key string, body []byte) (status int, header http.Header, answer []byte) {
	for {
		status, header, answer = p.load.do(ctx, method, target, key, body)
		if (status != 0 && status < http.StatusInternalServerError) || ctx.Err() != nil {
			return status, header, answer
		}
		waitABit(ctx, 50*time.Millisecond)
	}
}

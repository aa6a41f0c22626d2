package main

import (
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
	"golang.org/x/sys/unix"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestPowerCut takes the power away from the whole product under load, again
// and again: the process is stopped at a random moment, the image of its file
// system copied without a sync, and the program started on the copy. What
// clients, the tool backend and the webhook receiver saw before the cut must be
// true after it. Without the barrier that must fail, or this test could not.
// GOALKEEPER_SEED repeats the moments of the cuts.
func TestPowerCut(t *testing.T) {
	kvtest.Heavy(t)
	for _, tc := range []struct {
		durability string
		cuts       int
		program    []string
	}{
		{durableGroup, 5, []string{"goalkeeper", "serve", "--config"}},
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
		p := newPowerCut(t, durableGroup, time.Second, "goalkeeper-unsynced")
		bad := p.run(5)
		if len(bad) == 0 {
			t.Error("nothing was lost without the barrier: the test proves nothing")
		}
		t.Logf("lost: %d\n%s", len(bad), strings.Join(bad[:min(len(bad), 8)], "\n"))
	})
}

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
	done    map[string]bool // tasks that had ended at an earlier cut
	looked  int             // tasks looked at after the last cut
}

func newPowerCut(t *testing.T, durability string, patience time.Duration, program ...string) *powerCut {
	t.Helper()
	seed, ports := soakSeed(t), freePorts(t, 2)
	t.Logf("GOALKEEPER_SEED=%d", seed)
	p := &powerCut{
		t: t, dir: t.TempDir(), program: program, rand: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // repeatable
		head:  fmt.Sprintf("durability: %s\nlisten: 127.0.0.1:%s\nnats: {listen: \"127.0.0.1:%s\"}\n", durability, ports[0], ports[1]),
		image: kvtest.NewImage(t), world: newSoakWorld(t), done: map[string]bool{},
	}
	p.world.slow = 200 * time.Millisecond // many calls are in flight at any moment
	p.load = newLoad(t, p.world, 30, "http://127.0.0.1:"+ports[0])
	p.load.cancels, p.load.patience = true, patience
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
	defer func() { enough(); <-done }()
	if err := p.start(0); err != nil {
		return []string{err.Error()}
	}
	for n := range cuts {
		waitABit(ctx, time.Second+time.Duration(p.rand.Int64N(int64(3*time.Second))))
		before := p.cut()
		if err := p.start(n + 1); err != nil {
			return []string{err.Error()}
		}
		p.looked = 0
		bad = p.missing(before)
		p.t.Logf("cut %d: %d lost; %d tasks looked at; seen by then: %s", n+1, len(bad), p.looked, before.seen())
		if len(bad) > 0 {
			return bad
		}
	}
	clear(p.done)
	return p.missing(p.world.clone()) // those that had ended long before, too
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

// cut takes the power away and gives it back. It returns what the world has
// seen by then.
func (p *powerCut) cut() *history {
	p.t.Helper()
	if err := p.serve.freeze(); err != nil {
		p.t.Fatalf("stop the program: %v", err)
	}
	after := p.image.Cut(p.t)
	p.serve.kill()
	p.image.Remove(p.t)
	p.image = after
	p.image.Mount(p.t)
	return p.world.clone()
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

// missing asks the program for everything that was seen, and says what is not
// so any more. The program works meanwhile: it can add to what there is, not
// change it.
func (p *powerCut) missing(before *history) (bad []string) {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	for task, g := range before.sent {
		if p.done[task] {
			continue
		}
		_, acked := before.acked[task]
		if !acked && len(before.hooks[task])+len(before.calls[task]) == 0 {
			continue
		}
		p.looked++
		what, err := p.missingOf(ctx, before, task, g)
		if err != nil {
			what = append(what, err.Error())
		}
		for _, w := range what {
			bad = append(bad, task+": "+w)
		}
	}
	slices.Sort(bad)
	return bad
}

// missingOf looks at one task, whose 202, call or webhook was seen.
func (p *powerCut) missingOf(ctx context.Context, before *history, task string, g sentGoal) (bad []string, err error) {
	var now goal.Task
	var trace struct{ Events []goal.Event }
	if err := p.read(ctx, task, "?trace=none", &now); err != nil {
		return nil, err
	}
	if err := p.read(ctx, task, "/trace", &trace); err != nil {
		return nil, err
	}
	told := before.states[task]
	before.states[task] = append(told, now.Status)
	before.ended(now)
	before.traces[task] = trace.Events
	bad = append(before.checkCalls(task), before.checkStates(task)...)
	for _, h := range before.hooks[task] {
		if h.status != now.Status {
			bad = append(bad, fmt.Sprintf("a webhook said %s and it is %s", h.status, now.Status))
		}
	}
	if before.cancelled[task] && !now.CancelAsked && !now.Status.Terminal() {
		bad = append(bad, "its cancelling is forgotten")
	}
	if _, acked := before.acked[task]; acked {
		if err := p.replay(ctx, task, g); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if g.counter == "" && len(told) > 0 && told[len(told)-1] == goal.Succeeded {
		if err := p.holds(ctx, g); err != nil {
			bad = append(bad, err.Error())
		}
	}
	p.done[task] = now.Status.Terminal()
	return bad, nil
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
	status, _, answer := p.ask(ctx, http.MethodPost, "/v1/tasks?dry_run=true", "dry-"+g.key, body)
	var report ingest.Report
	if err := json.Unmarshal(answer, &report); err != nil || report.Verdict != ingest.AlreadySatisfied {
		return fmt.Errorf("its success does not hold: %d %s", status, answer)
	}
	return nil
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

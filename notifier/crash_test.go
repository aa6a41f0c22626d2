package notifier_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// crashPlan is what the parent tells the child.
type crashPlan struct {
	Dir   string
	URLs  []string
	Tasks int // published once, when the stream is empty
}

const crashEnv = "GOALKEEPER_TEST_CRASH"

// crashChild is the process that is killed: server, store and notifier in one.
func crashChild() bool {
	text := os.Getenv(crashEnv)
	if text == "" {
		return false
	}
	var plan crashPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		panic(err)
	}
	if err := plan.run(context.Background()); err != nil {
		panic(err)
	}
	return true
}

func (p crashPlan) run(ctx context.Context) error {
	opts := &server.Options{JetStream: true, StoreDir: p.Dir, DontListen: true, NoSigs: true, NoLog: true, JetStreamMaxStore: 4 << 30, JetStreamMaxMemory: 64 << 20}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		return nats.ErrNoServers
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return err
	}
	store, err := kv.Open(ctx, kv.Config{Conn: nc, Tenants: []string{tenant}})
	if err != nil {
		return err
	}
	if err := p.publish(ctx, nc); err != nil {
		return err
	}
	guard, err := notifier.NewGuard("127.0.0.1")
	if err != nil {
		return err
	}
	n, err := notifier.New(notifier.Config{
		Ended: store.EndedTasks(), Due: store.DueTurns(), Records: store, Timetable: store, Secrets: oneSecret, Guard: guard, Log: quiet(),
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}

func (p crashPlan) publish(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, goal.EventsStream)
	if err != nil || stream.CachedInfo().State.LastSeq > 0 {
		return err
	}
	for i := range p.Tasks {
		task := "tsk_" + strconv.Itoa(i)
		data, err := goal.Marshal(goal.Batch{Version: goal.BatchVersion, Events: []goal.Event{}, Webhook: &goal.Webhook{
			ID: goal.WebhookID(tenant, task), URL: p.URLs[i%len(p.URLs)], Tenant: tenant, TaskID: task, Body: `{"task":"` + task + `"}`,
		}})
		if err != nil {
			return err
		}
		if _, err := js.Publish(ctx, goal.EndSubject(tenant, task), data); err != nil {
			return err
		}
	}
	return nil
}

// crashReceiver counts requests by webhook-id. While held, it answers nothing.
type crashReceiver struct {
	failFirst func(id string) bool // answer 500 to the first request of this one
	mu        sync.Mutex
	seen      map[string]int // requests
	taken     map[string]int // answered 2xx
	bodies    map[string]string
	inFlight  int
	gate      chan struct{} // closed: answer
	bad       []string
}

func (r *crashReceiver) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	body := make([]byte, req.ContentLength)
	_, _ = req.Body.Read(body)
	id := req.Header.Get("Webhook-Id")
	r.mu.Lock()
	r.seen[id]++
	fail := r.failFirst != nil && r.seen[id] == 1 && r.failFirst(id)
	r.inFlight++
	if old, ok := r.bodies[id]; ok && old != string(body) {
		r.bad = append(r.bad, id)
	}
	r.bodies[id] = string(body)
	gate := r.gate
	r.mu.Unlock()
	<-gate
	r.mu.Lock()
	r.inFlight--
	r.mu.Unlock()
	if fail {
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.mu.Lock()
	r.taken[id]++
	r.mu.Unlock()
	rw.WriteHeader(http.StatusNoContent)
}

// listen makes n destinations of the receiver.
func (r *crashReceiver) listen(t *testing.T, n int) (urls []string) {
	t.Helper()
	s := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	for range n {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+l.Addr().String()+"/hook")
		go func() { _ = s.Serve(l) }()
	}
	t.Cleanup(func() { _ = s.Close() })
	return urls
}

func newCrashReceiver() *crashReceiver {
	return &crashReceiver{seen: map[string]int{}, taken: map[string]int{}, bodies: map[string]string{}, gate: make(chan struct{})}
}

func (r *crashReceiver) state() (ids, requests, inFlight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.seen {
		requests += n
	}
	return len(r.seen), requests, r.inFlight
}

// await polls until ok, or fails the test.
func (r *crashReceiver) await(t *testing.T, what string, ok func(ids, requests, inFlight int) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok(r.state()) {
			return
		}
	}
	ids, requests, inFlight := r.state()
	t.Fatalf("%s: not reached with %d ids, %d requests, %d in flight", what, ids, requests, inFlight)
}

// A process that is killed with over 100 requests in flight loses none, and
// repeats no more than were in flight, under the same id with the same bytes.
func TestCrashInFlight(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	const destinations, tasks, least = 60, 400, 100
	r := newCrashReceiver()
	plan := crashPlan{Dir: t.TempDir(), Tasks: tasks, URLs: r.listen(t, destinations)}

	kill := plan.start(t)
	r.await(t, "in flight", func(_, _, inFlight int) bool { return inFlight >= least })
	kill()
	ids, requests, inFlight := r.state()
	t.Logf("killed with %d in flight (%d ids, %d requests)", inFlight, ids, requests)

	close(r.gate)
	kill = plan.start(t)
	r.await(t, "everything delivered", func(ids, _, _ int) bool { return ids == tasks })
	// What was in flight comes again when its turn was silent for long enough.
	r.await(t, "repeated", func(_, requests, _ int) bool { return requests >= tasks+least/2 })
	kill()
	ids, requests, _ = r.state()
	if ids != tasks || requests-tasks > inFlight {
		t.Errorf("%d ids, %d requests: want %d ids and at most %d duplicates", ids, requests, tasks, inFlight)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range r.seen {
		if n > 2 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	if len(r.bad) > 0 {
		t.Errorf("other bytes under the same id: %s", strings.Join(r.bad, ", "))
	}
	t.Logf("%d duplicates", requests-tasks)
}

// A process that is killed again and again, at whatever it is doing, loses no
// delivery and no retry.
func TestCrashAgainAndAgain(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	const destinations, tasks, kills, inFlight = 20, 2000, 8, 256
	r := newCrashReceiver()
	r.failFirst = func(id string) bool { return id[len(id)-1] == 'a' } // a 32nd: has to come again after 5 s
	close(r.gate)
	plan := crashPlan{Dir: t.TempDir(), Tasks: tasks, URLs: r.listen(t, destinations)}
	for i := range kills {
		kill := plan.start(t)
		r.await(t, "progress", func(ids, _, _ int) bool { return ids >= (i+1)*tasks/(kills+2) })
		kill()
	}
	kill := plan.start(t)
	r.await(t, "everything taken", func(int, int, int) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.taken) == tasks
	})
	kill()
	ids, requests, _ := r.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	retries := 0
	for id := range r.seen {
		if r.failFirst(id) {
			retries++
		}
	}
	duplicates := requests - tasks - retries
	if ids != tasks || duplicates > kills*inFlight || len(r.bad) > 0 {
		t.Errorf("%d ids, %d duplicates after %d kills, other bytes for %v", ids, duplicates, kills, r.bad)
	}
	t.Logf("%d tasks, %d retries, %d kills: %d duplicates", ids, retries, kills, duplicates)
}

// start runs the child until kill is called: SIGKILL.
func (p crashPlan) start(t *testing.T) (kill func()) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", crashEnv, text))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

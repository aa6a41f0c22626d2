package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// publishKey publishes a goal's body under a key.
func publishKey(ctx context.Context, js jetstream.JetStream, tenant, key string, body []byte) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, wayLimit)
	defer cancel()
	m := nats.NewMsg(goal.SubmitSubject(tenant))
	m.Data = body
	m.Header.Set(nats.MsgIdHdr, key)
	return js.PublishMsg(ctx, m)
}

// requestKey submits a goal by a core request and returns the answer's status
// and task.
func requestKey(ctx context.Context, nc *nats.Conn, tenant, key string, body []byte) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, wayLimit)
	defer cancel()
	m := nats.NewMsg(goal.RequestSubject(tenant))
	m.Data = body
	m.Header.Set("Idempotency-Key", key)
	r, err := nc.RequestMsgWithContext(ctx, m)
	for errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil { // the process has just been started
		time.Sleep(20 * time.Millisecond)
		r, err = nc.RequestMsgWithContext(ctx, m)
	}
	if err != nil {
		return 0, "", err
	}
	status, err := strconv.Atoi(r.Header.Get("Status"))
	return status, r.Header.Get("Location"), err
}

// TestOneKeyOverEveryWayAtOnce: 200 submissions of one key, a half over HTTP and
// a half over NATS, are one task with one queue entry, run once.
func TestOneKeyOverEveryWayAtOnce(t *testing.T) {
	t.Parallel()
	p := serveWithNATS(t, t.TempDir())
	nc, js := streamsAt(t, p.nats)
	body, id := encodedJSON(t, writeGoal("one", 1)), goal.TaskID(defaultTenant, "one")
	const each = 50
	errs := make(chan error, 4*each)
	var first atomic.Int32 // HTTP answers that are no replay
	var all sync.WaitGroup
	begin := make(chan struct{})
	start := func(f func() error) {
		all.Go(func() {
			<-begin
			if err := f(); err != nil {
				errs <- err
			}
		})
	}
	for range 2 * each {
		start(func() error {
			r, err := p.try(http.MethodPost, "/v1/tasks", body, "Idempotency-Key", "one")
			if err != nil {
				return err
			}
			if (r.status != http.StatusAccepted && r.status != http.StatusOK) || r.task().ID != id {
				return errors.New("HTTP: " + strconv.Itoa(r.status) + " " + string(r.body))
			}
			if r.header.Get("Idempotent-Replayed") == "" {
				first.Add(1)
			}
			return nil
		})
	}
	for range each {
		start(func() error {
			_, err := publishKey(t.Context(), js, defaultTenant, "one", body)
			return err
		})
		start(func() error {
			status, location, err := requestKey(t.Context(), nc, defaultTenant, "one", body)
			if err == nil && (location != "/v1/tasks/"+id || status != http.StatusAccepted && status != http.StatusOK) {
				err = errors.New("request: " + strconv.Itoa(status) + " " + location)
			}
			return err
		})
	}
	close(begin)
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if task := p.settled(id); task.Status != goal.Succeeded {
		t.Errorf("task = %s %s", task.Status, task.Reason)
	}
	if n := first.Load(); n > 1 {
		t.Errorf("%d HTTP answers say that they were the first", n)
	}
	if now, ever := queueEntries(t, js, defaultTenant); now != 1 || ever != 1 {
		t.Errorf("queue entries: %d, ever %d", now, ever)
	}
	wantOneStart(t, p, id)
}

// wantOneStart: the task's journal has one start and one end.
func wantOneStart(t *testing.T, p *instance, id string) {
	t.Helper()
	count := map[goal.EventType]int{}
	for _, e := range p.call(http.MethodGet, "/v1/tasks/"+id, nil).task().Trace {
		count[e.Type]++
	}
	if count[goal.TaskStarted] != 1 || count[goal.TaskEnded] != 1 || count[goal.KeyConflict] != 0 {
		t.Errorf("events = %v", count)
	}
}

// TestCrashOfIngest kills an ingest process between any two steps of a
// submission over HTTP. The retry, at another process, finds the task or makes
// it: there is one, with one queue entry.
func TestCrashOfIngest(t *testing.T) {
	t.Parallel()
	nodes := kvtest.Server(t, kvtest.Options{Listen: true})
	_, js := streamsAt(t, nodes.URL())
	healthy := ingestOn(t, nodes.URL(), "")
	for i, point := range []string{crashParsed, crashChecked, crashStored} {
		key, g := "crash-"+strconv.Itoa(i), writeGoal(strconv.Itoa(i), 1)
		dying := ingestOn(t, nodes.URL(), "", "GOALKEEPER_TEST_CRASH_AT="+point)
		if r, err := dying.try(http.MethodPost, "/v1/tasks", encodedJSON(t, g), "Idempotency-Key", key); err == nil {
			t.Errorf("%s: answered %d %s", point, r.status, r.body)
		}
		<-dying.done
		if endedBy(dying.cmd) != syscall.SIGKILL {
			t.Errorf("%s: ended by %v", point, dying.cmd.ProcessState)
		}
		_, before := queueEntries(t, js, defaultTenant)
		r := healthy.post(key, g)
		stored := r.header.Get("Idempotent-Replayed") == "true"
		if r.status != http.StatusAccepted || r.task().ID != goal.TaskID(defaultTenant, key) || stored != (point == crashStored) {
			t.Errorf("%s: retry = %d, replayed %v, %s", point, r.status, stored, r.body)
		}
		if again := healthy.post(key, g); again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: third try = %d %v", point, again.status, again.header)
		}
		if _, after := queueEntries(t, js, defaultTenant); after != uint64(i)+1 || (before == after) != stored {
			t.Errorf("%s: %d queue entries after the crash, %d after the retry", point, before, after)
		}
	}
}

// TestCrashOfIntake kills an ingest process between any two steps of a published
// goal, one that is accepted and one that is refused. It comes again to another
// process, and the same key by another way meets the same task.
func TestCrashOfIntake(t *testing.T) {
	kvtest.Heavy(t) // what a dead process held comes again after a minute
	t.Parallel()
	accepted := encodedJSON(t, writeGoal("x", 1))
	refused := []byte(`{"goal": {"intent": "Ask for too little"}}`)
	cases := []struct {
		tenant, point string
		body          []byte
		ends          goal.State
	}{
		{"accepted-parsed", crashParsed, accepted, goal.Queued},
		{"accepted-checked", crashChecked, accepted, goal.Queued},
		{"accepted-stored", crashStored, accepted, goal.Queued},
		{"accepted-not-acknowledged", crashAnswered, accepted, goal.Queued},
		{"refused-not-stored", crashChecked, refused, goal.Failed},
		{"refused-not-settled", crashStored, refused, goal.Failed},
		{"refused-settled", crashSettled, refused, goal.Failed},
		{"refused-not-acknowledged", crashAnswered, refused, goal.Failed},
	}
	nodes := kvtest.Server(t, kvtest.Options{Listen: true})
	_, js := streamsAt(t, nodes.URL())
	var tenants strings.Builder
	tenants.WriteString("tenants:\n")
	for _, c := range cases { // each tenant has a process of its own that dies
		tenants.WriteString(tenantYAML(c.tenant, ""))
		dying := ingestOn(t, nodes.URL(), "tenants:\n"+tenantYAML(c.tenant, ""), "GOALKEEPER_TEST_CRASH_AT="+c.point)
		if _, err := publishKey(t.Context(), js, c.tenant, "k", c.body); err != nil {
			t.Fatal(err)
		}
		<-dying.done
		if endedBy(dying.cmd) != syscall.SIGKILL {
			t.Fatalf("%s: ended by %v", c.tenant, dying.cmd.ProcessState)
		}
	}
	healthy := ingestOn(t, nodes.URL(), tenants.String())
	for _, c := range cases[:3] {
		if r := healthy.post("k", writeGoal("x", 1), bearerOf(c.tenant)...); r.status != http.StatusAccepted || r.task().ID != goal.TaskID(c.tenant, "k") {
			t.Errorf("%s: over HTTP after the crash: %d %s", c.tenant, r.status, r.body)
		}
	}
	for _, c := range cases {
		intakeDone(t, js, c.tenant)
		task := healthy.call(http.MethodGet, "/v1/tasks/"+goal.TaskID(c.tenant, "k"), nil, bearerOf(c.tenant)...).task()
		if task.Status != c.ends || len(task.Trace) > 1 {
			t.Errorf("%s: task = %s %s with %d events", c.tenant, task.Status, task.Reason, len(task.Trace))
		}
		if now, ever := queueEntries(t, js, c.tenant); now != 1 || ever != 1 {
			t.Errorf("%s: queue entries: %d, ever %d", c.tenant, now, ever)
		}
	}
}

// intakeDone waits until everything that was published is acknowledged.
func intakeDone(t *testing.T, js jetstream.JetStream, tenant string) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		c, err := js.Consumer(t.Context(), goal.IntakeStream(tenant), "ingest")
		if err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the published goal of %s was not taken", tenant)
		}
	}
}

// TestSameTaskBeyondTheWindow: the servers' windows of message ids have passed,
// the goal is done and the server was restarted. It is still the same task.
func TestSameTaskBeyondTheWindow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := serveWithNATS(t, dir)
	id := p.post("k", writeGoal("w", 1)).task().ID
	p.settled(id)
	_, js := streamsAt(t, p.nats)
	// The windows are made as short as they can be, so that they pass.
	const window = 100 * time.Millisecond
	for _, name := range []string{goal.GoalsStream(defaultTenant), goal.IntakeStream(defaultTenant)} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		conf := s.CachedInfo().Config
		conf.Duplicates = window
		if _, err := js.UpdateStream(t.Context(), conf); err != nil {
			t.Fatal(err)
		}
	}
	body := encodedJSON(t, writeGoal("w", 1))
	comesTrue(t, "a published key beyond the window is no duplicate to the server", func() bool {
		ack, err := publishKey(t.Context(), js, defaultTenant, "k", body)
		if err != nil {
			t.Fatal(err)
		}
		return !ack.Duplicate && ack.Sequence > 1
	})
	intakeDone(t, js, defaultTenant)
	for _, when := range []string{"before the restart", "after the restart"} {
		r := p.post("k", writeGoal("w", 1))
		if r.status != http.StatusOK || r.header.Get("Idempotent-Replayed") != "true" || r.task().ID != id || r.task().Status != goal.Succeeded {
			t.Errorf("%s: %d %s", when, r.status, r.body)
		}
		if r := p.post("k", writeGoal("w", 2)); r.status != http.StatusConflict || r.problem().Kind() != goal.KeyReused {
			t.Errorf("another payload %s: %d %s", when, r.status, r.body)
		}
		if now, ever := queueEntries(t, js, defaultTenant); now != 1 || ever != 1 {
			t.Errorf("queue entries %s: %d, ever %d", when, now, ever)
		}
		wantOneStart(t, p, id)
		if when == "before the restart" {
			p.end()
			p = serveWithNATS(t, dir)
			_, js = streamsAt(t, p.nats)
		}
	}
}

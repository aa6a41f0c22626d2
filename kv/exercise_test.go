package kv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// env is what one exercise runs in.
type env struct {
	*testing.T
	c *kvtest.Cluster
	s *kv.Store
}

// exercise is everything that must hold on one node and on three alike: error
// codes and stale reads differ.
var exercise = []struct {
	name string
	run  func(e env)
}{
	{"records", exerciseRecords},
	{"200 creates have one winner", exerciseCreateRace},
	{"put dedupes", exercisePut},
	{"too large", exerciseTooLarge},
	{"open again", exerciseReopen},
	{"submit twice", exerciseSubmit},
	{"submit at once", exerciseSubmitRace},
	{"submit keys of any kind", exerciseSubmitKeys},
	{"journal", exerciseJournal},
	{"zombie is fenced", exerciseZombie},
	{"settle", exerciseSettle},
	{"settle races", exerciseSettleRace},
	{"settle is fenced", exerciseSettleFenced},
	{"settle after a crash", exerciseSettleResume},
	{"cancel", exerciseCancel},
	{"notes", exerciseNotes},
	{"lock", exerciseLock},
	{"queue", exerciseQueue},
	{"objects", exerciseObjects},
	{"unknown task", exerciseUnknown},
}

func TestExercise(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", nodes), func(t *testing.T) {
			t.Parallel()
			c := kvtest.Server(t, kvtest.Options{Nodes: nodes})
			s := c.Store(t)
			for _, x := range exercise {
				t.Run(x.name, func(t *testing.T) {
					t.Parallel()
					x.run(env{t, c, s})
				})
			}
		})
	}
}

// taskID is a task of the test's own.
func taskID(tb testing.TB, more ...string) string {
	tb.Helper()
	return "tsk_" + kv.DigestKey(append(more, tb.Name())...)[:32]
}

func submission(task string) goal.Submission {
	return goal.Submission{
		TaskID: task, Tenant: kv.DefaultTenant, Key: "key-" + task, Fingerprint: "f", Via: "http",
		Goal: goal.Goal{
			Objective:  goal.Objective{Intent: "Refund <b>the</b> order", TargetState: json.RawMessage(`{"n":9007199254740993}`)},
			Guardrails: goal.Guardrails{MaxSteps: 5, TimeoutSeconds: 60},
			WebhookURL: "https://example.com/hook",
		},
	}
}

func submit(tb testing.TB, s *kv.Store, task string) goal.Accepted {
	tb.Helper()
	acc, created, err := s.Submit(tb.Context(), submission(task))
	if err != nil || !created {
		tb.Fatalf("Submit(%s) = created %v, %v", task, created, err)
	}
	return acc
}

func open(tb testing.TB, s *kv.Store, acc goal.Accepted) (*kv.Journal, []goal.Event) {
	tb.Helper()
	j, events, _, err := s.OpenJournal(tb.Context(), acc)
	if err != nil {
		tb.Fatalf("OpenJournal: %v", err)
	}
	return j, events
}

func started(acc goal.Accepted) goal.Event {
	return goal.Event{Type: goal.TaskStarted, Time: acc.At, Started: &goal.Started{Attempt: 1, GoalSeq: acc.Seq, Deadline: acc.At.Add(time.Minute)}}
}

func observed() goal.Event {
	return goal.Event{Type: goal.StateObserved, Time: time.Now(), Observed: &goal.Observed{Left: []goal.Difference{}}}
}

func succeeded() goal.Result {
	return goal.Result{Status: goal.Succeeded, Reason: goal.TargetStateReached, Left: []goal.Difference{}, EndedAt: time.Now().UTC(), Worker: "w"}
}

func failed() goal.Result {
	r := succeeded()
	r.Status, r.Reason = goal.Failed, goal.ToolFailed
	return r
}

// patient is a context for races on a machine that is busy.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test unless err is want.
func must(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("%s: error is %v, want %v", what, err, want)
	}
}

// numbers checks that events are numbered from 1 without gaps, notes aside.
func numbers(tb testing.TB, events []goal.Event, want int) {
	tb.Helper()
	n := 0
	for _, e := range events {
		if e.N == 0 {
			continue
		}
		if n++; e.N != n {
			tb.Fatalf("event %d has number %d", n, e.N)
		}
	}
	if n != want {
		tb.Fatalf("%d events, want %d", n, want)
	}
}

func exerciseRecords(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	const stream, subject = "KV_CALLS", "$KV.CALLS.records"
	_, err := s.Get(ctx, stream, subject)
	must(t, "get of nothing", err, goal.ErrNotFound)
	rev, err := s.Create(ctx, subject, []byte("1"), time.Minute)
	must(t, "create", err, nil)
	_, err = s.Create(ctx, subject, []byte("2"), 0)
	must(t, "second create", err, goal.ErrExists)
	rev2, err := s.Update(ctx, subject, []byte("3"), rev, time.Minute)
	must(t, "update", err, nil)
	_, err = s.Update(ctx, subject, []byte("4"), rev, time.Minute)
	must(t, "zombie's update", err, goal.ErrFenced)
	must(t, "zombie's remove", s.Remove(ctx, subject, rev), goal.ErrFenced)
	r, err := s.GetFresh(ctx, stream, subject)
	must(t, "get", err, nil)
	if string(r.Data) != "3" || r.Seq != rev2 || r.Header.Get("Nats-TTL") != "60" {
		t.Fatalf("record is %q at %d with TTL %q, want 3 at %d with 60", r.Data, r.Seq, r.Header.Get("Nats-TTL"), rev2)
	}
	must(t, "remove", s.Remove(ctx, subject, rev2), nil)
	_, err = s.GetFresh(ctx, stream, subject)
	must(t, "get of the removed", err, goal.ErrNotFound)
	_, err = s.Create(ctx, subject, []byte("5"), time.Minute)
	must(t, "create over a removed key", err, nil)
}

func exerciseCreateRace(e env) {
	t, s := e.T, e.s
	ctx := patient(t)
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			switch _, err := s.Create(ctx, "$KV.CALLS.race", fmt.Appendf(nil, "%d", i), time.Minute); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, goal.ErrExists):
				lost.Add(1)
			default:
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 199 {
		t.Fatalf("%d won and %d lost, want 1 and 199", won.Load(), lost.Load())
	}
}

func exercisePut(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	const subject = "deliveries.test.put"
	first, dup, err := s.Put(ctx, subject, []byte("1"), "id", 0)
	if err != nil || dup {
		t.Fatalf("first put: duplicate %v, %v", dup, err)
	}
	again, dup, err := s.Put(ctx, subject, []byte("1"), "id", 0)
	if err != nil || !dup || again != first {
		t.Fatalf("second put: %d, duplicate %v, %v; want %d, true", again, dup, err, first)
	}
	if _, dup, err = s.Put(ctx, subject, []byte("1"), "", 0); err != nil || dup {
		t.Fatalf("put without id: duplicate %v, %v", dup, err)
	}
}

func exerciseTooLarge(e env) {
	t, s := e.T, e.s
	acc := submit(t, s, taskID(t))
	j, _ := open(t, s, acc)
	big := observed()
	big.Observed.StateHash = strings.Repeat("x", 1<<20)
	must(t, "append of 1 MiB", j.Append(t.Context(), big), goal.ErrTooLarge)
	must(t, "append after it", j.Append(t.Context(), observed()), nil)

	r := succeeded()
	r.State = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	won, err := s.Settle(t.Context(), acc, r, j.N())
	must(t, "settle with a state of 1 MiB", err, nil)
	if won.State != nil || won.Status != goal.Succeeded {
		t.Fatalf("result has status %s and a state of %d bytes", won.Status, len(won.State))
	}
}

// exerciseReopen opens the store again, as every process does, and finds an
// operator's own settings kept.
func exerciseReopen(e env) {
	t, c := e.T, e.c
	js, err := jetstream.New(c.Conn(t))
	must(t, "jetstream", err, nil)
	st, err := js.Stream(t.Context(), goal.DeliveriesStream)
	must(t, "stream", err, nil)
	conf := st.CachedInfo().Config
	conf.MaxBytes, conf.MaxAge = 1<<30, time.Hour
	_, err = js.UpdateStream(t.Context(), conf)
	must(t, "operator's update", err, nil)
	c.Store(t)
	st, err = js.Stream(t.Context(), goal.DeliveriesStream)
	must(t, "stream", err, nil)
	if got := st.CachedInfo().Config; got.MaxBytes != 1<<30 || got.MaxAge != 0 {
		t.Fatalf("after Open: MaxBytes %d, MaxAge %s; want the operator's and ours", got.MaxBytes, got.MaxAge)
	}
}

func exerciseSubmit(e env) {
	t, s := e.T, e.s
	task := taskID(t)
	acc := submit(t, s, task)
	if acc.Expires.Sub(acc.At) != kv.DefaultRetention || acc.Seq == 0 || time.Since(acc.At).Abs() > time.Minute {
		t.Fatalf("accepted %+v", acc)
	}
	other := submission(task)
	other.Fingerprint = "other"
	again, created, err := s.Submit(t.Context(), other)
	must(t, "submit again", err, nil)
	if created || again.Submission.Fingerprint != "f" || again.Seq != acc.Seq || !again.At.Equal(acc.At) {
		t.Fatalf("second submission: created %v, %+v", created, again)
	}
	snap, err := s.Load(t.Context(), kv.DefaultTenant, task)
	must(t, "load", err, nil)
	if snap.Task().Status != goal.Queued || string(snap.Submission.Goal.Objective.TargetState) != `{"n":9007199254740993}` {
		t.Fatalf("loaded %+v", snap.Task())
	}
}

func exerciseSubmitRace(e env) {
	t, s := e.T, e.s
	task := taskID(t)
	var created atomic.Int64
	var seqs sync.Map
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			var acc goal.Accepted
			var first bool
			err := again(t.Context(), func() (err error) {
				acc, first, err = s.Submit(t.Context(), submission(task))
				return err
			})
			if err != nil {
				t.Errorf("submit: %v", err)
				return
			}
			seqs.Store(acc.Seq, true)
			if first {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	n := 0
	seqs.Range(func(any, any) bool { n++; return true })
	if created.Load() != 1 || n != 1 {
		t.Fatalf("%d created, %d sequences; want 1 and 1", created.Load(), n)
	}
}

func exerciseSubmitKeys(e env) {
	t, s := e.T, e.s
	for _, key := range []string{"", "!~", strings.Repeat("k", 255), strings.Repeat("k", 5000), "a b", "line\r\nNats-TTL: 1", "ключ"} {
		sub := submission(taskID(t, key))
		sub.Key = key
		for i := range 2 {
			acc, created, err := s.Submit(t.Context(), sub)
			must(t, "submit", err, nil)
			if created != (i == 0) || acc.Submission.Key != key {
				t.Fatalf("Submit(key %.20q), time %d: created %v, key %.20q", key, i+1, created, acc.Submission.Key)
			}
		}
	}
	for _, bad := range []string{"", "a.b", "*", ">", "a b", strings.Repeat("x", 129)} {
		sub := submission(bad)
		if _, _, err := s.Submit(t.Context(), sub); err == nil {
			t.Errorf("task id %.20q was taken", bad)
		}
	}
}

func exerciseJournal(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	acc := submit(t, s, taskID(t))
	j, events := open(t, s, acc)
	numbers(t, events, 0)
	must(t, "first append", j.Append(ctx, started(acc), observed()), nil)
	must(t, "empty append", j.Append(ctx), nil)
	for range 300 { // more than one batch of the read
		must(t, "append", j.Append(ctx, observed()), nil)
	}
	_, events = open(t, s, acc)
	numbers(t, events, 302)
	snap, err := s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load", err, nil)
	numbers(t, snap.Events, 302)
	if snap.Task().Status != goal.Running || snap.Result != nil {
		t.Fatalf("task is %s", snap.Task().Status)
	}
}

func exerciseZombie(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	acc := submit(t, s, taskID(t))
	zombie, _ := open(t, s, acc)
	must(t, "zombie's first append", zombie.Append(ctx, started(acc)), nil)
	heir, events := open(t, s, acc)
	numbers(t, events, 1)
	must(t, "heir's append", heir.Append(ctx, observed()), nil)
	must(t, "zombie's append", zombie.Append(ctx, observed()), goal.ErrFenced)
	must(t, "zombie's next append", zombie.Append(ctx, observed()), goal.ErrFenced)
	must(t, "heir goes on", heir.Append(ctx, observed()), nil)
	_, err := s.Settle(ctx, acc, succeeded(), heir.N())
	must(t, "settle", err, nil)
	must(t, "append after the end", heir.Append(ctx, observed()), goal.ErrFenced)
	j, events := open(t, s, acc)
	numbers(t, events, 4)
	must(t, "append to an ended journal", j.Append(ctx, observed()), goal.ErrFenced)
}

// ends are the terminal batches of a task.
func ends(t *testing.T, s *kv.Store, task string) []goal.Batch {
	t.Helper()
	records, err := s.ReadAll(t.Context(), goal.EventsStream, goal.EndSubject(kv.DefaultTenant, task))
	must(t, "read ends", err, nil)
	var out []goal.Batch
	for _, r := range records {
		var b goal.Batch
		must(t, "decode", json.Unmarshal(r.Data, &b), nil)
		out = append(out, b)
	}
	return out
}

func exerciseSettle(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	task := taskID(t)
	acc := submit(t, s, task)
	j, _ := open(t, s, acc)
	must(t, "append", j.Append(ctx, started(acc)), nil)
	if _, err := s.Settle(ctx, acc, goal.Result{Status: goal.Running}, 1); err == nil {
		t.Fatal("settled as running")
	}
	won, err := s.Settle(ctx, acc, succeeded(), 1)
	must(t, "settle", err, nil)
	if won.GoalSeq != acc.Seq || won.TaskID != task || won.Version != goal.ResultVersion {
		t.Fatalf("winner %+v", won)
	}
	other, err := s.Settle(ctx, acc, failed(), 99)
	must(t, "settle again", err, nil)
	if other.Status != goal.Succeeded {
		t.Fatalf("the second one to settle got %s", other.Status)
	}
	snap, err := s.Load(ctx, kv.DefaultTenant, task)
	must(t, "load", err, nil)
	numbers(t, snap.Events, 2)
	if snap.Task().Status != goal.Succeeded || snap.Events[1].Type != goal.TaskEnded {
		t.Fatalf("loaded %+v", snap)
	}
	batches := ends(t, s, task)
	if len(batches) != 1 || batches[0].Webhook == nil || batches[0].Webhook.URL != "https://example.com/hook" {
		t.Fatalf("terminal batches %+v", batches)
	}
	if !strings.Contains(batches[0].Webhook.Body, `<b>`) {
		t.Fatalf("webhook body %s", batches[0].Webhook.Body)
	}
}

func exerciseSettleRace(e env) {
	t, s := e.T, e.s
	acc := submit(t, s, taskID(t))
	ctx := patient(t)
	var mu sync.Mutex
	var reasons []goal.Reason
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			r := failed()
			r.Detail = strconv.Itoa(i)
			won, err := s.Settle(ctx, acc, r, 0)
			if err != nil {
				t.Errorf("settle: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			reasons = append(reasons, goal.Reason(won.Detail))
		})
	}
	wg.Wait()
	if slices.Sort(reasons); len(slices.Compact(reasons)) != 1 {
		t.Fatalf("winners %v", reasons)
	}
	if got := ends(t, s, acc.Submission.TaskID); len(got) != 1 {
		t.Fatalf("%d terminal batches", len(got))
	}
}

// exerciseSettleFenced: a worker that was taken over, and a cancel of a task
// that has meanwhile started, must not decide the outcome.
func exerciseSettleFenced(e env) {
	t, s := e.T, e.s
	acc := submit(t, s, taskID(t))
	j, _ := open(t, s, acc)
	must(t, "append", j.Append(t.Context(), started(acc)), nil)
	_, err := s.Settle(t.Context(), acc, failed(), 0)
	must(t, "settle of a running task as queued", err, goal.ErrFenced)
	snap, err := s.Load(t.Context(), kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load", err, nil)
	if snap.Result != nil {
		t.Fatal("there is a result")
	}
}

// exerciseSettleResume: a crash between the result and the end; whoever comes
// next completes it, with the same bytes.
func exerciseSettleResume(e env) {
	t, s := e.T, e.s
	acc := submit(t, s, taskID(t))
	r := succeeded()
	r.Version, r.TaskID, r.Tenant, r.GoalSeq = goal.ResultVersion, acc.Submission.TaskID, kv.DefaultTenant, acc.Seq
	must(t, "result alone", s.CreateResult(t.Context(), acc, r), nil)
	snap, err := s.Load(t.Context(), kv.DefaultTenant, acc.Submission.TaskID)
	must(t, "load", err, nil)
	if snap.Task().Status != goal.Succeeded {
		t.Fatalf("status %s before the end", snap.Task().Status)
	}
	if len(ends(t, s, acc.Submission.TaskID)) != 0 {
		t.Fatal("an end before the end")
	}
	won, err := s.Settle(t.Context(), acc, failed(), 3)
	must(t, "settle", err, nil)
	batches := ends(t, s, acc.Submission.TaskID)
	if won.Status != goal.Succeeded || len(batches) != 1 || batches[0].Events[0].Ended.Status != goal.Succeeded {
		t.Fatalf("winner %s, batches %+v", won.Status, batches)
	}
	hook, err := goal.NewWebhook(goal.Snapshot{Accepted: acc, Result: &won})
	must(t, "webhook", err, nil)
	if !bytes.Equal([]byte(hook.Body), []byte(batches[0].Webhook.Body)) {
		t.Fatalf("webhook\n%s\nwant\n%s", batches[0].Webhook.Body, hook.Body)
	}
}

func exerciseCancel(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	acc := submit(t, s, taskID(t))
	over, err := s.Over(ctx, acc)
	if err != nil || over {
		t.Fatalf("over before: %v, %v", over, err)
	}
	heard := make(chan string, 10)
	stop, err := s.OnCancel(func(_, task string) {
		if task == acc.Submission.TaskID {
			heard <- task
		}
	})
	must(t, "watch", err, nil)
	defer stop()
	for range 2 {
		must(t, "cancel", s.RequestCancel(ctx, acc), nil)
		select {
		case <-heard:
		case <-time.After(5 * time.Second):
			t.Fatal("no cancel message")
		}
	}
	over, err = s.Over(ctx, acc)
	if err != nil || !over {
		t.Fatalf("over after: %v, %v", over, err)
	}
	snap, err := s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID)
	if err != nil || !snap.CancelAsked {
		t.Fatalf("snapshot: %v, %v", snap.CancelAsked, err)
	}
}

func exerciseNotes(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	acc := submit(t, s, taskID(t))
	j, _ := open(t, s, acc)
	note := goal.Event{Type: goal.KeyConflict, Time: acc.At.Add(time.Millisecond), N: 7}
	must(t, "note", s.Note(ctx, acc, note), nil)
	second := observed()
	second.Time = acc.At.Add(2 * time.Millisecond)
	must(t, "append after a note", j.Append(ctx, started(acc), second), nil)
	for range 2 {
		note.Time = time.Now().Add(time.Second)
		must(t, "note", s.Note(ctx, acc, note), nil)
	}
	// Notes are read from any replica.
	for {
		snap, err := s.Load(ctx, kv.DefaultTenant, acc.Submission.TaskID)
		must(t, "load", err, nil)
		if len(snap.Events) < 5 {
			continue
		}
		numbers(t, snap.Events, 2)
		if snap.Events[1].Type != goal.KeyConflict || snap.Events[1].N != 0 {
			t.Fatalf("events %+v", snap.Events)
		}
		return
	}
}

func exerciseLock(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	task := taskID(t)
	l, err := s.Lock(ctx, kv.DefaultTenant, task, "a", 20*time.Second)
	must(t, "lock", err, nil)
	_, err = s.Lock(ctx, kv.DefaultTenant, task, "b", 20*time.Second)
	held, ok := errors.AsType[*goal.LockedError](err)
	if !ok {
		t.Fatalf("second lock: %v", err)
	}
	if held.Holder != "a" || held.Left <= 0 || held.Left > 20*time.Second {
		t.Fatalf("held by %q for %s", held.Holder, held.Left)
	}
	stale := *l
	must(t, "renew", l.Renew(ctx), nil)
	must(t, "zombie's renewal", stale.Renew(ctx), goal.ErrFenced)
	must(t, "zombie's release", stale.Release(ctx), goal.ErrFenced)
	must(t, "release", l.Release(ctx), nil)
	l, err = s.Lock(ctx, kv.DefaultTenant, task, "b", time.Second)
	must(t, "lock after release", err, nil)
	must(t, "release", l.Release(ctx), nil)
}

func exerciseQueue(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	const tenant = "queue-test"
	must(t, "add tenant", s.AddTenant(ctx, tenant), nil)
	must(t, "add tenant again", s.AddTenant(ctx, tenant), nil)
	sub := submission(taskID(t))
	sub.Tenant = tenant
	acc, _, err := s.Submit(ctx, sub)
	must(t, "submit", err, nil)
	st, err := s.Stats(ctx, tenant)
	for err == nil && st.Pending == 0 { // the replica that counts may be behind
		st, err = s.Stats(ctx, tenant)
	}
	must(t, "stats", err, nil)
	if st.Pending != 1 || st.InFlight != 0 || st.Oldest.Sub(acc.At).Abs() > time.Minute {
		t.Fatalf("stats %+v, accepted at %s", st, acc.At)
	}
	q, err := s.Queue(ctx, tenant, kv.QueueConfig{})
	must(t, "queue", err, nil)
	d, err := q.Next(ctx)
	must(t, "next", err, nil)
	if d.Seq != acc.Seq || d.Submission.TaskID != acc.Submission.TaskID || !d.Expires.Equal(acc.Expires) || d.Delivered != 1 {
		t.Fatalf("delivery %+v, want %+v", d.Accepted, acc)
	}
	must(t, "heartbeat", d.InProgress(), nil)
	must(t, "nak", d.Nak(0), nil)
	d, err = q.Next(ctx)
	must(t, "next after nak", err, nil)
	if d.Delivered != 2 {
		t.Fatalf("delivered %d times", d.Delivered)
	}
	must(t, "ack", d.Ack(), nil)
	must(t, "ack again", d.Ack(), nil)
	ended, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = q.Next(ended)
	must(t, "next of an empty queue", err, context.DeadlineExceeded)
	_, created, err := s.Submit(ctx, sub)
	if err != nil || created {
		t.Fatalf("submit after the ack: created %v, %v", created, err)
	}
}

func exerciseObjects(e env) {
	t, s := e.T, e.s
	ctx := t.Context()
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	name, err := s.PutObject(ctx, data)
	must(t, "put", err, nil)
	again, err := s.PutObject(ctx, data)
	if err != nil || again != name {
		t.Fatalf("put again: %s, %v", again, err)
	}
	got, err := s.GetObject(ctx, name)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("get: %d bytes, %v", len(got), err)
	}
	_, err = s.GetObject(ctx, strings.Repeat("0", 64))
	must(t, "get of nothing", err, goal.ErrNotFound)
	empty, err := s.PutObject(ctx, nil)
	must(t, "put of nothing", err, nil)
	got, err = s.GetObject(ctx, empty)
	if err != nil || len(got) != 0 {
		t.Fatalf("get of the empty object: %d bytes, %v", len(got), err)
	}
}

func exerciseUnknown(e env) {
	t, s := e.T, e.s
	for _, task := range []string{"tsk_00000000000000000000000000000000", "", "a.b", ">"} {
		_, err := s.Load(t.Context(), kv.DefaultTenant, task)
		must(t, "load "+task, err, goal.ErrNotFound)
	}
}

package kv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// The folders of testdata/records hold what a store had on its disk, one folder
// for each set of record versions. They are never changed: whoever raises a
// version writes a new folder beside them (go test ./kv -run WriteRecords
// -records v2), and what follows then holds for both.
var recordsFolder = flag.String("records", "", "folder to be made below testdata/records with the records of today")

const recordsPath = "testdata/records"

// The tasks of the records: one that ended, with everything that a task can
// leave behind, and one that was being worked on.
var (
	endedTask   = goal.TaskID(kv.DefaultTenant, "k1")
	runningTask = goal.TaskID(kv.DefaultTenant, "k2")
)

const oldWorker = "w1"

func TestWriteRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if *recordsFolder != "" {
		dir = filepath.Join(recordsPath, *recordsFolder)
	}
	c := kvtest.Server(t, kvtest.Options{})
	s := c.Store(t)
	writeTasks(t, s)
	writeDeliveries(t, s)
	d, b := s.Documents(), s.Balances()
	_, err := d.Put(t.Context(), "shop", "orders", "W1", json.RawMessage(`{"status":"delivered","id":9007199254740993}`), 0)
	must(t, "Put", err, nil)
	_, _, err = d.Edit(t.Context(), "shop", "orders", "W1", "key-1", set(`{"status":"refunded","id":9007199254740993}`))
	must(t, "Edit", err, nil)
	_, _, err = d.Edit(t.Context(), "shop", "orders", "W2/é", "key-2", set(`[1.50]`))
	must(t, "Edit", err, nil)
	_, _, err = d.Edit(t.Context(), "shop", "orders", "W3", "key-3", set("{}"))
	must(t, "Edit", err, nil)
	_, _, err = d.Edit(t.Context(), "shop", "orders", "W3", "key-4", func(json.RawMessage, uint64) (json.RawMessage, error) { return nil, nil })
	must(t, "Edit", err, nil)
	must(t, "Grant", b.Grant(t.Context(), "acme", "grant-1", 1000), nil)
	must(t, "Reserve", b.Reserve(t.Context(), "acme", "call-1", 300), nil)
	_, err = s.PutObject(t.Context(), []byte("a large result"))
	must(t, "PutObject", err, nil)
	kvtest.WriteRecords(t, dir, c.Dump(t))
}

// example decodes one of the wire shapes that kv/goal pins.
func example[T any](t *testing.T, name string) (v T) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("goal", "testdata", name+".golden"))
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	must(t, name, err, nil)
	return v
}

func writeTasks(t *testing.T, s *kv.Store) {
	t.Helper()
	sub := example[goal.Submission](t, "submission")
	acc, _, err := s.Submit(t.Context(), sub)
	must(t, "Submit", err, nil)
	sub.Key, sub.TaskID, sub.Goal.WebhookURL = "k2", runningTask, ""
	running, _, err := s.Submit(t.Context(), sub)
	must(t, "Submit", err, nil)
	_, err = s.Lock(t.Context(), kv.DefaultTenant, runningTask, oldWorker, time.Hour)
	must(t, "Lock", err, nil)
	j, _ := open(t, s, running)
	must(t, "Append", j.Append(t.Context(), example[goal.Event](t, "task.started.v1"), example[goal.Event](t, "state.observed.v1")), nil)
	j, _ = open(t, s, acc)
	for _, names := range [][]string{
		{"task.started.v1", "state.observed.v1"}, {"step.refused.v1", "step.decided.v1"}, {"task.resumed.v1"}, {"step.completed.v1"},
	} {
		var events []goal.Event
		for _, name := range names {
			events = append(events, example[goal.Event](t, name))
		}
		must(t, "Append", j.Append(t.Context(), events...), nil)
	}
	must(t, "Note", s.Note(t.Context(), acc, example[goal.Event](t, "key.conflict.v1")), nil)
	must(t, "RequestCancel", s.RequestCancel(t.Context(), acc), nil)
	_, err = s.Settle(t.Context(), acc, example[goal.Result](t, "result"), j.N())
	must(t, "Settle", err, nil)
}

func writeDeliveries(t *testing.T, s *kv.Store) {
	t.Helper()
	at := time.Date(2026, 11, 30, 12, 0, 50, 0, time.UTC)
	d := goal.Delivery{
		Version: goal.DeliveryVersion, Webhook: example[goal.Webhook](t, "webhook"), State: goal.DeliveryPending, Created: at, Next: at,
		Attempts: []goal.Attempt{},
	}
	rev, err := s.CreateDelivery(t.Context(), d)
	must(t, "CreateDelivery", err, nil)
	d.Record(goal.Attempt{
		At: at, Trigger: goal.TriggerEvent, Status: 410, Error: "status", Took: goal.Millis(12 * time.Millisecond), Answer: "gone", Request: "r1",
	})
	d.State, d.Closed, d.Next, d.Spent = goal.DeliveryGone, at.Add(time.Second), time.Time{}, 1
	_, err = s.UpdateDelivery(t.Context(), d, rev)
	must(t, "UpdateDelivery", err, nil)
	turn := goal.Turn{Version: goal.TurnVersion, Tenant: kv.DefaultTenant, ID: d.Webhook.ID, At: at, Trigger: goal.TriggerManual, Request: "r2", Deferred: 1}
	must(t, "ScheduleTurn", s.ScheduleTurn(t.Context(), turn), nil)
	turn.At, turn.Trigger, turn.Request = time.Now().Add(time.Minute), goal.TriggerRetry, ""
	must(t, "ScheduleTurn", s.ScheduleTurn(t.Context(), turn), nil)
}

// old is a store with records that an earlier Goalkeeper wrote.
type old struct {
	*testing.T
	*kv.Store
	c       *kvtest.Cluster
	records kvtest.Records
}

// eachFolder runs the test on the records of every folder. change may spoil
// them first.
func eachFolder(t *testing.T, change func(kvtest.Records), test func(o old)) {
	t.Helper()
	folders, err := os.ReadDir(recordsPath)
	must(t, recordsPath, err, nil)
	for _, f := range folders {
		t.Run(f.Name(), func(t *testing.T) {
			t.Parallel()
			o := old{t, nil, kvtest.Server(t, kvtest.Options{}), kvtest.ReadRecords(t, filepath.Join(recordsPath, f.Name()))}
			o.Store = o.c.Store(t)
			if change != nil {
				change(o.records)
			}
			o.c.Restore(t, o.records)
			test(o)
		})
	}
}

// stored is the only record whose subject has the prefix.
func (o old) stored(prefix string) kvtest.Message {
	o.Helper()
	var found []kvtest.Message
	for _, messages := range o.records {
		for _, m := range messages {
			if strings.HasPrefix(m.Subject, prefix) {
				found = append(found, m)
			}
		}
	}
	if len(found) != 1 {
		o.Fatalf("%d records under %s, want one", len(found), prefix)
	}
	return found[0]
}

// same wants everything that the stored JSON says to be in the value read.
func (o old) same(what string, stored json.RawMessage, read any) {
	o.Helper()
	now, err := goal.Marshal(read)
	must(o, what, err, nil)
	if at := kvtest.Lacks(o, stored, now); at != "" {
		o.Errorf("%s: %s is lost or changed: read as\n%s\nwas\n%s", what, at, now, stored)
	}
}

func (o old) load(task string) goal.Snapshot {
	o.Helper()
	snap, err := o.Load(o.Context(), kv.DefaultTenant, task)
	must(o, "Load", err, nil)
	return snap
}

// Records that an earlier Goalkeeper stored are read as they were meant, and
// its unfinished work goes on.
func TestOldRecords(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		test func(o old)
	}{
		{"a task that ended", oldEnded},
		{"a task that was running", oldRunning},
		{"queue", oldQueue},
		{"webhooks", oldWebhooks},
		{"documents", oldDocuments},
		{"balance", oldBalance},
		{"object", oldObject},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			eachFolder(t, nil, tc.test)
		})
	}
}

func oldEnded(o old) {
	snap := o.load(endedTask)
	o.same("submission", o.stored(goal.QueueSubject(kv.DefaultTenant, endedTask)).Data, snap.Submission)
	o.same("result", o.stored("$KV.RESULTS.").Data, snap.Result)
	if !snap.CancelAsked {
		o.Error("the mark of the cancel is not seen")
	}
	types := map[goal.EventType]bool{}
	for _, m := range o.records[goal.EventsStream] {
		var b struct {
			Events []json.RawMessage `json:"events"`
		}
		must(o, m.Subject, json.Unmarshal(m.Data, &b), nil)
		for _, raw := range b.Events {
			var e goal.Event
			must(o, m.Subject, json.Unmarshal(raw, &e), nil)
			types[e.Type] = true // those of the running task are equal to these
			if i := slices.IndexFunc(snap.Events, func(s goal.Event) bool { return s.Type == e.Type }); i < 0 {
				o.Errorf("no event %s", e.Type)
			} else {
				o.same(string(e.Type), raw, snap.Events[i])
			}
		}
	}
	if len(types) != len(snap.Events) {
		o.Errorf("%d events are read, %d were stored", len(snap.Events), len(types))
	}
	head, err := o.TailHead(o.Context())
	must(o, "TailHead", err, nil)
	won, err := o.Settle(o.Context(), snap.Accepted, succeeded(), 99)
	must(o, "Settle", err, nil)
	if now, err := o.TailHead(o.Context()); won.Status != snap.Result.Status || now != head || err != nil {
		o.Errorf("Settle = %s and %d appends, %v, want %s as before", won.Status, now-head, err, snap.Result.Status)
	}
}

func oldRunning(o old) {
	_, err := o.Lock(o.Context(), kv.DefaultTenant, runningTask, "w2", time.Minute)
	if held, ok := errors.AsType[*goal.LockedError](err); !ok || held.Holder != oldWorker {
		o.Errorf("Lock = %v, want it held by %s", err, oldWorker)
	}
	acc := o.load(runningTask).Accepted
	j, events := open(o, o.Store, acc)
	if len(events) != 2 || events[0].Type != goal.TaskStarted || events[1].Type != goal.StateObserved {
		o.Errorf("OpenJournal = %+v", events)
	}
	must(o, "Append", j.Append(o.Context(), goal.Event{Type: goal.TaskResumed, Time: time.Now(), Started: &goal.Started{Attempt: 2, GoalSeq: acc.Seq}}), nil)
	_, err = o.Settle(o.Context(), acc, succeeded(), j.N())
	must(o, "Settle", err, nil)
	if snap := o.load(runningTask); snap.Result == nil || len(snap.Events) != 4 {
		o.Errorf("after the end: %+v", snap)
	}
}

func oldQueue(o old) {
	q, err := o.Queue(o.Context(), kv.DefaultTenant, kv.QueueConfig{})
	must(o, "Queue", err, nil)
	for _, m := range o.records[goal.GoalsStream(kv.DefaultTenant)] {
		d, err := q.Next(patient(o.T))
		must(o, "Next", err, nil)
		o.same("delivery", m.Data, d.Submission)
		must(o, "Ack", d.Ack(), nil)
		again, created, err := o.Submit(o.Context(), d.Submission)
		if err != nil || created || again.Seq != m.Seq {
			o.Errorf("the submission again = %d, created %v, %v, want %d", again.Seq, created, err, m.Seq)
		}
	}
}

func oldWebhooks(o old) {
	ends, turns := o.EndedTasks(), o.DueTurns()
	defer leave(ends, turns)
	due, ok := next(o.T, ends, time.Minute)
	if !ok {
		o.Fatal("no webhook of the ended task")
	}
	var end struct{ Webhook json.RawMessage }
	must(o, "end", json.Unmarshal(o.stored(goal.EndSubject(kv.DefaultTenant, endedTask)).Data, &end), nil)
	o.same("webhook", end.Webhook, due.Webhook)
	id := due.Webhook.ID
	d, _, err := o.Delivery(o.Context(), kv.DefaultTenant, id)
	must(o, "Delivery", err, nil)
	o.same("delivery", o.stored("deliveries.record.").Data, d)
	if dead, _, err := o.DeadDeliveries(o.Context(), kv.DefaultTenant, 0); err != nil || len(dead) != 1 || dead[0].Webhook.ID != id {
		o.Errorf("DeadDeliveries = %+v, %v", dead, err)
	}
	for {
		due, ok := next(o.T, turns, time.Minute)
		if !ok {
			o.Fatal("no turn by request")
		}
		if due.Request != "" { // the other is from the schedule, which is overdue
			o.same("turn", o.stored("deliveries.due.").Data, due.Turn)
			return
		}
	}
}

// leave gives back what the feeds hold.
func leave(feeds ...*kv.TurnFeed) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, f := range feeds {
		_, _ = f.Next(ctx)
	}
}

func oldDocuments(o old) {
	d := o.Documents()
	for id, want := range map[string]string{"W1": `{"status":"refunded","id":9007199254740993}`, "W2/é": `[1.50]`} {
		if v, _, err := d.Get(o.Context(), "shop", "orders", id); string(v) != want || err != nil {
			o.Errorf("Get(%s) = %s, %v, want %s", id, v, err, want)
		}
	}
	for id, key := range map[string]string{"W1": "key-1", "W2/é": "key-2", "W3": "key-3"} {
		if _, replayed, err := d.Edit(o.Context(), "shop", "orders", id, key, set(`"again"`)); !replayed || err != nil {
			o.Errorf("Edit(%s) with its key = replayed %v, %v", id, replayed, err)
		}
	}
	ids, err := d.List(o.Context(), "shop", "orders", 10)
	if !slices.Equal(ids, []string{"W1", "W2/é"}) || err != nil {
		o.Errorf("List = %q, %v", ids, err)
	}
}

func oldBalance(o old) {
	b := o.Balances()
	must(o, "Grant", b.Grant(o.Context(), "acme", "grant-1", 1000), nil) // as before: nothing
	if n := left(o, b, "acme"); n != 700 {
		o.Errorf("Left = %d, want 700", n)
	}
	must(o, "Reserve", b.Reserve(o.Context(), "acme", "call-2", 700), nil)
}

func oldObject(o old) {
	var info struct{ Name string }
	must(o, "object", json.Unmarshal(o.stored("$O."+goal.ObjectsBucket+".M.").Data, &info), nil)
	if data, err := o.GetObject(o.Context(), info.Name); string(data) != "a large result" || err != nil {
		o.Errorf("GetObject = %q, %v", data, err)
	}
}

// A record of a version that this program does not know is refused by every way
// that leads to it, by name, and stays what it is.
func TestUnknownVersions(t *testing.T) {
	t.Parallel()
	ended := goal.Accepted{Submission: goal.Submission{Tenant: kv.DefaultTenant, TaskID: endedTask}, Seq: 1}
	for _, tc := range []struct {
		stream string
		prefix string // of the subjects
		use    map[string]func(ctx context.Context, s *kv.Store) error
	}{
		{goal.GoalsStream(kv.DefaultTenant), "goals.queue.", map[string]func(context.Context, *kv.Store) error{
			"Load": func(ctx context.Context, s *kv.Store) error { return second(s.Load(ctx, kv.DefaultTenant, endedTask)) },
			"Submit": func(ctx context.Context, s *kv.Store) error {
				_, _, err := s.Submit(ctx, submission(endedTask))
				return err
			},
		}},
		{goal.EventsStream, "goals.events.", map[string]func(context.Context, *kv.Store) error{
			"Load": func(ctx context.Context, s *kv.Store) error { return second(s.Load(ctx, kv.DefaultTenant, endedTask)) },
			"OpenJournal": func(ctx context.Context, s *kv.Store) error {
				_, _, _, err := s.OpenJournal(ctx, ended)
				return err
			},
			"Settle": func(ctx context.Context, s *kv.Store) error { return second(s.Settle(ctx, ended, succeeded(), 6)) },
		}},
		{"KV_" + goal.ResultsBucket, "$KV.RESULTS.", map[string]func(context.Context, *kv.Store) error{
			"Load": func(ctx context.Context, s *kv.Store) error { return second(s.Load(ctx, kv.DefaultTenant, endedTask)) },
			"OpenJournal": func(ctx context.Context, s *kv.Store) error {
				_, _, _, err := s.OpenJournal(ctx, ended)
				return err
			},
			"Settle": func(ctx context.Context, s *kv.Store) error { return second(s.Settle(ctx, ended, succeeded(), 7)) },
		}},
		{goal.DeliveriesStream, "deliveries.record.", map[string]func(context.Context, *kv.Store) error{
			"Deliveries": func(ctx context.Context, s *kv.Store) error {
				return second(s.Deliveries(ctx, kv.DefaultTenant, endedTask))
			},
			"Redeliver": func(ctx context.Context, s *kv.Store) error {
				return s.Redeliver(ctx, kv.DefaultTenant, goal.WebhookID(kv.DefaultTenant, endedTask))
			},
		}},
		{"KV_" + goal.StateBucket, "$KV.STATE.", map[string]func(context.Context, *kv.Store) error{
			"Get": func(ctx context.Context, s *kv.Store) error {
				_, _, err := s.Documents().Get(ctx, "shop", "orders", "W1")
				return err
			},
			"Edit": func(ctx context.Context, s *kv.Store) error {
				_, _, err := s.Documents().Edit(ctx, "shop", "orders", "W1", "key", set("1"))
				return err
			},
			"List": func(ctx context.Context, s *kv.Store) error {
				return second(s.Documents().List(ctx, "shop", "orders", 9))
			},
			"Collection": func(ctx context.Context, s *kv.Store) error {
				_, _, _, err := s.Documents().Collection(ctx, "shop", "orders")
				return err
			},
		}},
		{"KV_" + goal.BalancesBucket, "$KV.BALANCES.", map[string]func(context.Context, *kv.Store) error{
			"Left":    func(ctx context.Context, s *kv.Store) error { return second(s.Balances().Left(ctx, "acme")) },
			"Reserve": func(ctx context.Context, s *kv.Store) error { return s.Balances().Reserve(ctx, "acme", "call-2", 1) },
			"Settle":  func(ctx context.Context, s *kv.Store) error { return s.Balances().Settle(ctx, "acme", "call-1", 1) },
			"Grant":   func(ctx context.Context, s *kv.Store) error { return s.Balances().Grant(ctx, "acme", "grant-2", 1) },
		}},
	} {
		t.Run(tc.stream, func(t *testing.T) {
			t.Parallel()
			newer := func(all kvtest.Records) { raise(t, all[tc.stream], tc.prefix) }
			eachFolder(t, newer, func(o old) {
				before := o.c.Dump(o)[tc.stream]
				for name, use := range tc.use {
					if err := use(o.Context(), o.Store); err == nil || !strings.Contains(err.Error(), "record of an unknown version: 99") {
						o.Errorf("%s = %v, want the version refused", name, err)
					}
				}
				after := o.c.Dump(o)[tc.stream]
				if !slices.EqualFunc(before, after, func(a, b kvtest.Message) bool { return a.Seq == b.Seq && bytes.Equal(a.Data, b.Data) }) {
					o.Errorf("the records have changed:\n%+v, were\n%+v", after, before)
				}
			})
		})
	}
}

// second is the error of a call with one value.
func second[T any](_ T, err error) error { return err }

// raise makes records to ones of a version that does not exist yet.
func raise(t *testing.T, messages []kvtest.Message, prefix string) {
	t.Helper()
	for i, m := range messages {
		if !strings.HasPrefix(m.Subject, prefix) {
			continue
		}
		var members map[string]json.RawMessage
		must(t, m.Subject, json.Unmarshal(m.Data, &members), nil)
		name := "v"
		if members["version"] != nil {
			name = "version"
		}
		if members[name] == nil {
			t.Fatalf("%s has no version: %s", m.Subject, m.Data)
		}
		members[name] = json.RawMessage("99")
		raw, err := json.Marshal(members)
		must(t, m.Subject, err, nil)
		messages[i].Data = raw
	}
}

// Goals and turns of a newer version are given back, for a process that knows
// them.
func TestUnknownVersionsWait(t *testing.T) {
	t.Parallel()
	newer := func(all kvtest.Records) {
		raise(t, all[goal.GoalsStream(kv.DefaultTenant)], "goals.queue.")
		raise(t, all[goal.EventsStream], "goals.events.")
		raise(t, all[goal.DeliveriesStream], "deliveries.due.")
		raise(t, all[goal.DeliveriesStream], "deliveries.at.")
	}
	eachFolder(t, newer, func(o old) {
		q, err := o.Queue(o.Context(), kv.DefaultTenant, kv.QueueConfig{})
		must(o, "Queue", err, nil)
		ctx, cancel := context.WithTimeout(o.Context(), time.Second)
		defer cancel()
		if d, err := q.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			o.Errorf("Next = %+v, %v", d, err)
		}
		for name, feed := range map[string]*kv.TurnFeed{"EndedTasks": o.EndedTasks(), "DueTurns": o.DueTurns()} {
			if due, ok := next(o.T, feed, time.Second); ok {
				o.Errorf("%s: %+v", name, due)
			}
		}
		js, err := jetstream.New(o.c.Conn(o))
		must(o, "JetStream", err, nil)
		for stream, consumer := range map[string]string{
			goal.GoalsStream(kv.DefaultTenant): "workers", goal.EventsStream: "notifier", goal.DeliveriesStream: "notifier",
		} {
			c, err := js.Consumer(o.Context(), stream, consumer)
			must(o, stream, err, nil)
			info, err := c.Info(o.Context())
			if err != nil || info.NumAckPending == 0 {
				o.Errorf("%s: %d wait to come again, %v", stream, info.NumAckPending, err)
			}
		}
	})
}

package kv_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// TestJournalProperty lets several workers open, append and settle in any
// order, and lose answers. Whatever they do: the journal is numbered without
// gaps, holds exactly the appends that were answered in the order of the
// answers, nobody appends after having been fenced, and nothing follows the
// end.
func TestJournalProperty(t *testing.T) {
	t.Parallel()
	s := kvtest.Store(t, kvtest.Options{})
	var tasks atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		acc, _, err := s.Submit(t.Context(), submission(fmt.Sprintf("prop-%d", tasks.Add(1))))
		if err != nil {
			rt.Fatalf("submit: %v", err)
		}
		m := &journalModel{t: t, s: s, acc: acc, journals: make([]*kv.Journal, 3), fenced: make([]bool, 3)}
		rt.Repeat(map[string]func(*rapid.T){
			"open":   m.open,
			"append": m.append,
			"settle": m.settle,
			"end":    m.settleOwn,
			"load":   m.check,
		})
		m.check(rt)
	})
}

// journalModel is what the journal must hold.
type journalModel struct {
	t        *testing.T
	s        *kv.Store
	acc      goal.Accepted
	journals []*kv.Journal
	fenced   []bool
	texts    []string // of the events that were answered
	writes   int
	won      *goal.Result
}

func (m *journalModel) open(rt *rapid.T) {
	i := rapid.IntRange(0, len(m.journals)-1).Draw(rt, "worker")
	s := m.s.Losing(int64(rapid.IntRange(0, 1).Draw(rt, "lost")))
	if rapid.Bool().Draw(rt, "blindly") {
		m.journals[i], m.fenced[i] = s.BeginJournal(m.acc), false
		return
	}
	j, events, result, err := s.OpenJournal(m.t.Context(), m.acc)
	if err != nil {
		rt.Fatalf("open: %v", err)
	}
	m.same(rt, events)
	if (result == nil) != (m.won == nil) || result != nil && result.Detail != m.won.Detail {
		rt.Fatalf("opened with result %+v, want %+v", result, m.won)
	}
	m.journals[i], m.fenced[i] = j, false
}

func (m *journalModel) append(rt *rapid.T) {
	i := rapid.IntRange(0, len(m.journals)-1).Draw(rt, "worker")
	if m.journals[i] == nil {
		return
	}
	var events []goal.Event
	var texts []string
	for range rapid.IntRange(1, 3).Draw(rt, "events") {
		m.writes++
		texts = append(texts, strconv.Itoa(m.writes))
		events = append(events, goal.Event{Type: goal.StateObserved, Worker: texts[len(texts)-1], Observed: &goal.Observed{}})
	}
	stale := m.journals[i].N() != len(m.texts)
	switch err := m.journals[i].Append(m.t.Context(), events...); {
	case err == nil && (m.fenced[i] || stale || m.won != nil):
		rt.Fatalf("worker %d appended: fenced %v, stale %v, ended %v", i, m.fenced[i], stale, m.won != nil)
	case err == nil:
		m.texts = append(m.texts, texts...)
	case !errors.Is(err, goal.ErrFenced):
		rt.Fatalf("append: %v", err)
	case !stale && m.won == nil && !m.fenced[i]:
		rt.Fatalf("worker %d was fenced by nobody", i)
	default:
		m.fenced[i] = true
	}
}

func (m *journalModel) settle(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "often") != 0 {
		return
	}
	m.writes++
	r := failed()
	r.Detail = strconv.Itoa(m.writes)
	n := len(m.texts) - rapid.IntRange(0, 1).Draw(rt, "behind")
	won, err := m.s.Losing(int64(rapid.IntRange(0, 2).Draw(rt, "lost"))).Settle(m.t.Context(), m.acc, r, n)
	switch {
	case m.won == nil && n != len(m.texts):
		if !errors.Is(err, goal.ErrFenced) {
			rt.Fatalf("settle of who knows %d of %d events: %v", n, len(m.texts), err)
		}
	case err != nil:
		rt.Fatalf("settle: %v", err)
	case m.won == nil && won.Detail != r.Detail, m.won != nil && won.Detail != m.won.Detail:
		rt.Fatalf("settle %s: the winner is %s", r.Detail, won.Detail)
	default:
		m.won = &won
	}
}

// settleOwn ends the task by a worker's own journal. One that another has
// overtaken within the second may still decide; one that knows it may not.
func (m *journalModel) settleOwn(rt *rapid.T) {
	i := rapid.IntRange(0, len(m.journals)-1).Draw(rt, "worker")
	if m.journals[i] == nil || rapid.IntRange(0, 3).Draw(rt, "often") != 0 {
		return
	}
	m.writes++
	r := failed()
	r.Detail = strconv.Itoa(m.writes)
	stale := m.journals[i].N() != len(m.texts)
	won, err := m.journals[i].Settle(m.t.Context(), r)
	switch {
	case m.won == nil && stale && errors.Is(err, goal.ErrFenced):
	case err != nil:
		rt.Fatalf("settle: %v", err)
	case m.won == nil && stale && m.fenced[i]:
		rt.Fatalf("worker %d was fenced and decided", i)
	case m.won == nil && won.Detail != r.Detail, m.won != nil && won.Detail != m.won.Detail:
		rt.Fatalf("settle %s: the winner is %s", r.Detail, won.Detail)
	default:
		m.won = &won
	}
}

func (m *journalModel) check(rt *rapid.T) {
	snap, err := m.s.Load(m.t.Context(), m.acc.Submission.Tenant, m.acc.Submission.TaskID)
	if err != nil {
		rt.Fatalf("load: %v", err)
	}
	m.same(rt, snap.Events)
	if (snap.Result != nil) != (m.won != nil) {
		rt.Fatalf("result is %v, want %v", snap.Result, m.won)
	}
}

// same compares the journal with the model.
func (m *journalModel) same(rt *rapid.T, events []goal.Event) {
	want := len(m.texts)
	if m.won != nil {
		want++
	}
	if len(events) != want {
		rt.Fatalf("%d events, want %d", len(events), want)
	}
	for i, e := range events {
		switch {
		case e.N != i+1:
			rt.Fatalf("event %d has number %d", i+1, e.N)
		case i < len(m.texts) && e.Worker != m.texts[i]:
			rt.Fatalf("event %d is %s, want %s", i+1, e.Worker, m.texts[i])
		case i >= len(m.texts) && e.Type != goal.TaskEnded:
			rt.Fatalf("event %d is %s, want the end", i+1, e.Type)
		}
	}
}

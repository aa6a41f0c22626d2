package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// history is what everybody outside of Goalkeeper saw during a soak: clients,
// the tool backend and the webhook receiver. Nothing in it comes from
// Goalkeeper's own memory of what it did, but the traces.
type history struct {
	mu        sync.Mutex // guards all members
	sent      map[string]sentGoal
	acked     map[string]time.Time // first 202 or 200, by task
	cancelled map[string]bool      // whose cancelling was taken
	states    map[string][]goal.State
	ends      map[string][]time.Time  // when it ended, as clients and webhooks were told
	traces    map[string][]goal.Event // read at the end
	hooks     map[string][]seenHook
	calls     map[string][]string // keys that arrived at the tool backend
	effects   []effect
	refused   []string // answers that no client should get
}

// sentGoal is a goal that a client wants.
type sentGoal struct {
	n       int
	key     string
	cancel  bool   // its client changes its mind
	counter string // empty: the goal is of another kind
	target  int    // of the counter
	far     bool   // it is cancelled before it gets there

	unsafe    bool // its tool may not be repeated, and does not notice when it is
	published bool // it goes into the intake, whose acknowledgement is taken for the 202
}

// may reports whether the goal, which can be reached, may end so.
func (g sentGoal) may(e goal.Ended) bool {
	switch e.Status { //nolint:exhaustive // the others are no ends
	case goal.Succeeded:
		return !g.far
	case goal.Cancelled:
		return g.cancel
	default:
		// A worker that is gone may have left a call of which nobody can say what
		// came of it.
		return g.unsafe && e.Reason == goal.OutcomeUnknown
	}
}

// seenHook is a webhook that arrived, with a signature that verifies.
type seenHook struct {
	id     string
	status goal.State
	digest string // of the body
}

// effect is one addition to a counter.
type effect struct {
	task, step, counter string
}

func newHistory() *history {
	return &history{
		sent: map[string]sentGoal{}, acked: map[string]time.Time{}, cancelled: map[string]bool{}, states: map[string][]goal.State{},
		ends: map[string][]time.Time{}, traces: map[string][]goal.Event{}, hooks: map[string][]seenHook{}, calls: map[string][]string{},
	}
}

// note changes the history.
func (h *history) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// clone is the history by now. It may be added to.
func (h *history) clone() *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &history{
		sent: maps.Clone(h.sent), acked: maps.Clone(h.acked), cancelled: maps.Clone(h.cancelled), states: cloneAll(h.states), ends: cloneAll(h.ends),
		traces: cloneAll(h.traces), hooks: cloneAll(h.hooks), calls: cloneAll(h.calls), effects: slices.Clone(h.effects), refused: slices.Clone(h.refused),
	}
}

func cloneAll[V any](m map[string][]V) map[string][]V {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = slices.Clone(v)
	}
	return out
}

// seen counts what the world saw.
func (h *history) seen() string {
	keys := map[string]bool{}
	for _, calls := range h.calls {
		for _, k := range calls {
			keys[k] = true
		}
	}
	return fmt.Sprintf("%d goals taken, %d cancels, %d ends told, %d webhooks, %d calls", len(h.acked), len(h.cancelled), len(h.ends), len(h.hooks), len(keys))
}

// ended notes the end of a task, if this is one. The caller holds mu.
func (h *history) ended(t goal.Task) {
	if t.EndedAt != nil {
		h.ends[t.ID] = append(h.ends[t.ID], *t.EndedAt)
	}
}

// check is every way in which the history breaks the promise: what was
// acknowledged is settled once, with its webhook, and every effect took place
// once, also that of a tool that may not be repeated. It does not ask how a task
// ended; see unwanted.
func (h *history) check() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	bad := slices.Clone(h.refused)
	for _, task := range slices.Sorted(maps.Keys(h.sent)) {
		if _, ok := h.acked[task]; !ok {
			bad = append(bad, task+": never acknowledged")
			continue
		}
		if ended, ok := h.outcome(task); ok && ended.Status == goal.Cancelled && !h.sent[task].cancel {
			bad = append(bad, task+": cancelled, and nobody asked for it")
		}
		for _, what := range [][]string{h.checkTrace(task), h.checkCalls(task), h.checkStates(task), h.checkHooks(task)} {
			for _, w := range what {
				bad = append(bad, task+": "+w)
			}
		}
	}
	for _, task := range slices.Sorted(maps.Keys(h.hooks)) {
		if _, ok := h.sent[task]; !ok {
			bad = append(bad, task+": a webhook for a task that nobody sent")
		}
	}
	return append(bad, h.checkEffects()...)
}

// checkTrace wants events without gaps, and one end, last.
func (h *history) checkTrace(task string) (bad []string) {
	ends, events := 0, h.traces[task]
	for i, e := range events {
		if e.N != i+1 {
			bad = append(bad, fmt.Sprintf("event %d of the trace has number %d", i+1, e.N))
		}
		if e.Type == goal.TaskEnded {
			ends++
		}
	}
	switch {
	case ends != 1:
		bad = append(bad, fmt.Sprintf("settled %d times", ends))
	case events[len(events)-1].Type != goal.TaskEnded:
		bad = append(bad, "events after the end")
	}
	return bad
}

// checkCalls wants every call that arrived to be that of a journaled decision.
func (h *history) checkCalls(task string) (bad []string) {
	journaled := map[string]bool{}
	for _, e := range h.traces[task] {
		if e.Decision != nil {
			journaled[e.Decision.Key] = true
		}
	}
	for _, key := range h.calls[task] {
		if !journaled[key] {
			bad = append(bad, "a call without a decision: "+key)
		}
	}
	return bad
}

// outcome is how the task ended, by its trace.
func (h *history) outcome(task string) (goal.Ended, bool) {
	events := h.traces[task]
	if len(events) == 0 || events[len(events)-1].Ended == nil {
		return goal.Ended{}, false
	}
	return *events[len(events)-1].Ended, true
}

// checkStates wants no state after a terminal one but that one, and one end.
func (h *history) checkStates(task string) (bad []string) {
	var end goal.State
	for _, s := range h.states[task] {
		if end != "" && s != end {
			bad = append(bad, fmt.Sprintf("was %s and then %s", end, s))
		}
		if s.Terminal() && end == "" {
			end = s
		}
	}
	for _, at := range h.ends[task] {
		if first := h.ends[task][0]; !at.Equal(first) {
			bad = append(bad, fmt.Sprintf("ended at %s and at %s", first, at))
		}
	}
	if ended, ok := h.outcome(task); ok && end != "" && end != ended.Status {
		bad = append(bad, fmt.Sprintf("was %s and its trace ends with %s", end, ended.Status))
	}
	return bad
}

// checkHooks wants a webhook, and every further one to be the same.
func (h *history) checkHooks(task string) (bad []string) {
	seen := h.hooks[task]
	if len(seen) == 0 {
		return []string{"no webhook"}
	}
	ended, _ := h.outcome(task)
	for _, s := range seen {
		if s.id != goal.WebhookID(defaultTenant, task) {
			bad = append(bad, "webhook-id "+s.id)
		}
		if s.digest != seen[0].digest {
			bad = append(bad, "two webhooks with different bodies")
		}
		if ended.Status != "" && s.status != ended.Status {
			bad = append(bad, fmt.Sprintf("webhook says %s, the trace %s", s.status, ended.Status))
		}
	}
	return bad
}

// checkEffects wants one effect for each step, and the counter of every task
// that succeeded at its target.
func (h *history) checkEffects() (bad []string) {
	steps, counters := map[effect]int{}, map[string]int{}
	for _, e := range h.effects {
		steps[e]++
		counters[e.counter]++
		if g, ok := h.sent[e.task]; !ok || g.counter != e.counter {
			bad = append(bad, fmt.Sprintf("%s: changed counter %s, which is not its own", e.task, e.counter))
		}
	}
	for e, n := range steps {
		if n > 1 {
			bad = append(bad, fmt.Sprintf("%s: step %s took effect %d times", e.task, e.step, n))
		}
	}
	for task, g := range h.sent {
		ended, ok := h.outcome(task)
		n := counters[g.counter]
		if g.counter == "" || !ok {
			continue
		}
		if n > g.target || (ended.Status == goal.Succeeded && n != g.target) {
			bad = append(bad, fmt.Sprintf("%s: %s with its counter at %d, want %d", task, ended.Status, n, g.target))
		}
	}
	slices.Sort(bad)
	return bad
}

// unwanted are the tasks that ended as they may not, since their goals could be
// reached, and those that were not cancelled although they had time.
func (h *history) unwanted() (bad []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for task := range h.acked {
		if ended, ok := h.outcome(task); ok && !h.sent[task].may(ended) {
			bad = append(bad, fmt.Sprintf("%s: %s %s %s", task, ended.Status, ended.Reason, ended.Detail))
		}
	}
	slices.Sort(bad)
	return bad
}

// missing are the tasks whose webhook has not come yet.
func (h *history) missing() (tasks []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for task := range h.acked {
		if len(h.hooks[task]) == 0 {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// spread is a distribution of times.
type spread []time.Duration

func (s spread) String() string {
	if len(s) == 0 {
		return "none"
	}
	slices.Sort(s)
	at := func(p float64) time.Duration { return s[int(p*float64(len(s)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("n=%d p50=%s p95=%s p99=%s max=%s", len(s), at(.5), at(.95), at(.99), at(1))
}

// summary counts the history and shows how long things took: from the first
// 202 to the start, from the event before a take-over to the take-over, and
// from the first 202 to the end.
func (h *history) summary() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var start, taken, takeover, end spread
	more, back := 0, 0
	var published, asked, cancelled, unsafe, unknown int
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	for task, at := range h.acked {
		g := h.sent[task]
		ended, _ := h.outcome(task)
		count(&published, g.published)
		count(&asked, g.cancel)
		count(&cancelled, ended.Status == goal.Cancelled)
		count(&unsafe, g.unsafe)
		count(&unknown, ended.Reason == goal.OutcomeUnknown)
		for i, e := range h.traces[task] {
			switch e.Type { //nolint:exhaustive // the others take no part
			case goal.TaskStarted:
				wait := max(0, e.Time.Sub(at)) // the work may begin before the answer arrives
				if g.published {
					taken = append(taken, wait)
				} else {
					start = append(start, wait)
				}
			case goal.TaskResumed:
				takeover = append(takeover, e.Time.Sub(h.traces[task][max(0, i-1)].Time))
			case goal.TaskEnded:
				end = append(end, max(0, e.Time.Sub(at)))
			}
		}
		more += max(0, len(h.hooks[task])-1)
		states := h.states[task]
		for i := 1; i < len(states); i++ {
			if states[i-1] == goal.Running && states[i] == goal.Queued {
				back++
			}
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "goals sent %d, acknowledged %d; effects %d; webhooks for %d tasks, %d of them again; running read as queued %d times\n",
		len(h.sent), len(h.acked), len(h.effects), len(h.hooks), more, back)
	fmt.Fprintf(&s, "through the intake %d; cancelled %d of %d that were to be; outcome unknown of %d of %d with an unsafe tool\n",
		published, cancelled, asked, unknown, unsafe)
	fmt.Fprintf(&s, "202 to start:      %s\nintake to start:   %s\nlast event to take-over: %s\n202 to end:        %s", start, taken, takeover, end)
	return s.String()
}

// timeline counts what happened in every five seconds.
func (h *history) timeline() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	const (
		slot                         = 5 * time.Second
		acks, starts, takeovers, end = 0, 1, 2, 3
	)
	rows := map[time.Time]*[4]int{}
	count := func(at time.Time, what int) {
		at = at.Truncate(slot).UTC()
		if rows[at] == nil {
			rows[at] = &[4]int{}
		}
		rows[at][what]++
	}
	for task, at := range h.acked {
		count(at, acks)
		for _, e := range h.traces[task] {
			switch e.Type { //nolint:exhaustive // the others are not counted
			case goal.TaskStarted:
				count(e.Time, starts)
			case goal.TaskResumed:
				count(e.Time, takeovers)
			case goal.TaskEnded:
				count(e.Time, end)
			}
		}
	}
	var s strings.Builder
	s.WriteString("from        202  started  taken over  ended\n")
	for _, at := range slices.SortedFunc(maps.Keys(rows), time.Time.Compare) {
		r := rows[at]
		fmt.Fprintf(&s, "%s %6d %8d %11d %6d\n", at.Format(time.TimeOnly), r[acks], r[starts], r[takeovers], r[end])
	}
	return s.String()
}

// slowest is the trace of the task whose take-over came latest.
func (h *history) slowest() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var worst time.Duration
	var slow string
	for task, events := range h.traces {
		for i, e := range events {
			if e.Type == goal.TaskResumed && i > 0 && e.Time.Sub(events[i-1].Time) > worst {
				worst, slow = e.Time.Sub(events[i-1].Time), task
			}
		}
	}
	var s strings.Builder
	for _, e := range h.traces[slow] {
		fmt.Fprintf(&s, "%s %s %s\n", e.Time.Format("15:04:05.000"), e.Type, e.Worker)
	}
	return s.String()
}

// goodHistory is one in which all is well: one task of each kind.
func goodHistory() *history {
	h := newHistory()
	t0 := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, g := range []sentGoal{{key: "a"}, {key: "b", counter: "c", target: 2}} {
		task := goal.TaskID(defaultTenant, g.key)
		h.sent[task], h.acked[task] = g, t0
		h.states[task] = []goal.State{goal.Queued, goal.Running, goal.Succeeded, goal.Succeeded}
		h.traces[task] = []goal.Event{
			{N: 1, Type: goal.TaskStarted, Time: t0},
			{N: 2, Type: goal.StepDecided, Time: t0, Decision: &goal.Decision{Key: "k"}},
			{N: 3, Type: goal.TaskEnded, Time: t0, Ended: &goal.Ended{Status: goal.Succeeded, Reason: goal.TargetStateReached}},
		}
		hook := seenHook{id: goal.WebhookID(defaultTenant, task), status: goal.Succeeded, digest: "d"}
		h.hooks[task] = []seenHook{hook, hook}
		h.calls[task] = []string{"k", "k"}
		h.ends[task] = []time.Time{t0, t0}
		for i := range g.target {
			h.effects = append(h.effects, effect{task: task, step: cmp.Or(map[int]string{0: "1"}[i], "2"), counter: g.counter})
		}
	}
	return h
}

// TestHistoryCheck shows that the checker accepts what is right and finds each
// thing that must not happen.
func TestHistoryCheck(t *testing.T) {
	t.Parallel()
	a, b := goal.TaskID(defaultTenant, "a"), goal.TaskID(defaultTenant, "b")
	if bad := goodHistory().check(); len(bad) > 0 {
		t.Fatalf("a good history: %q", bad)
	}
	for _, tc := range []struct {
		name  string
		spoil func(*history)
		want  string
	}{
		{"not acknowledged", func(h *history) { delete(h.acked, a) }, "never acknowledged"},
		{"lost", func(h *history) { delete(h.traces, a) }, "settled 0 times"},
		{"not settled", func(h *history) { h.traces[a] = h.traces[a][:1] }, "settled 0 times"},
		{"settled twice", func(h *history) { e := h.traces[a][2]; e.N = 4; h.traces[a] = append(h.traces[a], e) }, "settled 2 times"},
		{"event after the end", func(h *history) { h.traces[a] = append(h.traces[a], goal.Event{N: 4}) }, "events after the end"},
		{"gap", func(h *history) { h.traces[a][1].N = 3 }, "has number 3"},
		{"call without a decision", func(h *history) { h.calls[a][1] = "x" }, "without a decision: x"},
		{"ended twice", func(h *history) { h.ends[a][1] = h.ends[a][0].Add(1) }, "ended at"},
		{"changed end", func(h *history) { h.states[a][3] = goal.Failed }, "was succeeded and then failed"},
		{"went on", func(h *history) { h.states[a][3] = goal.Running }, "was succeeded and then running"},
		{"another end", func(h *history) { h.traces[a][2].Ended.Status = goal.Failed }, "its trace ends with failed"},
		{"no webhook", func(h *history) { delete(h.hooks, b) }, "no webhook"},
		{"webhook-id", func(h *history) { h.hooks[b][1].id = "x" }, "webhook-id x"},
		{"webhook body", func(h *history) { h.hooks[b][1].digest = "x" }, "different bodies"},
		{"webhook status", func(h *history) { h.hooks[b][0].status = goal.Failed }, "webhook says failed"},
		{"webhook of nobody", func(h *history) { h.hooks["x"] = h.hooks[a] }, "nobody sent"},
		{"effect twice", func(h *history) { h.effects = append(h.effects, h.effects[0]) }, "step 1 took effect 2 times"},
		{"effect missing", func(h *history) { h.effects = h.effects[:1] }, "counter at 1, want 2"},
		{"one step more", func(h *history) { h.effects = append(h.effects, effect{b, "3", "c"}) }, "counter at 3, want 2"},
		{"effect elsewhere", func(h *history) { h.effects[0].task = a }, "not its own"},
		{"cancelled by nobody", func(h *history) {
			h.states[a], h.traces[a][2].Ended.Status, h.hooks[a] = nil, goal.Cancelled, []seenHook{{goal.WebhookID(defaultTenant, a), goal.Cancelled, "d"}}
		}, "nobody asked"},
		{"refused", func(h *history) { h.refused = []string{"409"} }, "409"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := goodHistory()
			tc.spoil(h)
			if bad := h.check(); !strings.Contains(strings.Join(bad, "\n"), tc.want) {
				t.Errorf("check() = %q, want %q", bad, tc.want)
			}
		})
	}
}

// TestHistoryUnwanted shows which ends the checker lets pass.
func TestHistoryUnwanted(t *testing.T) {
	t.Parallel()
	succeeded := goal.Ended{Status: goal.Succeeded, Reason: goal.TargetStateReached}
	cancelled := goal.Ended{Status: goal.Cancelled, Reason: goal.CancelRequested}
	unknown := goal.Ended{Status: goal.Failed, Reason: goal.OutcomeUnknown}
	failed := goal.Ended{Status: goal.Failed, Reason: goal.ToolFailed}
	for _, tc := range []struct {
		name  string
		goal  sentGoal
		ended goal.Ended
		want  bool
	}{
		{"succeeded", sentGoal{}, succeeded, true},
		{"succeeded before the cancel", sentGoal{cancel: true}, succeeded, true},
		{"cancelled", sentGoal{cancel: true}, cancelled, true},
		{"cancelled by nobody", sentGoal{unsafe: true}, cancelled, false},
		{"call of an unsafe tool was cut off", sentGoal{unsafe: true}, unknown, true},
		{"call of a keyed tool was cut off", sentGoal{cancel: true}, unknown, false},
		{"reached although it is far", sentGoal{cancel: true, far: true}, succeeded, false},
		{"failed", sentGoal{unsafe: true, cancel: true}, failed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h, task := goodHistory(), goal.TaskID(defaultTenant, "a")
			h.sent[task] = tc.goal
			h.traces[task][2].Ended = &tc.ended
			if bad := h.unwanted(); (len(bad) == 0) != tc.want {
				t.Errorf("unwanted() = %q, want it to pass: %v", bad, tc.want)
			}
		})
	}
}

package ingest

import (
	"slices"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Summary is a task as lists show it: members of goal.Task, under the same
// names.
type Summary struct {
	ID          string      `json:"id"`
	Status      goal.State  `json:"status"`
	Reason      goal.Reason `json:"reason,omitempty"`
	Intent      string      `json:"intent"` // cut to maxIntent bytes
	Environment string      `json:"environment"`
	AcceptedAt  time.Time   `json:"accepted_at"`
	StartedAt   *time.Time  `json:"started_at,omitempty"`
	EndedAt     *time.Time  `json:"ended_at,omitempty"`
	ExpiresAt   time.Time   `json:"expires_at"`
	Usage       goal.Usage  `json:"usage"`
	LeftTotal   int         `json:"left_total"`
	Links       goal.Links  `json:"links"`
	Worker      string      `json:"-"` // who wrote the last event
	ChangedAt   time.Time   `json:"-"` // time of the last event
}

const (
	maxIntent = 280
	// maxEarly bounds the events kept of tasks that are not listed: their
	// submission has not come through the other stream yet, or is too old.
	maxEarly = 4096
)

// projection is the newest tasks of every tenant, for lists. It is never on the
// way of a submission, and what it shows may lag behind the store by as much as
// the tail does.
type projection struct {
	size int

	mu      sync.RWMutex
	tenants map[string]*tenantList
	live    time.Time // the tail brings every event of a goal that is submitted after this; zero: not yet
}

// tenantList is one tenant's part.
type tenantList struct {
	whole bool            // rebuilt since the process started
	rows  map[string]*row // by task
	order []*row          // by sequence, oldest first; at most size
	early map[string][]goal.Event
	// forgot is when early was full: a goal whose submission was under way then
	// may have had events in it.
	forgot time.Time
}

type row struct {
	Summary

	seq    uint64    // of the submission in the tenant's stream
	stored time.Time // by the store's clock; zero for one that was accepted here
	n      int       // of the last event that was applied
	quiet  bool      // the store has no event or note that the tail has not still to bring
}

func newProjection(tenants []string, size int) *projection {
	p := &projection{size: size, tenants: map[string]*tenantList{}}
	for _, t := range tenants {
		p.tenants[t] = &tenantList{rows: map[string]*row{}, early: map[string][]goal.Event{}}
	}
	return p
}

// begin says that the tail brings every event from now on.
func (p *projection) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live.IsZero() {
		p.live = time.Now()
	}
}

// sequence is that of a listed goal that is still retained. One that is not
// listed may exist all the same. quiet: nothing has happened to it that the tail
// has not still to bring.
func (p *projection) sequence(tenant, task string, now time.Time) (seq uint64, quiet, ok bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	l := p.tenants[tenant]
	if l == nil {
		return 0, false, false
	}
	r := l.rows[task]
	if r == nil || !now.Before(r.ExpiresAt) {
		return 0, false, false
	}
	return r.seq, r.quiet, true
}

// knows reports whether that submission of the task is listed, or a later one.
func (p *projection) knows(tenant, task string, seq uint64) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	l := p.tenants[tenant]
	if l == nil {
		return false
	}
	r := l.rows[task]
	return r != nil && r.seq >= seq
}

// accept adds a submission. It may be repeated. A task id that comes with a
// higher sequence is a new goal under a key whose retention had ended.
func (p *projection) accept(acc goal.Accepted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.tenants[acc.Submission.Tenant]
	if l == nil {
		return
	}
	id := acc.Submission.TaskID
	if old := l.rows[id]; old != nil {
		if old.seq >= acc.Seq {
			return
		}
		l.drop(old)
	}
	g := acc.Submission.Goal
	r := &row{seq: acc.Seq, stored: acc.Stored, Summary: Summary{
		ID: id, Status: goal.Queued, Intent: cut(g.Objective.Intent, maxIntent), Environment: g.EnvironmentName(),
		AcceptedAt: acc.At.UTC(), ExpiresAt: acc.Expires.UTC(),
	}}
	l.insert(r, p.size)
	early, some := l.early[id]
	for _, e := range early {
		r.apply(e)
	}
	delete(l.early, id)
	r.quiet = acc.Stored.IsZero() && !some && !p.live.IsZero() && acc.At.After(p.live) && acc.At.After(l.forgot)
}

// apply folds a task's new events in. It may be repeated.
func (p *projection) apply(tenant, task string, events []goal.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.tenants[tenant]
	if l == nil {
		return
	}
	r := l.rows[task]
	if r == nil {
		if len(l.early) >= maxEarly {
			clear(l.early) // a later event of the task says all that the list shows, but for the start's time
			l.forgot = time.Now()
		}
		l.early[task] = append(l.early[task], events...)
		return
	}
	r.quiet = false
	for _, e := range events {
		r.apply(e)
	}
}

// rebuilt marks the tenant's part as whole.
func (p *projection) rebuilt(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.tenants[tenant]; l != nil {
		l.whole = true
	}
}

// oldest is when the oldest task that was read from the store was stored there.
func (p *projection) oldest(tenant string) (time.Time, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if l := p.tenants[tenant]; l != nil {
		for _, r := range l.order {
			if !r.stored.IsZero() {
				return r.stored, true
			}
		}
	}
	return time.Time{}, false
}

func (l *tenantList) insert(r *row, size int) {
	at, _ := slices.BinarySearchFunc(l.order, r.seq, func(o *row, seq uint64) int {
		switch {
		case o.seq < seq:
			return -1
		case o.seq > seq:
			return 1
		default:
			return 0
		}
	})
	l.order = slices.Insert(l.order, at, r)
	l.rows[r.ID] = r
	for len(l.order) > size {
		l.drop(l.order[0])
	}
}

func (l *tenantList) drop(r *row) {
	if len(l.order) > 0 && l.order[0] == r {
		l.order[0] = nil
		l.order = l.order[1:]
	} else if at := slices.Index(l.order, r); at >= 0 {
		l.order = slices.Delete(l.order, at, at+1)
	}
	delete(l.rows, r.ID)
}

// apply folds one event of the journal into the row. Events of a journal are
// numbered without gaps; one that is not newer was applied already.
func (r *row) apply(e goal.Event) {
	if e.N <= r.n || r.Status.Terminal() {
		return
	}
	r.n = e.N
	r.Status, r.ChangedAt = goal.Running, e.Time.UTC()
	if e.Worker != "" {
		r.Worker = e.Worker
	}
	if e.Observed != nil {
		r.LeftTotal = e.Observed.LeftTotal
	}
	switch e.Type {
	case goal.TaskStarted:
		at := e.Time.UTC()
		r.StartedAt = &at
	case goal.StepDecided:
		r.Usage.Steps = e.Step
		r.Usage.ToolCalls++
		r.spend(e.Decision.Tokens, e.Decision.Estimated)
	case goal.StepRefused:
		r.Usage.Steps = e.Step
		r.spend(e.Refusal.Tokens, e.Refusal.Estimated)
	case goal.TaskEnded:
		at := e.Time.UTC()
		r.Status, r.Reason, r.Usage, r.EndedAt = e.Ended.Status, e.Ended.Reason, e.Ended.Usage, &at
		if r.Status == goal.Succeeded {
			r.LeftTotal = 0
		}
	case goal.TaskResumed, goal.StateObserved, goal.StepCompleted, goal.KeyConflict:
	}
}

// shown is the summary with what is not kept for every row.
func (r *row) shown() Summary {
	s := r.Summary
	s.Links = goal.LinksOf(s.ID)
	return s
}

func (r *row) spend(tokens int64, estimated bool) {
	r.Usage.Tokens += tokens
	r.Usage.Estimated = r.Usage.Estimated || estimated
}

// filter says which tasks a list shows.
type filter struct {
	status      []goal.State // none: all
	environment string       // empty: all
	before      uint64       // sequence that the page begins below; 0: the newest
	limit       int
}

// page is the newest tasks that the filter lets through, and where the next
// page begins; 0 when there is none.
func (p *projection) page(tenant string, f filter, now time.Time) (rows []Summary, next uint64, whole bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	rows = []Summary{}
	l := p.tenants[tenant]
	if l == nil {
		return rows, 0, true // a tenant whose queue is not read has no list
	}
	var last uint64
	for _, r := range slices.Backward(l.order) {
		switch {
		case f.before > 0 && r.seq >= f.before,
			len(f.status) > 0 && !slices.Contains(f.status, r.Status),
			f.environment != "" && r.Environment != f.environment,
			r.ExpiresAt.Before(now):
			continue
		case len(rows) == f.limit:
			return rows, last, l.whole
		}
		rows = append(rows, r.shown())
		last = r.seq
	}
	return rows, 0, l.whole
}

// EachTask calls fn for the tenant's listed tasks, newest first, until fn
// returns false; fn must return soon, for the list waits. It says whether the
// list is whole, which it is not while it is rebuilt after a start. It may be
// called concurrently.
func (s *Server) EachTask(tenant string, fn func(Summary) bool) (whole bool) {
	p, now := s.lists, time.Now()
	p.mu.RLock()
	defer p.mu.RUnlock()
	l := p.tenants[tenant]
	if l == nil {
		return true
	}
	for _, r := range slices.Backward(l.order) {
		if !r.ExpiresAt.Before(now) && !fn(r.shown()) {
			break
		}
	}
	return l.whole
}

// cut shortens s to at most n bytes at a rune boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

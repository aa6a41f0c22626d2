package ingest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// taskOf is the task id in the path. What cannot be an id is not found; it must
// not reach a subject of the store, where a star has a meaning.
func taskOf(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	hexa, ok := strings.CutPrefix(id, "tsk_")
	if !ok || len(hexa) != 32 || strings.Trim(hexa, "0123456789abcdef") != "" {
		return "", goal.NewProblem(goal.NotFound, "")
	}
	return id, nil
}

// getTask is GET /v1/tasks/{id}.
func (s *Server) getTask(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := taskOf(r)
	if err != nil {
		return err
	}
	withTrace, err := traceWanted(r)
	if err != nil {
		return err
	}
	v := view{s: s, tenant: who.Tenant, id: id, trace: withTrace}
	wait, waiting := preferredWait(r.Header.Values("Prefer"))
	known := r.Header.Values("If-None-Match")
	if waiting {
		w.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait/time.Second)))
		err = v.await(r.Context(), wait, known)
	} else {
		err = v.read(r.Context())
	}
	if err != nil {
		return err
	}
	v.write(w, r, known)
	return nil
}

// view is one representation of a task.
type view struct {
	s      *Server
	tenant string
	id     string
	trace  bool

	task goal.Task
	body []byte
	etag string
}

func (v *view) read(ctx context.Context) error {
	snap, err := v.s.load(ctx, v.tenant, v.id)
	if err != nil {
		return err
	}
	v.task = snap.Task()
	if v.trace {
		v.task.Trace = snap.LastSteps(goal.TraceSnapshot)
	}
	if v.body, err = goal.Marshal(v.task); err != nil {
		return err
	}
	v.etag = etagOf(v.body)
	return nil
}

// await reads the task and, unless it differs from what the caller knows, holds
// on until it changes, at most for wait. Without If-None-Match the caller is
// taken to know what was there when it asked; a task that has ended never
// changes.
func (v *view) await(ctx context.Context, wait time.Duration, known []string) error {
	watcher, err := v.s.hub.watch(v.tenant, v.id, true)
	if err != nil {
		return err
	}
	defer v.s.hub.forget(watcher)
	if err := v.read(ctx); err != nil {
		return err
	}
	first := v.etag
	if len(known) > 0 && !matches(known, first) {
		return nil
	}
	end, again := time.NewTimer(wait), time.NewTimer(v.s.recheck())
	defer end.Stop()
	defer again.Stop()
	for v.etag == first && !v.task.Status.Terminal() {
		next := v.s.recheck()
		select {
		case <-watcher.frames:
			next = rereadSoon
		case <-again.C:
		case <-end.C:
			return nil
		case <-v.s.drained:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := v.read(ctx); err != nil {
			return err
		}
		again.Reset(next)
	}
	return nil
}

// A wait is woken by the tail. A replica may show the change a moment after the
// tail has told of it, and a tail may be cut off: so the task is read again, soon
// after a wake and now and then anyway.
const (
	rereadSoon  = 100 * time.Millisecond
	rereadAtAll = 10 * time.Second
)

func (s *Server) recheck() time.Duration {
	if s.cfg.Tail == nil {
		return s.cfg.PollAfter
	}
	return rereadAtAll
}

func (v *view) write(w http.ResponseWriter, r *http.Request, known []string) {
	h := w.Header()
	h.Set("ETag", v.etag)
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Vary", "Accept-Encoding")
	if !v.task.Status.Terminal() {
		h.Set("Retry-After", strconv.Itoa(seconds(v.s.cfg.PollAfter)))
	}
	if len(known) > 0 && matches(known, v.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeBody(w, r, http.StatusOK, "application/json", v.body)
}

func traceWanted(r *http.Request) (bool, error) {
	switch r.URL.Query().Get("trace") {
	case "":
		return true, nil
	case "none":
		return false, nil
	default:
		return false, badParameter("trace", "must be none or absent")
	}
}

// preferredWait reads Prefer: wait=N (RFC 7240 section 4.3), in seconds. A
// preference that is not understood is ignored, as the RFC wants; more than a
// minute is taken as a minute.
func preferredWait(lines []string) (time.Duration, bool) {
	for pref := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		pref, _, _ = strings.Cut(pref, ";")
		name, value, _ := strings.Cut(pref, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "wait") {
			continue
		}
		n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
		if err != nil {
			return 0, false
		}
		return min(time.Duration(n)*time.Second, maxWait), true
	}
	return 0, false
}

// traceAnswer is the body of GET /v1/tasks/{id}/trace.
type traceAnswer struct {
	TaskID string       `json:"task_id"`
	Status goal.State   `json:"status"`
	Events []goal.Event `json:"events"`
}

// getTrace is GET /v1/tasks/{id}/trace.
func (s *Server) getTrace(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := taskOf(r)
	if err != nil {
		return err
	}
	after, err := number(r, "after", 0)
	if err != nil {
		return err
	}
	snap, err := s.load(r.Context(), who.Tenant, id)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	s.respondJSON(w, r, http.StatusOK, traceAnswer{TaskID: id, Status: snap.Task().Status, Events: snap.Trace(after)})
	return nil
}

// number reads a query parameter that is a whole number, not negative.
func number(r *http.Request, name string, absent int) (int, error) {
	raw := r.URL.Query().Get(name)
	if raw == "" {
		return absent, nil
	}
	n, err := strconv.ParseUint(raw, 10, 31)
	if err != nil {
		return 0, badParameter(name, "must be a whole number")
	}
	return int(n), nil
}

// postCancel is POST /v1/tasks/{id}/cancel.
func (s *Server) postCancel(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := taskOf(r)
	if err != nil {
		return err
	}
	snap, err := s.cancel(r.Context(), who.Tenant, id)
	if err != nil {
		return err
	}
	t := snap.Task()
	h := w.Header()
	h.Set("Location", t.Links.Self)
	h.Set("Cache-Control", "no-store")
	if !t.Status.Terminal() {
		h.Set("Retry-After", strconv.Itoa(seconds(s.cfg.PollAfter)))
	}
	s.respondJSON(w, r, http.StatusAccepted, t)
	return nil
}

// cancel asks for the task's end and ends it at once if nobody works on it. It
// may be repeated; a task that has ended stays as it is.
//
// The marker is durable before the task is read again, and a worker looks at the
// marker after its start is journaled and before its first call. So a task that
// is still queued after the marker can be settled here: no call can have been
// made, and a worker that starts now meets the result.
func (s *Server) cancel(ctx context.Context, tenant, id string) (goal.Snapshot, error) {
	snap, err := s.load(ctx, tenant, id)
	if err != nil || snap.Result != nil {
		return snap, err
	}
	if !snap.CancelAsked {
		if err := s.store(ctx, func(ctx context.Context) error { return s.cfg.Store.RequestCancel(ctx, snap.Accepted) }); err != nil {
			return snap, err
		}
	}
	if snap, err = s.load(ctx, tenant, id); err != nil || snap.Result != nil {
		return snap, err
	}
	if snap.Task().Status == goal.Queued {
		if err := s.settle(ctx, snap, goal.Result{Status: goal.Cancelled, Reason: goal.CancelRequested, Detail: "cancelled before it started"}); err != nil {
			return snap, err
		}
		if snap, err = s.load(ctx, tenant, id); err != nil {
			return snap, err
		}
	}
	s.hub.wake(tenant, id)
	return snap, nil
}

// settle ends a task that no worker works on.
func (s *Server) settle(ctx context.Context, snap goal.Snapshot, r goal.Result) error {
	sub := snap.Submission
	r.Version, r.TaskID, r.Tenant, r.GoalSeq = goal.ResultVersion, sub.TaskID, sub.Tenant, snap.Seq
	r.Left, r.EndedAt = []goal.Difference{}, time.Now().UTC()
	n := 0
	for _, e := range snap.Events {
		n = max(n, e.N)
	}
	return s.store(ctx, func(ctx context.Context) error {
		_, err := s.cfg.Store.Settle(ctx, snap.Accepted, r, n)
		return err
	})
}

// store makes one call to the store, within its time.
func (s *Server) store(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	return call(ctx)
}

package ingest

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// getEvents is GET /v1/tasks/{id}/events: what is in the journal, then what is
// appended to it, until the terminal event. The watch begins before the journal
// is read, so that nothing falls between the two.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := taskOf(r)
	if err != nil {
		return err
	}
	after, err := lastEventID(r)
	if err != nil {
		return err
	}
	watcher, err := s.hub.watch(who.Tenant, id, false)
	if err != nil {
		return err
	}
	defer s.hub.forget(watcher)
	events, err := s.trace(r.Context(), who.Tenant, id, after)
	if err != nil {
		return err
	}
	if ended(events, after) {
		w.WriteHeader(http.StatusNoContent) // tells an EventSource not to come back
		return nil
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	st := stream{s: s, w: w, rc: http.NewResponseController(w), tenant: who.Tenant, id: id, last: after}
	// Only now may errors no longer become a problem: the answer has begun.
	st.run(r.Context(), watcher, events, after == 0)
	return nil
}

// trace is the task's events but for those that the tail has not brought yet.
// The goal itself is not read where it is listed, and nothing is where nothing
// has happened, as far as this process and the caller, who has seen the event
// after, know.
func (s *Server) trace(ctx context.Context, tenant, id string, after int) ([]goal.Event, error) {
	seq, quiet, ok := s.lists.sequence(tenant, id, time.Now())
	switch {
	case quiet && after == 0:
		return nil, nil
	case !ok:
		snap, err := s.load(ctx, tenant, id)
		return snap.Events, err
	}
	var events []goal.Event
	err := s.store(ctx, func(ctx context.Context) (err error) {
		events, err = s.cfg.Store.Trace(ctx, tenant, id, seq)
		return err
	})
	return events, err
}

// lastEventID is where the caller goes on: its Last-Event-ID header, or ?after.
func lastEventID(r *http.Request) (int, error) {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		n, err := strconv.ParseUint(id, 10, 31)
		if err != nil {
			return 0, plainProblem(http.StatusBadRequest, "Last-Event-ID must be the number of an event.")
		}
		return int(n), nil
	}
	return number(r, "after", 0)
}

// ended reports whether the caller has seen the task's terminal event.
func ended(events []goal.Event, after int) bool {
	for _, e := range events {
		if e.Type == goal.TaskEnded && e.N <= after {
			return true
		}
	}
	return false
}

// stream is one caller's event stream.
type stream struct {
	s          *Server
	w          http.ResponseWriter
	rc         *http.ResponseController
	tenant, id string
	last       int // number of the last event that was sent
	buf        []byte
}

// run sends until the terminal event, the caller's end, the server's drain, or
// until the caller lags too far behind.
func (st *stream) run(ctx context.Context, watcher *watcher, events []goal.Event, notes bool) {
	if st.catchUp(events, notes) || st.s.cfg.Tail == nil {
		return
	}
	beat := time.NewTicker(st.s.cfg.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case frames, ok := <-watcher.frames:
			if !ok || st.live(ctx, frames) {
				return
			}
		case <-beat.C:
			if st.send([]byte(": still here\n\n")) != nil {
				return
			}
		case <-st.s.drained:
			return
		case <-ctx.Done():
			return
		}
	}
}

// catchUp sends what the journal holds beyond last. Notes have no number to
// resume from; they are sent to callers that begin at the start.
func (st *stream) catchUp(events []goal.Event, notes bool) (done bool) {
	return st.emit(framesOf(events), notes)
}

// live sends what the tail brought. A gap means that the tail began later than
// the journal was read, or was cut off: the journal fills it.
func (st *stream) live(ctx context.Context, frames []frame) (done bool) {
	if gap(st.last, frames) {
		events, err := st.s.trace(ctx, st.tenant, st.id, st.last)
		if err != nil {
			return true // the caller comes back with the number it has
		}
		if st.catchUp(events, false) {
			return true
		}
	}
	return st.emit(frames, true)
}

// gap reports whether an event is missing between number last and the frames.
func gap(last int, frames []frame) bool {
	for _, f := range frames {
		if f.n > last+1 {
			return true
		}
		last = max(last, f.n)
	}
	return false
}

// emit sends the frames that were not sent yet, in one write.
func (st *stream) emit(frames []frame, notes bool) (done bool) {
	st.buf = st.buf[:0]
	for _, f := range frames {
		done = done || f.last // also when the caller claims to have seen more than there is
		if f.n == 0 && !notes || f.n > 0 && f.n <= st.last {
			continue
		}
		st.buf = append(st.buf, f.text...)
		st.last = max(st.last, f.n)
	}
	return st.write(st.buf) != nil || done || st.rc.Flush() != nil // the last event goes out with the answer's end
}

func (st *stream) send(p []byte) error {
	if err := st.write(p); err != nil {
		return err
	}
	return st.rc.Flush()
}

func (st *stream) write(p []byte) error {
	_ = st.rc.SetWriteDeadline(time.Now().Add(frameTimeout)) // not every writer has one
	if len(p) == 0 {
		return nil
	}
	_, err := st.w.Write(p)
	return err
}

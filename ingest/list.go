package ingest

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type listAnswer struct {
	Tasks      []Summary `json:"tasks"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// listTasks is GET /v1/tasks.
func (s *Server) listTasks(w http.ResponseWriter, r *http.Request, who Principal) error {
	f, err := filterOf(r)
	if err != nil {
		return err
	}
	if s.cfg.Tail == nil {
		return goal.NewProblem(goal.NotFound, "This server keeps no list.")
	}
	rows, next, whole := s.lists.page(who.Tenant, f, time.Now())
	if !whole {
		return retryLater(goal.NewProblem(goal.StoreUnavailable, "The list is being rebuilt after a start."), 1)
	}
	answer := listAnswer{Tasks: rows}
	if next > 0 {
		answer.NextCursor = cursor(next)
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	s.respondJSON(w, r, http.StatusOK, answer)
	return nil
}

func filterOf(r *http.Request) (filter, error) {
	q := r.URL.Query()
	f := filter{environment: q.Get("environment")}
	for _, line := range q["status"] {
		for name := range strings.SplitSeq(line, ",") {
			switch st := goal.State(name); {
			case name == "":
			case !slices.Contains(goal.States(), st):
				return f, badParameter("status", "must be one of queued, running, succeeded, failed, cancelled")
			default:
				f.status = append(f.status, st)
			}
		}
	}
	var err error
	if f.limit, err = number(r, "limit", defaultListPage); err != nil {
		return f, err
	}
	if f.limit < 1 || f.limit > maxListPage {
		return f, badParameter("limit", "must be 1 to 200")
	}
	if raw := q.Get("cursor"); raw != "" {
		if f.before, err = readCursor(raw); err != nil {
			return f, err
		}
	}
	return f, nil
}

// cursor is where a page begins. Clients must not read it.
func cursor(seq uint64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64([]byte{1}, seq))
}

func readCursor(s string) (uint64, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != 9 || b[0] != 1 {
		return 0, badParameter("cursor", "must be a next_cursor of an earlier answer")
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

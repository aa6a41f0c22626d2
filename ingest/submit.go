package ingest

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// postTask is POST /v1/tasks.
func (s *Server) postTask(w http.ResponseWriter, r *http.Request, who Principal) error {
	dry, err := flag(r, "dry_run")
	if err != nil {
		return err
	}
	if p := s.limits.take(who.Tenant); p != nil {
		s.metrics.submission("http", p)
		return p
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return retryLater(goal.NewProblem(goal.StoreUnavailable, "Too many submissions are being stored at the moment."), 1)
	}
	if dry {
		return s.dryRun(w, r, who)
	}
	out, err := s.submission(w, r, who)
	s.metrics.submissionOutcome("http", out, err)
	if err != nil {
		return err
	}
	s.answerSubmission(w, r, out)
	return nil
}

func (s *Server) submission(w http.ResponseWriter, r *http.Request, who Principal) (outcome, error) {
	key, problem := goal.ParseKey(r.Header.Values("Idempotency-Key"))
	if problem != nil {
		return outcome{}, problem
	}
	body, err := readBody(w, r)
	if err != nil {
		return outcome{}, err
	}
	return s.admit(r.Context(), request{who: who, via: "http", key: key, body: body, traceparent: traceparent(r.Header.Get("Traceparent"))})
}

func (s *Server) answerSubmission(w http.ResponseWriter, r *http.Request, out outcome) {
	t := out.snapshot.Task()
	h := w.Header()
	h.Set("Location", t.Links.Self)
	h.Set("Cache-Control", "no-store")
	if out.replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	s.respondJSON(w, r, s.taskStatus(h, t), &t)
}

// taskStatus is the status of an answer to a submission, with its Retry-After.
func (s *Server) taskStatus(h http.Header, t goal.Task) int {
	if t.Status.Terminal() {
		return http.StatusOK
	}
	h.Set("Retry-After", strconv.Itoa(seconds(s.cfg.PollAfter)))
	return http.StatusAccepted
}

// dryRun makes every check and stores nothing. A key is not needed; one that is
// sent is checked like a submission's.
func (s *Server) dryRun(w http.ResponseWriter, r *http.Request, who Principal) error {
	var key string
	if lines := r.Header.Values("Idempotency-Key"); len(lines) > 0 {
		var problem *goal.Problem
		if key, problem = goal.ParseKey(lines); problem != nil {
			return problem
		}
	}
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	g, fingerprint, problem := goal.ParseGoal(body)
	if problem != nil {
		return problem
	}
	if key != "" {
		snap, err := s.load(r.Context(), who.Tenant, goal.TaskID(who.Tenant, key))
		switch {
		case err == nil && snap.Submission.Fingerprint != fingerprint:
			return goal.NewProblem(goal.KeyReused, "The key was first used with another payload.")
		case err != nil && !errors.Is(err, goal.ErrNotFound):
			return err
		}
	}
	report, err := s.report(r.Context(), who, g, true)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	s.respondJSON(w, r, http.StatusOK, report)
	return nil
}

// readBody reads a JSON body of at most goal.MaxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if p := checkMediaType(r); p != nil {
		return nil, p
	}
	tooLarge := func() error {
		return goal.NewProblem(goal.PayloadTooLarge, "A goal has at most "+strconv.Itoa(goal.MaxBody)+" bytes.")
	}
	if r.ContentLength > goal.MaxBody {
		return nil, tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, goal.MaxBody))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // see limitTime
		return body, nil
	case errors.As(err, &over):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, plainProblem(http.StatusRequestTimeout, "The body did not arrive in time.")
	default:
		return nil, plainProblem(http.StatusBadRequest, "The body could not be read.")
	}
}

// checkMediaType takes application/json and every +json type, in UTF-8 and not
// encoded.
func checkMediaType(r *http.Request) *goal.Problem {
	refuse := func(detail string) *goal.Problem { return goal.NewProblem(goal.UnsupportedMediaType, detail) }
	lines := r.Header.Values("Content-Type")
	if len(lines) != 1 {
		return refuse("One Content-Type header is needed: application/json.")
	}
	media, params, err := mime.ParseMediaType(lines[0])
	if err != nil || !jsonType(media) {
		return refuse("The body must be application/json.")
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return refuse("The charset must be utf-8.")
	}
	if c := r.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return refuse("The body must not be encoded.")
	}
	return nil
}

func jsonType(media string) bool {
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// traceparent is the W3C trace context header if it is well-formed (Trace
// Context section 3.2), else nothing: a bad one must not reach the tools.
func traceparent(v string) string {
	if len(v) != 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || v[:2] == "ff" ||
		v[3:35] == strings.Repeat("0", 32) || v[36:52] == strings.Repeat("0", 16) {
		return ""
	}
	for i := range len(v) {
		if i == 2 || i == 35 || i == 52 {
			continue
		}
		if c := v[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return v
}

// flag reads a boolean query parameter.
func flag(r *http.Request, name string) (bool, error) {
	switch r.URL.Query().Get(name) {
	case "":
		if r.URL.Query().Has(name) {
			return false, badParameter(name, "must be true or false")
		}
		return false, nil
	case "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, badParameter(name, "must be true or false")
	}
}

func badParameter(name, detail string) error {
	return plainProblem(http.StatusBadRequest, "The query parameter "+name+" "+detail+".")
}

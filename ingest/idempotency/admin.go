package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// AdminHandler serves the operator's view. It does not authenticate: mount it
// behind what does.
//
//	GET  /calls?state=HELD&limit=100   list, without bodies
//	GET  /calls?tenant=T&key=K         find one by its key
//	GET  /calls/{id}                   inspect one
//	POST /calls/{id}/release           {"reason": "..."}: it took no effect, the next attempt may run
//	POST /calls/{id}/complete          {"reason": "...", "status": 201, "header": {"Location": ["/x"]}, "body": "..."}:
//	                                   it took effect, and this is its answer
//
// who names the operator for the record.
func AdminHandler(o *Operator, who func(*http.Request) string) http.Handler {
	a := &admin{o, who}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /calls", a.list)
	mux.HandleFunc("GET /calls/{id}", a.inspect)
	mux.HandleFunc("POST /calls/{id}/release", a.release)
	mux.HandleFunc("POST /calls/{id}/complete", a.complete)
	return mux
}

type admin struct {
	op  *Operator
	who func(*http.Request) string
}

// decision is the body of the two actions.
type decision struct {
	Reason string      `json:"reason"`
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"`
}

func (a *admin) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if key := q.Get("key"); key != "" {
		tenant := q.Get("tenant")
		fill(&tenant, "default")
		a.one(w, r, ID(tenant, key))
		return
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		limit = maxList
	}
	entries, err := a.op.List(r.Context(), State(q.Get("state")), limit)
	if err != nil {
		adminError(w, err)
		return
	}
	writeJSON(w, struct {
		Calls []Entry `json:"calls"`
	}{entries})
}

func (a *admin) inspect(w http.ResponseWriter, r *http.Request) { a.one(w, r, r.PathValue("id")) }

func (a *admin) one(w http.ResponseWriter, r *http.Request, id string) {
	if !validID(id) {
		adminError(w, goal.ErrNotFound)
		return
	}
	entry, err := a.op.Inspect(r.Context(), id)
	if err != nil {
		adminError(w, err)
		return
	}
	writeJSON(w, entry)
}

func (a *admin) release(w http.ResponseWriter, r *http.Request) {
	a.decide(w, r, func(ctx context.Context, id string, d decision) error {
		return a.op.Release(ctx, id, a.who(r), d.Reason)
	})
}

func (a *admin) complete(w http.ResponseWriter, r *http.Request) {
	a.decide(w, r, func(ctx context.Context, id string, d decision) error {
		answer := Answer{Status: d.Status, Header: canonicalHeader(d.Header), Body: []byte(d.Body)}
		return a.op.Complete(ctx, id, a.who(r), d.Reason, answer)
	})
}

func (a *admin) decide(w http.ResponseWriter, r *http.Request, act func(ctx context.Context, id string, d decision) error) {
	id := r.PathValue("id")
	if !validID(id) {
		adminError(w, goal.ErrNotFound)
		return
	}
	var d decision
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, defaultBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		writeProblem(w, goal.NewProblem(goal.MalformedJSON, ""))
		return
	}
	if err := act(r.Context(), id, d); err != nil {
		adminError(w, err)
		return
	}
	a.one(w, r, id)
}

// adminError maps the closed list of errors to answers.
func adminError(w http.ResponseWriter, err error) {
	var p *goal.Problem
	switch {
	case errors.Is(err, goal.ErrNotFound):
		p = goal.NewProblem(goal.NotFound, "")
	case errors.Is(err, ErrRunning), errors.Is(err, ErrFinal), errors.Is(err, goal.ErrFenced):
		p = goal.NewProblem(goal.RequestInProgress, err.Error())
		p.Title = "The call cannot be decided now"
	case errors.Is(err, ErrAnswer):
		p = goal.NewProblem(goal.GoalInvalid, err.Error())
		p.Title = "The answer is not valid"
	default:
		p = goal.NewProblem(goal.StoreUnavailable, "")
		p.RetryAfter = 1
	}
	writeProblem(w, p)
}

// validID keeps anything but our own digests away from the store's subjects.
func validID(id string) bool {
	if len(id) != 64 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func canonicalHeader(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for k, lines := range h {
		for _, line := range lines {
			out.Add(k, line)
		}
	}
	return out
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := goal.Marshal(v)
	if err != nil {
		writeProblem(w, goal.NewProblem(goal.InternalError, ""))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) //nolint:gosec // JSON, and says so; the operator's connection may be gone
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// adminRoutes is the operators' API below /v1/admin, as ingest mounts it for
// callers with the role admin.
func adminRoutes(calls, webhooks http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/admin/calls", http.StripPrefix("/v1/admin", calls))
	mux.Handle("/v1/admin/calls/", http.StripPrefix("/v1/admin", calls))
	mux.Handle("/v1/admin/webhooks/", http.StripPrefix("/v1/admin", webhooks))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		adminAnswer(w, nil, goal.NewProblem(goal.NotFound, "there is no such path"))
	})
	return mux
}

// webhookOperator is what operators may do with a tenant's deliveries.
// kv.Store implements it.
type webhookOperator interface {
	// RedeliverSince asks for one more attempt of every delivery that ended at
	// or after since without being taken, and returns how many.
	RedeliverSince(ctx context.Context, tenant string, since time.Time) (int, error)
	// SendTest sends a webhook.test event once and returns its webhook-id.
	SendTest(ctx context.Context, tenant, url string) (string, error)
}

// webhookAdmin serves the operators' API for webhooks, for the caller's tenant:
//
//	POST /webhooks/redeliver?since=2026-01-02T03:04:05Z   {"redelivered": 12}
//	POST /webhooks/test   {"url": "https://..."}          {"webhook_id": "msg_..."}
//
// It does not authenticate: mount it where ingest has set the principal. check
// refuses URLs that no webhook may go to.
func webhookAdmin(op webhookOperator, check func(url string) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /webhooks/redeliver", func(w http.ResponseWriter, r *http.Request) {
		since, err := time.Parse(time.RFC3339, r.URL.Query().Get("since"))
		if err != nil {
			adminAnswer(w, nil, badAdminRequest("since must be a time such as 2026-01-02T15:04:05Z"))
			return
		}
		who, _ := ingest.PrincipalOf(r)
		n, err := op.RedeliverSince(r.Context(), who.Tenant, since)
		adminAnswer(w, map[string]int{"redelivered": n}, err)
	})
	mux.HandleFunc("POST /webhooks/test", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			URL string `json:"url"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, goal.MaxBody)).Decode(&body); err != nil {
			adminAnswer(w, nil, goal.NewProblem(goal.MalformedJSON, `want {"url": "https://…"}`))
			return
		}
		if err := check(body.URL); err != nil {
			p := badAdminRequest("a webhook may not go there")
			p.Errors = []goal.FieldError{{Pointer: "/url", Detail: err.Error()}}
			adminAnswer(w, nil, p)
			return
		}
		who, _ := ingest.PrincipalOf(r)
		id, err := op.SendTest(r.Context(), who.Tenant, body.URL)
		adminAnswer(w, map[string]string{"webhook_id": id}, err)
	})
	return mux
}

func badAdminRequest(detail string) *goal.Problem {
	return &goal.Problem{Type: "about:blank", Title: http.StatusText(http.StatusBadRequest), Status: http.StatusBadRequest, Detail: detail}
}

// adminAnswer answers 202 with v, or with what went wrong.
func adminAnswer(w http.ResponseWriter, v any, err error) {
	status, media := http.StatusAccepted, "application/json"
	if err != nil {
		p := problemFor(err)
		v, status, media = p, p.Status, "application/problem+json"
	}
	body, err := goal.Marshal(v)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) //nolint:gosec // JSON by its type; the operator's connection may be gone
}

// problemFor is what an operator sees of an error.
func problemFor(err error) *goal.Problem {
	if p, ok := errors.AsType[*goal.Problem](err); ok {
		return p
	}
	if errors.Is(err, goal.ErrNotFound) {
		return goal.NewProblem(goal.NotFound, "")
	}
	return goal.NewProblem(goal.StoreUnavailable, "")
}

package ingest

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Catalog lists every environment that is configured; ingest shows a caller the
// part that its roles permit. It is called concurrently.
type Catalog interface {
	Environments(ctx context.Context) ([]Environment, error)
}

// Environment is a named world that goals can be submitted for.
type Environment struct {
	Name  string   `json:"name"`
	Roles []string `json:"-"` // who may use it; empty: everybody
	Tools []Tool   `json:"-"`
}

// Tool is what a planner of the environment may call.
type Tool struct {
	Name        string          `json:"name"`
	Environment string          `json:"environment"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
	Replay      goal.Replay     `json:"replay"`
	Roles       []string        `json:"-"` // who may use it; empty: everybody
}

type environmentsAnswer struct {
	Environments []Environment `json:"environments"`
}

type toolsAnswer struct {
	Tools []Tool `json:"tools"`
}

// permitted are the environments that the caller may use.
func (s *Server) permitted(ctx context.Context, who Principal) ([]Environment, error) {
	out := []Environment{}
	if s.cfg.Catalog == nil {
		return out, nil
	}
	all, err := s.cfg.Catalog.Environments(ctx)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "catalog failed", "error", err)
		return nil, retryLater(goal.NewProblem(goal.DependencyNotAvailable, "The tools could not be listed."), 5)
	}
	for _, e := range all {
		if who.May(e.Roles) {
			out = append(out, e)
		}
	}
	return out, nil
}

// getEnvironments is GET /v1/environments.
func (s *Server) getEnvironments(w http.ResponseWriter, r *http.Request, who Principal) error {
	envs, err := s.permitted(r.Context(), who)
	if err != nil {
		return err
	}
	s.respondJSON(w, r, http.StatusOK, environmentsAnswer{envs})
	return nil
}

// getTools is GET /v1/tools?environment=.
func (s *Server) getTools(w http.ResponseWriter, r *http.Request, who Principal) error {
	envs, err := s.permitted(r.Context(), who)
	if err != nil {
		return err
	}
	only := r.URL.Query().Get("environment")
	out := []Tool{}
	for _, e := range envs {
		if only != "" && e.Name != only {
			continue
		}
		for _, t := range e.Tools {
			if who.May(t.Roles) {
				t.Environment = e.Name
				out = append(out, t)
			}
		}
	}
	s.respondJSON(w, r, http.StatusOK, toolsAnswer{out})
	return nil
}

package ingest

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// action is a handler that knows who calls and returns what went wrong.
type action func(w http.ResponseWriter, r *http.Request, who Principal) error

func (s *Server) routes() (http.Handler, error) {
	mux := chi.NewRouter()
	s.mux = mux
	mux.NotFound(s.notFound)
	mux.MethodNotAllowed(s.methodNotAllowed(mux))
	mux.Group(s.publicRoutes)
	mux.Group(s.callerRoutes)
	if s.cfg.Admin != nil {
		mux.Mount("/v1/admin", s.withPrincipal(s.onlyAdmin(s.cfg.Admin)))
	}
	guarded, err := s.sameOrigin(mux)
	if err != nil {
		return nil, err
	}
	return s.outermost(s.cors(guarded)), nil
}

// publicRoutes need no key.
func (s *Server) publicRoutes(r chi.Router) {
	r.Use(noteRoute)
	read(r, "/v1/schemas/goal.json", s.document("application/schema+json", goal.Schema()))
	read(r, "/openapi.json", s.document("application/json", openAPI()))
	read(r, "/healthz", s.healthz)
	read(r, "/readyz", s.readyz)
	if s.cfg.Metrics != nil {
		read(r, "/metrics", s.cfg.Metrics.ServeHTTP)
	}
}

// callerRoutes need a key, where keys are configured.
func (s *Server) callerRoutes(r chi.Router) {
	r.Use(noteRoute, s.withPrincipal)
	r.Post("/v1/tasks", s.do(s.postTask))
	read(r, "/v1/tasks", s.do(s.listTasks))
	read(r, "/v1/tasks/{id}", s.do(s.getTask))
	read(r, "/v1/tasks/{id}/trace", s.do(s.getTrace))
	r.Get("/v1/tasks/{id}/events", s.do(s.getEvents))
	r.Post("/v1/tasks/{id}/cancel", s.do(s.postCancel))
	read(r, "/v1/tasks/{id}/deliveries", s.do(s.getDeliveries))
	r.Post("/v1/tasks/{id}/deliveries", s.do(s.postDeliveries))
	read(r, "/v1/environments", s.do(s.getEnvironments))
	read(r, "/v1/tools", s.do(s.getTools))
}

// read answers GET and HEAD.
func read(r chi.Router, pattern string, h http.HandlerFunc) {
	r.Get(pattern, h)
	r.Head(pattern, h)
}

// do makes a handler of an action.
func (s *Server) do(a action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			s.fail(w, r, plainProblem(http.StatusBadRequest, "The query is malformed."))
			return
		}
		who, _ := PrincipalOf(r)
		if err := a(w, r, who); err != nil {
			s.fail(w, r, err)
		}
	}
}

func (s *Server) onlyAdmin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, _ := PrincipalOf(r); !who.Has(roleAdmin) {
			s.fail(w, r, goal.NewProblem(goal.Forbidden, "The role admin is needed."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notFound hands what a browser asks for to the pages, if there are any.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Pages != nil && !strings.HasPrefix(r.URL.Path, "/v1/") && s.pageWanted(r) {
		s.cfg.Pages.ServeHTTP(w, r)
		return
	}
	s.fail(w, r, goal.NewProblem(goal.NotFound, "There is no such path."))
}

// pageWanted: a browser asks for text/html, also when it sends a form. For what
// a page is made of it asks with a wildcard, and where the connection is not
// trustworthy without Sec-Fetch-Dest: that lies under /assets/.
func (s *Server) pageWanted(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html") || r.Header.Get("Sec-Fetch-Dest") != "" ||
		strings.HasPrefix(r.URL.Path, "/assets/")
}

// methodNotAllowed says which methods the path has.
func (s *Server) methodNotAllowed(mux *chi.Mux) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			if mux.Match(chi.NewRouteContext(), m, r.URL.Path) {
				allowed = append(allowed, m)
			}
		}
		if len(allowed) == 0 {
			s.notFound(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.fail(w, r, plainProblem(http.StatusMethodNotAllowed, ""))
	}
}

// document serves bytes that never change while the process runs.
func (s *Server) document(mediaType string, body []byte) http.HandlerFunc {
	etag := etagOf(body)
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("ETag", etag)
		h.Set("Cache-Control", "public, max-age=300")
		h.Set("Vary", "Accept-Encoding")
		if matches(r.Header.Values("If-None-Match"), etag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		writeBody(w, r, http.StatusOK, mediaType, body)
	}
}

type health struct {
	Status string `json:"status"`
}

// healthz says that the process runs.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	s.respondJSON(w, r, http.StatusOK, health{"ok"})
}

// readyz says whether requests should be sent here.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if s.draining.Load() {
		s.respondJSON(w, r, http.StatusServiceUnavailable, health{"draining"})
		return
	}
	if s.cfg.Ready != nil {
		if err := s.store(r.Context(), s.cfg.Ready); err != nil {
			s.respondJSON(w, r, http.StatusServiceUnavailable, health{"store unavailable"})
			return
		}
	}
	s.respondJSON(w, r, http.StatusOK, health{"ready"})
}

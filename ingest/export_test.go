package ingest

import (
	"net/http"

	"github.com/go-chi/chi/v5"
)

// Handed to the tests of the public API.
var (
	OpenAPI         = openAPI
	PreferredWait   = preferredWait
	AcceptsGzip     = acceptsGzip
	Traceparent     = traceparent
	FramesOf        = framesOf
	WireTypes       = map[string]any{"TaskList": listAnswer{}, "Trace": traceAnswer{}, "Environments": environmentsAnswer{}, "Tools": toolsAnswer{}, "Health": health{}, "Deliveries": deliveriesAnswer{}}
	MaxWait         = maxWait
	WatchBuffer     = watchBuffer
	MaxEarly        = maxEarly
	DirectPatience  = directPatience
	AcceptsMatching = matches
)

// Watchers is how many streams and waits are open.
func (s *Server) Watchers() int {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	n := 0
	for _, set := range s.hub.byTask {
		n += len(set)
	}
	return n
}

// Routes are "METHOD /path" of everything that is served.
func (s *Server) Routes() []string {
	var out []string
	_ = chi.Walk(s.mux, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		out = append(out, method+" "+route)
		return nil
	})
	return out
}

package ingest

import (
	"errors"
	"net/http"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type deliveriesAnswer struct {
	Deliveries []goal.DeliveryView `json:"deliveries"`
}

// getDeliveries is GET /v1/tasks/{id}/deliveries.
func (s *Server) getDeliveries(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := s.deliveryTask(r, who)
	if err != nil {
		return err
	}
	list, err := s.cfg.Deliveries.List(r.Context(), who.Tenant, id)
	if err != nil && !errors.Is(err, goal.ErrNotFound) {
		return err
	}
	if list == nil {
		list = []goal.DeliveryView{} // no webhook, or not yet
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	s.respondJSON(w, r, http.StatusOK, deliveriesAnswer{list})
	return nil
}

// postDeliveries is POST /v1/tasks/{id}/deliveries: the webhook is sent again.
func (s *Server) postDeliveries(w http.ResponseWriter, r *http.Request, who Principal) error {
	id, err := s.deliveryTask(r, who)
	if err != nil {
		return err
	}
	d, err := s.cfg.Deliveries.Redeliver(r.Context(), who.Tenant, id)
	if err != nil {
		return err
	}
	w.Header().Set("Location", goal.LinksOf(id).Self+"/deliveries")
	s.respondJSON(w, r, http.StatusAccepted, d)
	return nil
}

// deliveryTask is the task in the path, which must be the caller's.
func (s *Server) deliveryTask(r *http.Request, who Principal) (string, error) {
	id, err := taskOf(r)
	if err != nil {
		return "", err
	}
	if s.cfg.Deliveries == nil {
		return "", goal.NewProblem(goal.NotFound, "This server delivers no webhooks.")
	}
	if _, err := s.load(r.Context(), who.Tenant, id); err != nil {
		return "", err
	}
	return id, nil
}

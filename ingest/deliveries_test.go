package ingest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type fakeDeliveries map[string]goal.DeliveryView // by task

func (f fakeDeliveries) List(_ context.Context, _, task string) ([]goal.DeliveryView, error) {
	if d, ok := f[task]; ok {
		return []goal.DeliveryView{d}, nil
	}
	return nil, goal.ErrNotFound
}

func (f fakeDeliveries) Redeliver(_ context.Context, _, task string) (goal.DeliveryView, error) {
	if d, ok := f[task]; ok {
		return d, nil
	}
	return goal.DeliveryView{}, goal.ErrNotFound
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	with, without := goal.TaskID("default", "with"), goal.TaskID("default", "without")
	w := newWorld(t, func(c *ingest.Config) {
		c.Deliveries = fakeDeliveries{with: {
			ID: goal.WebhookID("default", with), TaskID: with, URL: "https://example.com/h", State: goal.DeliveryExhausted,
			Attempts: []goal.Attempt{{N: 1, Trigger: goal.TriggerEvent, Status: 500}},
		}}
	})
	w.post("with", goodGoal)
	w.post("without", goodGoal)
	type body struct {
		Deliveries []goal.DeliveryView `json:"deliveries"`
	}
	for id, want := range map[string]int{with: 1, without: 0} {
		rec := w.call(http.MethodGet, "/v1/tasks/"+id+"/deliveries", "")
		wantStatus(t, rec, http.StatusOK)
		checkSchema(t, "Deliveries", rec.Body.Bytes())
		if got := decode[body](t, rec, "application/json"); len(got.Deliveries) != want {
			t.Errorf("%d deliveries, want %d", len(got.Deliveries), want)
		}
	}
	rec := w.call(http.MethodPost, "/v1/tasks/"+with+"/deliveries", "")
	wantStatus(t, rec, http.StatusAccepted)
	wantHeader(t, rec, "Location", "/v1/tasks/"+with+"/deliveries")
	checkSchema(t, "Delivery", rec.Body.Bytes())
	for _, id := range []string{without, goal.TaskID("default", "unknown"), "x"} {
		rec := w.call(http.MethodPost, "/v1/tasks/"+id+"/deliveries", "")
		wantStatus(t, rec, http.StatusNotFound)
		problemIn(t, rec)
	}
	none := newWorld(t)
	none.post("k", goodGoal)
	wantStatus(t, none.call(http.MethodGet, "/v1/tasks/"+goal.TaskID("default", "k")+"/deliveries", ""), http.StatusNotFound)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := ingest.Config{Store: newFakeStore(), Auth: ingest.Anonymous("default")}
	for _, row := range []struct {
		name, want string
		change     func(*ingest.Config)
	}{
		{"no store", "Store", func(c *ingest.Config) { c.Store = nil }},
		{"no auth", "Auth", func(c *ingest.Config) { c.Auth = nil }},
		{"tenant", "a.b", func(c *ingest.Config) { c.Tenants = []string{"a.b"} }},
		{"limit", `"a"`, func(c *ingest.Config) { c.Limits = map[string]ingest.Limit{"a": {PerSecond: -1}} }},
		{"origin", "CORS", func(c *ingest.Config) { c.CORSOrigins = []string{"app.example.com/x"} }},
	} {
		cfg := good
		row.change(&cfg)
		if _, err := ingest.New(cfg); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: New = %v, want %s named", row.name, err, row.want)
		}
	}
	if _, err := ingest.New(good); err != nil {
		t.Errorf("New = %v", err)
	}
}

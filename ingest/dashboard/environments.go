package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type environmentsView struct {
	Environments []environmentView
	Numbers      bool // this process calls tools and counts
}

// environmentView is a named world with its tools.
type environmentView struct {
	Name    string
	Tools   []toolView
	Servers []ServerHealth
}

// toolView is a tool and what is known of how it does.
type toolView struct {
	Name        string          `json:"name"`
	Environment string          `json:"environment"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Replay      goal.Replay     `json:"replay"`

	Calls, Failed uint64        `json:"-"`
	Mean          time.Duration `json:"-"`
}

// State is how the tool does, in a word.
func (t toolView) State() string {
	switch {
	case t.Calls == 0:
		return "unused"
	case t.Failed == t.Calls:
		return "failing"
	case t.Failed > 0:
		return "unsteady"
	default:
		return "healthy"
	}
}

// environmentsPage shows what the viewer may use, as the API lists it.
func (d *Dashboard) environmentsPage(w http.ResponseWriter, r *http.Request) {
	var envs struct {
		Environments []environmentView `json:"environments"`
	}
	var tools struct {
		Tools []toolView `json:"tools"`
	}
	if err := d.call(r, http.MethodGet, "/v1/environments", nil, nil, &envs); err != nil {
		d.fail(w, r, err)
		return
	}
	if err := d.call(r, http.MethodGet, "/v1/tools", nil, nil, &tools); err != nil {
		d.fail(w, r, err)
		return
	}
	d.addHealth(tools.Tools)
	servers := d.servers(r.Context())
	for i := range envs.Environments {
		e := &envs.Environments[i]
		for _, t := range tools.Tools {
			if t.Environment == e.Name {
				e.Tools = append(e.Tools, t)
			}
		}
		for _, s := range servers {
			if s.Environment == e.Name {
				e.Servers = append(e.Servers, s)
			}
		}
	}
	body := environmentsView{Environments: envs.Environments, Numbers: d.cfg.Health != nil}
	d.page(w, r, http.StatusOK, "environments", frame{Title: "Environments", Nav: "environments", Reload: 30, Body: body})
}

func (d *Dashboard) servers(ctx context.Context) []ServerHealth {
	if d.cfg.Servers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	return d.cfg.Servers(ctx)
}

func (d *Dashboard) addHealth(tools []toolView) {
	if d.cfg.Health == nil {
		return
	}
	seen := map[[2]string]ToolHealth{}
	for _, h := range d.cfg.Health() {
		seen[[2]string{h.Environment, h.Tool}] = h
	}
	for i := range tools {
		h := seen[[2]string{tools[i].Environment, tools[i].Name}]
		tools[i].Calls, tools[i].Failed, tools[i].Mean = h.Calls, h.Failed, h.Mean
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// realGoal is a line of the real-input data: a goal, the calls of an expert,
// and digests of the entities at the end.
type realGoal struct {
	ID         string          `json:"id"`
	Goal       json.RawMessage `json:"goal"`
	Guardrails json.RawMessage `json:"guardrails"`
	Script     []struct {
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
		Writes    bool            `json:"writes"`
		Error     bool            `json:"error"`
	} `json:"script"`
	EndState map[string]*string `json:"end_state"`
}

// realData is one domain of the real-input data.
type realData struct {
	db    map[string]map[string]any
	goals []realGoal
}

func loadReal(tb testing.TB, domain string) realData {
	tb.Helper()
	raw, err := os.ReadFile(kvtest.Shared(tb, "data/"+domain+"/db.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var d realData
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&d.db); err != nil {
		tb.Fatal(err)
	}
	f, err := os.Open(kvtest.Shared(tb, "data/"+domain+"/goals.jsonl"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var g realGoal
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			tb.Fatal(err)
		}
		d.goals = append(d.goals, g)
	}
	return d
}

// world is one goal's own copy of the database, in one environment.
type world struct {
	realGoal
	name string
}

// worlds makes one world a goal and round.
func (d realData) worlds(rounds int) []world {
	var out []world
	for r := range rounds {
		for _, g := range d.goals {
			out = append(out, world{realGoal: g, name: fmt.Sprintf("%s-r%d", g.ID, r)})
		}
	}
	return out
}

// environment is the world's environment with the airline's tools at the
// backend. The expert's script is the planner, or what the model at chat says.
func (w world) environment(backend, chat string) environmentConfig {
	e := environmentConfig{Name: w.name, Planner: plannerConfig{Type: "script"}, NoState: true}
	for name, writes := range airlineTools {
		t := toolConfig{Name: name, URL: backend + "/" + w.name + "/" + name, Replay: goal.ReplayRead}
		if writes {
			t.Replay = goal.ReplayKeyed
		}
		e.Tools = append(e.Tools, t)
	}
	if chat != "" {
		e.Planner = plannerConfig{Type: "openai", BaseURL: chat, Model: w.name}
		return e
	}
	for _, s := range w.Script {
		e.Planner.Script = append(e.Planner.Script, scriptAction{Tool: s.Tool, JSON: string(s.Arguments)})
	}
	return e
}

func (w world) submission(hook string) map[string]any {
	return map[string]any{"goal": w.Goal, "guardrails": w.Guardrails, "environment": w.name, "webhook_url": hook}
}

// touched lists the entities ("collection/id") that the world's script or end
// names, and the owners of reservations among them.
func (d realData) touched(w world) map[string]any {
	out := map[string]any{}
	for collection, entities := range d.db {
		for id, entity := range entities {
			name := collection + "/" + id
			if _, ends := w.EndState[name]; !ends && !w.names(id) {
				continue
			}
			out[name] = entity
			if owner, ok := entity.(map[string]any)["user_id"].(string); ok {
				out["users/"+owner] = d.db["users"][owner]
			}
		}
	}
	return out
}

func (w world) names(id string) bool {
	for _, s := range w.Script {
		if bytes.Contains(s.Arguments, []byte(`"`+id+`"`)) {
			return true
		}
	}
	return false
}

// load writes the worlds' copies of the database: what their goals can touch.
func (s *site) load(d realData, worlds []world) {
	s.t.Helper()
	docs := s.service.store.Documents()
	g, ctx := errgroup.WithContext(s.t.Context())
	g.SetLimit(64)
	for _, w := range worlds {
		for name, entity := range d.touched(w) {
			collection, id, _ := strings.Cut(name, "/")
			g.Go(func() error {
				raw, err := goal.Marshal(entity)
				if err != nil {
					return err
				}
				_, err = docs.Put(ctx, w.name, collection, id, raw, 0)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

// wrongEntities lists the entities of a world whose end is not the expert's.
func (s *site) wrongEntities(w world) []string {
	s.t.Helper()
	var wrong []string
	for name, want := range w.EndState {
		collection, id, _ := strings.Cut(name, "/")
		raw, _, err := s.service.store.Documents().Get(s.t.Context(), w.name, collection, id)
		if errors.Is(err, goal.ErrNotFound) {
			if want != nil {
				wrong = append(wrong, name+" is missing")
			}
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		v, err := goal.Decode(raw)
		if err != nil {
			s.t.Fatal(err)
		}
		canonical, err := goal.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		sum := sha256.Sum256(canonical)
		if want == nil || hex.EncodeToString(sum[:]) != *want {
			wrong = append(wrong, name)
		}
	}
	return wrong
}

// check reports every world that did not end as the expert's run did.
func (s *site) check(worlds []world, ids []string) []string {
	s.t.Helper()
	var bad []string
	for i, w := range worlds {
		task := s.task(ids[i])
		if task.Status != goal.Succeeded {
			bad = append(bad, fmt.Sprintf("%s: %s %s %s", w.name, task.Status, task.Reason, task.Detail))
		}
		if wrong := s.wrongEntities(w); len(wrong) > 0 {
			bad = append(bad, fmt.Sprintf("%s: wrong at the end: %v", w.name, wrong))
		}
	}
	return bad
}

// newAirline starts a site with the worlds' environments and the airline's
// backend. Of every two worlds with one goal the second one asks a model.
func newAirline(tb testing.TB, d realData, worlds []world, inProcess, dedupe bool, pause func()) (*site, *airline) {
	tb.Helper()
	backend := &airline{flights: d.db["flights"], dedupe: dedupe, pause: pause}
	srv := httptest.NewServer(backend)
	tb.Cleanup(srv.Close)
	chat := newChatModel(tb, worlds)
	s := newSite(tb, inProcess, func(c *config) {
		c.Worker.AckWait = duration(2 * time.Second)
		for i, w := range worlds {
			url := ""
			if i/len(d.goals)%2 == 1 {
				url = chat
			}
			c.Environments = append(c.Environments, w.environment(srv.URL, url))
		}
	})
	backend.docs = s.service.store.Documents()
	return s, backend
}

func (s *site) submitWorlds(worlds []world) []string {
	s.t.Helper()
	ids := make([]string, len(worlds))
	for i, w := range worlds {
		ids[i] = s.submit(w.name, w.submission(s.hooks.url))
	}
	return ids
}

// TestAirline runs the airline goals through the whole pipeline, once with the
// experts' scripts and once through the chat protocol.
func TestAirline(t *testing.T) {
	t.Parallel()
	d := loadReal(t, "airline")
	worlds := d.worlds(2)
	s, backend := newAirline(t, d, worlds, true, true, nil)
	s.load(d, worlds)
	ids := s.submitWorlds(worlds)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.hooks.await(ctx, ids...); err != nil {
		t.Fatal(err)
	}
	for _, bad := range s.check(worlds, ids) {
		t.Error(bad)
	}
	writes := 0
	for _, w := range worlds {
		for _, call := range w.Script {
			if call.Writes {
				writes++
			}
		}
	}
	if backend.effects != writes {
		t.Errorf("the backend did %d writes, want %d", backend.effects, writes)
	}
}

// TestAirlineKilled kills worker processes at random moments while they run
// the airline goals, again and again: the end is the same.
func TestAirlineKilled(t *testing.T) {
	t.Parallel()
	kvtest.Heavy(t)
	const kills, rounds = 30, 5
	d := loadReal(t, "airline")
	worlds := d.worlds(rounds)
	s, backend := newAirline(t, d, worlds, false, true, func() { time.Sleep(random(60 * time.Millisecond)) })
	s.load(d, worlds)
	var ids []string
	s.killWorkers(kills, func(killed int) {
		if killed%(kills/rounds) == 0 { // there is always something in flight
			ids = append(ids, s.submitWorlds(worlds[len(ids):len(ids)+len(d.goals)])...)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := s.hooks.await(ctx, ids...); err != nil {
		t.Error(err)
	}
	for _, bad := range s.check(worlds, ids) {
		t.Error(bad)
	}
	t.Logf("%d goals, %d kills, %d writes", len(worlds), kills, backend.effects)
}

// killWorkers runs two worker processes, kills one of them at a random moment
// and starts another, again and again. Before each kill it calls more. Two
// workers go on until the test ends.
func (s *site) killWorkers(kills int, more func(killed int)) {
	s.t.Helper()
	config := s.workerConfig()
	workers := []*child{s.startWorker(config, ""), s.startWorker(config, "")}
	s.t.Cleanup(func() {
		for _, w := range workers {
			w.kill()
		}
	})
	for killed := range kills {
		more(killed)
		time.Sleep(200*time.Millisecond + random(500*time.Millisecond)) // a random moment, not a wait
		i := random(len(workers))
		workers[i].kill()
		workers[i] = s.startWorker(config, "")
	}
}

// TestAirlineDuplicatesShow proves that the check can fail: the same crash
// between a call and its journaled outcome, once with a backend that honours
// the Idempotency-Key and once with one that does not.
func TestAirlineDuplicatesShow(t *testing.T) {
	t.Parallel()
	d := loadReal(t, "airline")
	for _, dedupe := range []bool{true, false} {
		t.Run(fmt.Sprintf("dedupe=%t", dedupe), func(t *testing.T) {
			t.Parallel()
			var worlds []world
			for _, w := range d.worlds(1) {
				// A cancellation that is repeated refunds twice.
				if w.Script[0].Tool == "cancel_reservation" {
					worlds = append(worlds, w)
				}
			}
			if len(worlds) == 0 {
				t.Fatal("no goal starts with a cancellation")
			}
			worlds = worlds[:1]
			s, backend := newAirline(t, d, worlds, false, dedupe, nil)
			s.load(d, worlds)
			config := s.workerConfig()
			ids := s.submitWorlds(worlds)
			<-s.startWorker(config, "after-call").done // kills itself there
			second := s.startWorker(config, "")
			defer second.kill()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := s.hooks.await(ctx, ids...); err != nil {
				second.kill()
				t.Fatalf("%v; the worker said:\n%s", err, second.err)
			}
			bad := s.check(worlds, ids)
			if dedupe && len(bad) > 0 {
				t.Errorf("with deduplication: %v", bad)
			}
			if !dedupe && len(bad) == 0 {
				t.Errorf("without deduplication a repeated call went unnoticed (%d writes)", backend.effects)
			}
		})
	}
}

// random is a number below n.
func random[T int | time.Duration](n T) T {
	return rand.N(n) //nolint:gosec // a kill needs no secret moment
}

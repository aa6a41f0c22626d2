package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// demoShop is the tool backend of the demo: a small shop whose refund is not
// idempotent by nature. It honours Idempotency-Key, and keeps its data in the
// project's own state store.
type demoShop struct {
	docs *kv.Documents

	mu    sync.Mutex
	calls int             // guarded by mu
	seen  map[string]bool // keys whose effect was done; guarded by mu
}

// load lays out the shop.
func (s *demoShop) load(ctx context.Context) error {
	for _, d := range []struct{ namespace, collection, id, value string }{
		{"default", "catalog", "mug-blue", `{"price": 19.9, "stock": 12}`},
		{"default", "profiles", "u7", `{"plan": "free", "seats": 1, "name": "Ines"}`},
		{"shop", "orders", "W1001", `{"status": "paid", "total": 80}`},
		{"shop", "orders", "W1002", `{"status": "paid", "total": 25}`},
		{"shop", "customers", "c42", `{"tier": "silver", "credit": 40}`},
	} {
		if _, err := s.docs.Put(ctx, d.namespace, d.collection, d.id, json.RawMessage(d.value), 0); err != nil {
			return fmt.Errorf("load the shop: %w", err)
		}
	}
	return nil
}

// count is the customer's credit and the number of calls that arrived.
func (s *demoShop) count(ctx context.Context) (credit string, calls int, err error) {
	c, _, err := s.get(ctx, "customers", "c42")
	if err != nil {
		return "", 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(c["credit"]), s.calls, nil
}

// ServeHTTP runs a tool call.
func (s *demoShop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock() // the whole call: effect and key are one
	defer s.mu.Unlock()
	s.calls++
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	key := r.Header.Get("Idempotency-Key")
	out, err := s.run(r, r.Method != http.MethodGet && s.seen[key])
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	s.seen[key] = true
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return // the caller has gone
	}
}

func (s *demoShop) run(r *http.Request, done bool) (map[string]any, error) {
	ctx, parts := context.WithoutCancel(r.Context()), strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var args map[string]any
	if r.Method != http.MethodGet {
		dec := json.NewDecoder(r.Body)
		dec.UseNumber()
		if err := dec.Decode(&args); err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
	}
	switch {
	case r.Method == http.MethodGet && len(parts) == 2:
		v, _, err := s.get(ctx, "orders", parts[1])
		return v, err
	case done:
		return map[string]any{"done": "already"}, nil
	case parts[0] == "refunds":
		return s.change(ctx, "customers", fmt.Sprint(args["customer"]), func(v map[string]any) error {
			had, err1 := v["credit"].(json.Number).Int64()
			amount, err2 := args["amount"].(json.Number).Int64()
			v["credit"] = had + amount
			return errors.Join(err1, err2)
		})
	case parts[0] == "orders":
		return s.change(ctx, "orders", parts[1], func(v map[string]any) error { v["status"] = args["status"]; return nil })
	case parts[0] == "mails":
		return s.change(ctx, "mails", fmt.Sprint(args["order"]), func(v map[string]any) error { v["sent"] = true; return nil })
	default:
		return nil, errors.New("no such tool")
	}
}

func (s *demoShop) get(ctx context.Context, collection, id string) (map[string]any, uint64, error) {
	raw, rev, err := s.docs.Get(ctx, "shop", collection, id)
	if err != nil {
		return nil, rev, err
	}
	v, err := goal.Decode(raw)
	if err != nil {
		return nil, rev, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, rev, errors.New("not an object")
	}
	return o, rev, nil
}

func (s *demoShop) change(ctx context.Context, collection, id string, f func(map[string]any) error) (map[string]any, error) {
	v, rev, err := s.get(ctx, collection, id)
	if errors.Is(err, goal.ErrNotFound) {
		v, err = map[string]any{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := f(v); err != nil {
		return nil, err
	}
	raw, err := goal.Marshal(v)
	if err != nil {
		return nil, err
	}
	_, err = s.docs.Put(ctx, "shop", collection, id, raw, rev)
	return v, err
}

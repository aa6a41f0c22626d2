package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Documents is the document store. Both methods may be called concurrently.
type Documents interface {
	// Get returns a document and its revision, or goal.ErrNotFound. An empty id
	// names the document that holds the whole root member.
	Get(ctx context.Context, namespace, collection, id string) (json.RawMessage, uint64, error)
	// Present reports whether a collection is there, whole or by its entities.
	Present(ctx context.Context, namespace, collection string) (bool, error)
}

// readTime bounds one observation: a store that works answers in milliseconds,
// and a client that submits a goal waits for it.
const readTime = 1500 * time.Millisecond

// parallelReads bounds the reads that one observation has in flight.
const parallelReads = 8

// KV is the state that lies in the document store. A member of the root is
// either one document of its own, or a collection of documents, one per
// entity; where both exist, the entity's own document wins over the member of
// the whole one. A collection of which no named entity exists is shown as an
// empty object: present, its other members not read.
type KV struct {
	Documents Documents
	Namespace string // keeps environments apart
}

// part is one entity as it was read. Around is what the collection of an
// absent entity is, where it is there.
type part struct {
	value   any
	around  any
	rev     uint64
	present bool
}

// Observe implements agent.State.
func (k KV) Observe(ctx context.Context, entities []agent.Entity) (agent.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	parts := make([]part, len(entities))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, e := range entities {
		g.Go(func() error {
			p, err := k.read(ctx, e)
			if err != nil {
				return fmt.Errorf("read %s: %w", e.Key(), err)
			}
			parts[i] = p
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return agent.Observation{}, err
	}
	obs := agent.Observation{State: map[string]any{}, Revisions: map[string]uint64{}}
	for i, e := range entities { // whole members first: entities are laid over them
		if e.ID == "" {
			obs.Revisions[e.Key()] = parts[i].rev
			if parts[i].present {
				obs.State[e.Collection] = parts[i].value
			}
		}
	}
	for i, e := range entities {
		if e.ID != "" {
			obs.Revisions[e.Key()] = parts[i].rev
			place(obs.State, e, parts[i])
		}
	}
	return obs, nil
}

// read reads one entity.
func (k KV) read(ctx context.Context, e agent.Entity) (part, error) {
	p, err := k.document(ctx, e.Collection, e.ID)
	if err != nil || p.present {
		return p, err
	}
	if e.ID == "" {
		p.present, err = k.Documents.Present(ctx, k.Namespace, e.Collection)
		p.value = map[string]any{}
		return p, err
	}
	whole, err := k.document(ctx, e.Collection, "")
	if err != nil {
		return part{}, err
	}
	if !whole.present {
		whole.value = map[string]any{}
		if whole.present, err = k.Documents.Present(ctx, k.Namespace, e.Collection); err != nil || !whole.present {
			return part{}, err
		}
	}
	members, ok := whole.value.(map[string]any)
	if !ok {
		return part{around: whole.value}, nil
	}
	if v, ok := members[e.ID]; ok {
		return part{value: v, rev: whole.rev, present: true}, nil
	}
	return part{around: map[string]any{}}, nil
}

// document reads one document; an absent one is no error.
func (k KV) document(ctx context.Context, collection, id string) (part, error) {
	raw, rev, err := k.Documents.Get(ctx, k.Namespace, collection, id)
	if errors.Is(err, goal.ErrNotFound) {
		return part{}, nil
	}
	if err != nil {
		return part{}, err
	}
	v, err := goal.Decode(raw)
	if err != nil {
		return part{}, fmt.Errorf("stored document: %w", err)
	}
	return part{value: v, rev: rev, present: true}, nil
}

// place lays an entity into the state below its collection.
func place(state map[string]any, e agent.Entity, p part) {
	if !p.present {
		if _, ok := state[e.Collection]; !ok && p.around != nil {
			state[e.Collection] = p.around
		}
		return
	}
	members, ok := state[e.Collection].(map[string]any)
	if !ok {
		members = map[string]any{}
		state[e.Collection] = members
	}
	members[e.ID] = p.value
}

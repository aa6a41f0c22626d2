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
	// Collection reports whether a collection is there: whole, then with its value
	// and revision, or by its entities.
	Collection(ctx context.Context, namespace, collection string) (whole json.RawMessage, rev uint64, present bool, err error)
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
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > readTime {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readTime)
		defer cancel()
	}
	parts, err := k.readAll(ctx, entities)
	if err != nil {
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

// readAll reads the entities, several at a time.
func (k KV) readAll(ctx context.Context, entities []agent.Entity) ([]part, error) {
	parts := make([]part, len(entities))
	if len(entities) == 1 { // as most goals have
		var err error
		parts[0], err = k.read(ctx, entities[0])
		return parts, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, e := range entities {
		g.Go(func() (err error) {
			parts[i], err = k.read(ctx, e)
			return err
		})
	}
	return parts, g.Wait()
}

// read reads one entity.
func (k KV) read(ctx context.Context, e agent.Entity) (part, error) {
	p, err := k.find(ctx, e)
	if err != nil {
		return part{}, fmt.Errorf("read %s: %w", e.Key(), err)
	}
	return p, nil
}

// find reads the entity's own document, or its member of the whole collection.
func (k KV) find(ctx context.Context, e agent.Entity) (part, error) {
	if e.ID == "" {
		return k.collection(ctx, e.Collection)
	}
	raw, rev, err := k.Documents.Get(ctx, k.Namespace, e.Collection, e.ID)
	switch {
	case err == nil:
		v, err := stored(raw)
		return part{value: v, rev: rev, present: true}, err
	case !errors.Is(err, goal.ErrNotFound):
		return part{}, err
	}
	whole, err := k.collection(ctx, e.Collection)
	if err != nil || !whole.present {
		return part{}, err
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

// collection reads a member of the root: empty where only its entities are
// there.
func (k KV) collection(ctx context.Context, name string) (part, error) {
	raw, rev, present, err := k.Documents.Collection(ctx, k.Namespace, name)
	switch {
	case err != nil:
		return part{}, err
	case raw == nil:
		return part{value: map[string]any{}, present: present}, nil
	}
	v, err := stored(raw)
	return part{value: v, rev: rev, present: true}, err
}

func stored(raw json.RawMessage) (any, error) {
	v, err := goal.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("stored document: %w", err)
	}
	return v, nil
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

package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Key is the entity as revisions name it: "collection/id", or the collection
// alone for a root member that is read whole.
func (e Entity) Key() string {
	if e.ID == "" {
		return e.Collection
	}
	return e.Collection + "/" + e.ID
}

// EntityOf is the entity that a key of revisions names. An id may hold slashes,
// a collection may not.
func EntityOf(key string) Entity {
	collection, id, _ := strings.Cut(key, "/")
	return Entity{Collection: collection, ID: id}
}

// Entities are what must be read to compare these targets with the state, once
// each and sorted: one entity for each member of a root member whose wanted
// value is an object with members, else the root member whole.
func Entities(targets ...map[string]any) []Entity {
	set := map[Entity]bool{}
	for _, target := range targets {
		for collection, want := range target {
			members, ok := want.(map[string]any)
			if !ok || len(members) == 0 {
				set[Entity{Collection: collection}] = true
				continue
			}
			for id := range members {
				set[Entity{Collection: collection, ID: id}] = true
			}
		}
	}
	return sorted(set)
}

// GuardedEntities are the entities that pre-conditions name; state_hash names
// those of the target and of match.
func GuardedEntities(target map[string]any, pre goal.PreConditions) []Entity {
	set := map[Entity]bool{}
	named := Entities(pre.Match, pre.Root)
	if pre.StateHash != "" {
		named = append(named, Entities(target, pre.Match)...)
	}
	for _, e := range named {
		set[e] = true
	}
	for key := range pre.Revisions {
		set[EntityOf(key)] = true
	}
	return sorted(set)
}

func sorted(set map[Entity]bool) []Entity {
	return slices.SortedFunc(maps.Keys(set), func(a, b Entity) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.ID, b.ID))
	})
}

// union is every entity of both lists, once and sorted.
func union(a, b []Entity) []Entity {
	set := make(map[Entity]bool, len(a)+len(b))
	for _, e := range a {
		set[e] = true
	}
	for _, e := range b {
		set[e] = true
	}
	return sorted(set)
}

// project is the part of the state that the entities, sorted, name. What is
// absent is left out, so that it does not matter how a source shows it. The
// projection shares values with the state: neither may be changed.
func project(state map[string]any, entities []Entity) map[string]any {
	out := map[string]any{}
	whole := map[string]bool{}
	for _, e := range entities {
		value, ok := state[e.Collection]
		if !ok || whole[e.Collection] {
			continue
		}
		members, isObject := value.(map[string]any)
		if e.ID == "" || !isObject {
			out[e.Collection], whole[e.Collection] = value, true
			continue
		}
		member, ok := members[e.ID]
		if !ok {
			continue
		}
		into, ok := out[e.Collection].(map[string]any)
		if !ok {
			into = map[string]any{}
			out[e.Collection] = into
		}
		into[e.ID] = member
	}
	return out
}

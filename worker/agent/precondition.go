package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Check compares the pre-conditions with one observation that covers
// Entities(target, pre.Match, pre.Root) and the entities of pre.Revisions. It
// lists every check that failed, in a fixed order; empty: all hold. Pointers
// of match and of root members start at the root of the state, those of
// etag, revisions and state_hash at the root of pre_conditions. What the source
// does not tell (a revision, an ETag) fails: unknown is never taken for equal.
func Check(target map[string]any, pre goal.PreConditions, obs Observation) []goal.Difference {
	out := []goal.Difference{}
	// RFC 9110 section 8.8.3.2: a weak tag never matches where strength is asked for.
	if pre.ETag != "" && (obs.ETag != pre.ETag || strings.HasPrefix(pre.ETag, "W/")) {
		out = append(out, difference("/etag", pre.ETag, optional(obs.ETag, obs.ETag != "")))
	}
	for _, key := range slices.Sorted(maps.Keys(pre.Revisions)) {
		have, known := obs.Revisions[key]
		if !known || have != pre.Revisions[key] {
			out = append(out, difference(pointer("revisions", key), number(pre.Revisions[key]), optional(number(have), known)))
		}
	}
	if pre.StateHash != "" {
		if have := stateHash(obs.State, Entities(target, pre.Match)); have != pre.StateHash {
			out = append(out, difference("/state_hash", pre.StateHash, have))
		}
	}
	out = append(out, Left(pre.Match, obs.State)...)
	return append(out, Left(pre.Root, obs.State)...)
}

// number keeps a revision exact.
func number(n uint64) json.Number { return json.Number(strconv.FormatUint(n, 10)) }

// optional is v, or nothing.
func optional(v any, present bool) any {
	if present {
		return v
	}
	return nil
}

// difference is one with these values; a have of nil is left out.
func difference(at string, want, have any) goal.Difference {
	d := goal.Difference{Pointer: at, Want: encode(want)}
	if have != nil {
		d.Have = encode(have)
	}
	return d
}

// stateHash is the hash of the named part of the state. A state with numbers
// that RFC 8785 cannot carry has no such hash; it gets one over its exact form,
// under a name of its own, so that a change is still seen.
func stateHash(state map[string]any, entities []Entity) string {
	part := project(state, entities)
	if hash, err := goal.StateHash(part); err == nil {
		return hash
	}
	return "exact-sha256:" + exactDigest(part)
}

// exactDigest is a digest in which numbers keep their exact value.
func exactDigest(tree any) string {
	raw := encode(tree)
	if exact, err := goal.Exact(raw); err == nil {
		raw = exact
	}
	return goal.Digest(string(raw))
}

// guard knows which entities are pre-conditioned. While a task runs, only its
// own confirmed calls may change them.
type guard struct {
	entities []Entity
	etag     bool // the goal named an ETag
}

func newGuard(target map[string]any, pre goal.PreConditions) guard {
	return guard{entities: GuardedEntities(target, pre), etag: pre.ETag != ""}
}

// armed reports whether there is anything to guard.
func (g guard) armed() bool { return len(g.entities) > 0 || g.etag }

// version is what tells a pre-conditioned entity's states apart.
type version struct {
	revisions map[string]uint64
	etag      string
	digests   map[string]string // of the entities that have no revision
}

// versionOf is the version of the guarded entities in an observation.
func (g guard) versionOf(obs Observation) version {
	v := version{revisions: map[string]uint64{}, digests: map[string]string{}}
	if g.etag {
		v.etag = obs.ETag
	}
	for _, e := range g.entities {
		before := len(v.revisions)
		for key, revision := range obs.Revisions {
			if g.covers(e, key) {
				v.revisions[key] = revision
			}
		}
		if len(v.revisions) == before {
			v.digests[e.Key()] = exactDigest(project(obs.State, []Entity{e}))
		}
	}
	return v
}

// covers reports whether the revision of that key belongs to the entity.
func (guard) covers(e Entity, key string) bool {
	return key == e.Key() || e.ID == "" && strings.HasPrefix(key, e.Collection+"/")
}

// journaled is the version that was journaled with an observation.
func journaled(o goal.Observed) version {
	return version{revisions: o.Revisions, etag: o.ETag, digests: o.Guarded}
}

// wrote advances the version over one of our own calls; after is what was
// observed after it. Where the call says what it wrote, only that advances, so
// that a foreign write is still seen. Where it does not, or where its effect is
// unknown, all is taken as it was found: a foreign write during the call itself
// is then not seen.
func (g guard) wrote(v version, out goal.Outcome, after version) version {
	if out.Kind == goal.CallToolError && !out.Repeated {
		return v
	}
	if !out.OK() || out.Revisions == nil {
		return after
	}
	next := version{revisions: map[string]uint64{}, etag: after.etag, digests: map[string]string{}}
	maps.Copy(next.revisions, v.revisions)
	maps.Copy(next.digests, v.digests)
	for key := range out.Revisions {
		advance(next.revisions, after.revisions, key)
		advance(next.digests, after.digests, key)
	}
	for key, revision := range out.Revisions {
		if _, guarded := after.revisions[key]; guarded {
			next.revisions[key] = revision
		}
	}
	return next
}

// advance takes over what a write of the entity with that key moves: itself,
// the root member that holds it and, for a root member, all that it holds.
func advance[V any](next, after map[string]V, written string) {
	e := EntityOf(written)
	for key, v := range after {
		if key == written || key == e.Collection || e.ID == "" && strings.HasPrefix(key, e.Collection+"/") {
			next[key] = v
		}
	}
}

// changes lists what is not as it should be.
func (v version) changes(now version) []goal.Difference {
	out := []goal.Difference{}
	for _, key := range keysOf(v.revisions, now.revisions) {
		want, expected := v.revisions[key]
		have, found := now.revisions[key]
		if want != have || expected != found {
			out = append(out, difference(pointer("revisions", key), optional(number(want), expected), optional(number(have), found)))
		}
	}
	if v.etag != now.etag {
		out = append(out, difference("/etag", v.etag, now.etag))
	}
	for _, key := range keysOf(v.digests, now.digests) {
		want, expected := v.digests[key]
		have, found := now.digests[key]
		if want != have {
			e := EntityOf(key)
			at := pointer(e.Collection, e.ID)
			if e.ID == "" {
				at = pointer(e.Collection)
			}
			out = append(out, difference(at, optional("digest:"+want, expected), optional("digest:"+have, found)))
		}
	}
	return out
}

// keysOf are the keys of both maps, once each and sorted.
func keysOf[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Defaults of sources that are not the document store.
const (
	DefaultTimeout  = 10 * time.Second // of one read
	DefaultMaxBytes = 4 << 20          // of one answer
)

// errWhole means that a source reads entities one by one and has no way to
// read a member of the root whole.
var errWhole = errors.New("this source cannot read a member of the root whole")

// scope is how much of the state one read brings.
type scope int

const (
	wholeState scope = iota
	wholeMember
	oneEntity
)

// answer is what one read brought.
type answer struct {
	value   any
	present bool
	etag    string
}

// readFunc reads the state, a member of its root, or an entity, as the entity
// says: empty parts are not chosen.
type readFunc func(ctx context.Context, e agent.Entity) (answer, error)

// observe reads what the entities need, each thing once, and lays it into one
// state.
func observe(ctx context.Context, entities []agent.Entity, s scope, read readFunc) (agent.Observation, error) {
	wanted := reads(entities, s)
	got := make([]answer, len(wanted))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, e := range wanted {
		g.Go(func() error {
			a, err := read(ctx, e)
			if err != nil {
				return fmt.Errorf("read state %s: %w", e.Key(), err)
			}
			got[i] = a
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return agent.Observation{}, err
	}
	obs := agent.Observation{State: map[string]any{}}
	for i, e := range wanted {
		if err := lay(obs.State, e, got[i]); err != nil {
			return agent.Observation{}, err
		}
	}
	if len(got) == 1 {
		obs.ETag = got[0].etag
	}
	return obs, nil
}

// reads lists what must be read, whole members before entities.
func reads(entities []agent.Entity, s scope) []agent.Entity {
	var members, single []agent.Entity
	seen := map[agent.Entity]bool{}
	for _, e := range entities {
		switch s {
		case wholeState:
			e = agent.Entity{}
		case wholeMember:
			e.ID = ""
		case oneEntity:
		}
		if seen[e] {
			continue
		}
		seen[e] = true
		if e.ID == "" {
			members = append(members, e)
		} else {
			single = append(single, e)
		}
	}
	return append(members, single...)
}

// lay puts what was read into its place.
func lay(state map[string]any, e agent.Entity, a answer) error {
	switch {
	case !a.present && e.ID != "":
		// A source of entities has the collection, also when it has not this one.
		place(state, e, part{around: map[string]any{}})
	case !a.present:
	case e == agent.Entity{}:
		members, ok := a.value.(map[string]any)
		if !ok {
			return errors.New("read state: the answer is not an object")
		}
		maps.Copy(state, members)
	case e.ID == "":
		state[e.Collection] = a.value
	default:
		place(state, e, part{value: a.value, present: true})
	}
	return nil
}

// decode reads an answer's JSON, and what an RFC 6901 pointer names in it. A
// place that is not there is absent.
func decode(raw []byte, pointer string) (answer, error) {
	v, err := goal.Decode(raw)
	if err != nil {
		return answer{}, err
	}
	if pointer == "" {
		return answer{value: v, present: true}, nil
	}
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		members, ok := v.(map[string]any)
		if !ok {
			return answer{}, nil
		}
		if v, ok = members[unescape.Replace(token)]; !ok {
			return answer{}, nil
		}
	}
	return answer{value: v, present: true}, nil
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// checkPointer refuses what is not a pointer to a member.
func checkPointer(pointer string) error {
	if pointer != "" && !strings.HasPrefix(pointer, "/") {
		return fmt.Errorf("pointer %q does not start with a slash", pointer)
	}
	return nil
}

package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// The tools that Builtin plans with.
const (
	stateSet    = "state.set"
	stateMerge  = "state.merge"
	stateDelete = "state.delete"
)

// Builtin is a planner without a model: it writes what is left of the target
// through the state.* tools, one call per entity, all in one answer. The same
// situation always gives the same answer.
type Builtin struct{}

// Decide implements agent.Planner.
func (Builtin) Decide(_ context.Context, s agent.Situation) (agent.Answer, error) {
	actions, err := Plan(s.Left, s.State)
	if err != nil {
		return agent.Answer{}, &agent.PlannerError{Kind: agent.PlannerBadAnswer, Err: err}
	}
	why := fmt.Sprintf("write the %d values that are left", len(s.Left))
	return agent.Answer{Actions: actions, Why: why}, nil
}

// change is what one entity needs.
type change struct {
	collection, id string
	value          any // RFC 7386 merge patch where deep, else the wanted value
	deep           bool
}

// Plan computes the calls that reach a target, given what is left of it: a
// merge where an entity has wanted members, else set or delete. Order follows
// left.
func Plan(left []goal.Difference, state map[string]any) ([]goal.Action, error) {
	var changes []*change
	byName := map[string]*change{}
	add := func(collection, id string, path []string, want any) {
		key := escape(collection) + "/" + escape(id)
		c := byName[key]
		if c == nil {
			c = &change{collection: collection, id: id}
			byName[key] = c
			changes = append(changes, c)
		}
		c.want(path, want)
	}
	for _, d := range left {
		path, err := split(d.Pointer)
		if err != nil {
			return nil, err
		}
		want, err := goal.Decode(d.Want)
		if err != nil {
			return nil, fmt.Errorf("want of %s: %w", d.Pointer, err)
		}
		members, isObject := want.(map[string]any)
		switch {
		case len(path) > 1 && path[1] != "":
			add(path[0], path[1], path[2:], want)
		case len(path) > 1: // no entity has an empty id: a member of the root member
			add(path[0], "", path[1:], want)
		case isObject && len(withoutNulls(members).(map[string]any)) > 0:
			for _, id := range sortedKeys(members) {
				switch {
				case members[id] == nil: // nothing is there
				case id == "":
					add(path[0], "", []string{""}, members[id])
				default:
					add(path[0], id, nil, members[id])
				}
			}
		default: // an object of nulls too: what is missing is the object
			add(path[0], "", nil, want)
		}
	}
	actions := make([]goal.Action, 0, len(changes))
	for _, c := range changes {
		a, err := c.action(state)
		if err != nil {
			return nil, err
		}
		actions = append(actions, a)
	}
	return actions, nil
}

// want notes a wanted value at a path below the entity. An object is wanted
// member by member.
func (c *change) want(path []string, value any) {
	if members, ok := value.(map[string]any); ok || len(path) > 0 {
		c.deep = true
		if len(path) == 0 {
			c.value = overlay(c.value, members)
			return
		}
	}
	for _, name := range slices.Backward(path) {
		value = map[string]any{name: value}
	}
	if c.deep {
		value = overlay(c.value, value.(map[string]any))
	}
	c.value = value
}

// overlay joins two merge patches for different places of one entity.
func overlay(base any, more map[string]any) any {
	out, ok := base.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for k, v := range more {
		if sub, ok := v.(map[string]any); ok {
			if _, both := out[k].(map[string]any); both {
				out[k] = overlay(out[k], sub)
				continue
			}
		}
		out[k] = v
	}
	return out
}

// action is the call that makes the change.
func (c *change) action(state map[string]any) (goal.Action, error) {
	args := map[string]any{"collection": c.collection}
	if c.id != "" {
		args["id"] = c.id
	}
	tool := stateSet
	switch {
	case c.value == nil:
		tool = stateDelete
	case c.deep && isObject(c.current(state)):
		tool, args["patch"] = stateMerge, c.value
	default:
		args["value"] = withoutNulls(c.value)
	}
	raw, err := goal.Marshal(args)
	if err != nil {
		return goal.Action{}, err
	}
	return goal.Action{Tool: tool, Arguments: raw}, nil
}

// current is the entity as it was observed.
func (c *change) current(state map[string]any) any {
	v := state[c.collection]
	if c.id == "" {
		return v
	}
	members, _ := v.(map[string]any)
	return members[c.id]
}

func isObject(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

// withoutNulls drops the members that are wanted absent; null in an array is a
// value.
func withoutNulls(v any) any {
	members, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := make(map[string]any, len(members))
	for k, m := range members {
		if m != nil {
			out[k] = withoutNulls(m)
		}
	}
	return out
}

var errPointer = errors.New("not a JSON pointer to a member")

// split reads an RFC 6901 pointer to a member of an object.
func split(pointer string) ([]string, error) {
	rest, ok := strings.CutPrefix(pointer, "/")
	if !ok {
		return nil, fmt.Errorf("%w: %q", errPointer, pointer)
	}
	path := strings.Split(rest, "/")
	for i, p := range path {
		path[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return path, nil
}

// escape writes a name as a pointer's part.
func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

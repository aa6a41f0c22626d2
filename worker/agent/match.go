package agent

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Left is what is left: every place where state is not what target wants, in
// the order of the sorted pointers' members. It is empty exactly when the
// target is reached. The rules are those of the public contract, section 1.1:
//
//  1. Every named member must have that value; others are ignored.
//  2. Objects are compared member by member, as deep as the target goes.
//  3. Arrays must be equal: whole, in order, each element exact.
//  4. null means absent or null. In an object that is absent or null, every
//     member is absent.
//  5. Numbers compare by value, everything else exactly.
//
// Both trees are as goal.Decode makes them. There are never more differences
// than Leaves(target). Left changes nothing and may be called concurrently.
func Left(target, state map[string]any) []goal.Difference {
	m := matcher{out: []goal.Difference{}}
	m.object(target, state)
	return m.out
}

// Leaves counts the leaves of a target: every named value that is not an
// object with members.
func Leaves(target map[string]any) int {
	n := 0
	for _, want := range target {
		if object, ok := want.(map[string]any); ok && len(object) > 0 {
			n += Leaves(object)
			continue
		}
		n++
	}
	return n
}

// matcher walks target and state side by side; path is the pointer of the
// place it has come to, cut back to its length before each member.
type matcher struct {
	path []byte
	out  []goal.Difference
}

func (m *matcher) object(target, state map[string]any) {
	depth := len(m.path)
	names := make([]string, 0, len(target))
	for name := range target {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m.path = appendToken(m.path[:depth], name)
		have, present := state[name]
		m.member(target[name], have, present)
	}
	m.path = m.path[:depth]
}

func (m *matcher) member(want, have any, present bool) {
	object, wantsObject := want.(map[string]any)
	if !wantsObject {
		if want == nil && have == nil {
			return
		}
		if !present || !goal.Equal(want, have) {
			m.differ(want, have, present)
		}
		return
	}
	if found, ok := have.(map[string]any); ok && found != nil {
		m.object(object, found)
		return
	}
	// There is no object where one is wanted: everything in it is missing.
	before := len(m.out)
	m.object(object, nil)
	if len(m.out) > before {
		return
	}
	// Nothing in it must be present. That holds where there is nothing at all,
	// so that the last member of a collection can be wanted away, but not for
	// an object without members, nor where something else stands.
	if have != nil || len(object) == 0 {
		m.differ(want, have, present)
	}
}

func (m *matcher) differ(want, have any, present bool) {
	d := goal.Difference{Pointer: string(m.path), Want: encode(want)}
	if present {
		d.Have = encode(have)
	}
	m.out = append(m.out, d)
}

// encode is the JSON of a tree. A tree that goal.Decode made always encodes;
// anything else is shown as null.
func encode(v any) json.RawMessage {
	raw, err := goal.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return raw
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// appendToken appends one reference token of an RFC 6901 pointer.
func appendToken(path []byte, token string) []byte {
	path = append(path, '/')
	if !strings.ContainsAny(token, "~/") {
		return append(path, token...)
	}
	return append(path, pointerEscapes.Replace(token)...)
}

// pointer is the RFC 6901 pointer of these tokens.
func pointer(tokens ...string) string {
	var path []byte
	for _, t := range tokens {
		path = appendToken(path, t)
	}
	return string(path)
}

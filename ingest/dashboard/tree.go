package dashboard

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const maxBranches = 300 // lines of a tree that a page shows

// branch is one line of the target, drawn as a tree.
type branch struct {
	Name    string // of the member
	Pointer string
	Depth   int
	Leaf    bool
	Mark    mark
	Done    int // of Of leaves below, for a branch that is no leaf
	Of      int
	Want    string // leaf: JSON
	Have    string // leaf that does not match: JSON, or empty for absent
}

// mark says whether a leaf has its wanted value.
type mark string

const (
	markDone    mark = "done"
	markLeft    mark = "left"
	markUnknown mark = "unknown" // nothing was observed, or more is left than is listed
)

// tree is the target against the state.
type tree struct {
	Branches []branch
	Done, Of int
	Known    bool // a state was observed
	Cut      int  // branches that are not shown
}

// newTree draws a target. left is what does not match; known says that a state
// was observed, whole that left is all of it.
func newTree(target json.RawMessage, left []goal.Difference, known, whole bool) tree {
	value, err := goal.Decode(target)
	members, ok := value.(map[string]any)
	if err != nil || !ok {
		return tree{}
	}
	g := grower{left: map[string]goal.Difference{}, known: known, whole: whole}
	for _, d := range left {
		g.left[d.Pointer] = d
	}
	t := tree{Known: known}
	t.Done, t.Of = g.grow(members, "", 0)
	t.Branches = g.out
	if len(t.Branches) > maxBranches {
		t.Cut = len(t.Branches) - maxBranches
		t.Branches = t.Branches[:maxBranches]
	}
	return t
}

type grower struct {
	left  map[string]goal.Difference
	known bool
	whole bool
	out   []branch
}

// grow adds the members below a pointer and counts their leaves.
func (g *grower) grow(members map[string]any, at string, depth int) (done, of int) {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		pointer := at + "/" + escapePointer.Replace(name)
		value := members[name]
		i := len(g.out)
		g.out = append(g.out, branch{Name: name, Pointer: pointer, Depth: depth})
		if below, ok := value.(map[string]any); ok && len(below) > 0 {
			d, o := g.grow(below, pointer, depth+1)
			g.out[i].Done, g.out[i].Of, g.out[i].Mark = d, o, g.branchMark(d, o)
			done, of = done+d, of+o
			continue
		}
		g.leaf(&g.out[i], value)
		of++
		if g.out[i].Mark == markDone {
			done++
		}
	}
	return done, of
}

func (g *grower) branchMark(done, of int) mark {
	switch {
	case !g.known:
		return markUnknown
	case done == of:
		return markDone
	default:
		return markLeft
	}
}

func (g *grower) leaf(b *branch, want any) {
	b.Leaf = true
	if text, err := goal.Marshal(want); err == nil {
		b.Want = string(text)
	}
	d, differs := g.left[b.Pointer]
	switch {
	case differs:
		b.Mark, b.Have = markLeft, string(d.Have)
	case g.known && g.whole:
		b.Mark = markDone
	default:
		b.Mark = markUnknown
	}
}

// escapePointer writes a member's name as a JSON Pointer token (RFC 6901).
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

package tool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Source is a group of tools whose names it alone knows. All methods may be
// called concurrently.
type Source interface {
	// Has reports whether a name belongs to this source, without asking anybody.
	Has(name string) bool
	agent.Toolbox
}

// Box is the toolbox of an environment: several sources as one.
type Box struct{ sources []Source }

// NewBox combines sources. No two of them may claim the same name.
func NewBox(sources ...Source) (*Box, error) {
	for i, s := range sources {
		for _, name := range claims(s) {
			for j, other := range sources {
				if i != j && other.Has(name) {
					return nil, fmt.Errorf("tool %q is defined twice", name)
				}
			}
		}
	}
	return &Box{sources: sources}, nil
}

// claims are the names that a source has for certain. What an MCP server
// offers is not known yet, but all of it begins with the server's name.
func claims(s Source) []string {
	switch s := s.(type) {
	case *Documents:
		return s.Names()
	case *HTTP:
		return s.Names()
	case *MCP:
		return []string{s.Name() + ".any"}
	default:
		return nil
	}
}

// List implements agent.Toolbox.
func (b *Box) List(ctx context.Context) ([]agent.ToolSpec, error) {
	if len(b.sources) == 1 {
		return b.sources[0].List(ctx) // sorted, as all are
	}
	var out []agent.ToolSpec
	for _, s := range b.sources {
		specs, err := s.List(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, specs...)
	}
	sortSpecs(out)
	return out, nil
}

// Call implements agent.Toolbox.
func (b *Box) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	for _, s := range b.sources {
		if s.Has(c.Tool) {
			return s.Call(ctx, c)
		}
	}
	return goal.Outcome{}, fmt.Errorf("%w %q", agent.ErrUnknownTool, c.Tool)
}

func sortSpecs(specs []agent.ToolSpec) {
	slices.SortFunc(specs, func(a, b agent.ToolSpec) int { return strings.Compare(a.Name, b.Name) })
}

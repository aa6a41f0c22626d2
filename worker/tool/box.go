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

// NewBox combines sources. The first one that has a name gets its calls; names
// that can be known now must be unique.
func NewBox(sources ...Source) (*Box, error) {
	seen := map[string]bool{}
	for _, s := range sources {
		named, ok := s.(interface{ Names() []string })
		if !ok {
			continue
		}
		for _, n := range named.Names() {
			if seen[n] {
				return nil, fmt.Errorf("tool %q is defined twice", n)
			}
			seen[n] = true
		}
	}
	return &Box{sources: sources}, nil
}

// List implements agent.Toolbox.
func (b *Box) List(ctx context.Context) ([]agent.ToolSpec, error) {
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

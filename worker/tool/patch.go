package tool

import (
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// MergePatch applies a JSON Merge Patch (RFC 7386) to a document; nil stands
// for one that is absent. Numbers keep their exact value and spelling.
func MergePatch(document, patch json.RawMessage) (json.RawMessage, error) {
	var doc any
	if document != nil {
		var err error
		if doc, err = goal.Decode(document); err != nil {
			return nil, fmt.Errorf("stored document: %w", err)
		}
	}
	p, err := goal.Decode(patch)
	if err != nil {
		return nil, refuse("patch: %v", err)
	}
	return goal.Marshal(merge(doc, p))
}

// merge is the algorithm of RFC 7386 section 2.
func merge(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out, ok := target.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for name, v := range members {
		if v == nil {
			delete(out, name)
			continue
		}
		out[name] = merge(out[name], v)
	}
	return out
}

// applyPatch applies a JSON Patch (RFC 6902), all of it or nothing. Both sides
// are brought into one exact number form first, because RFC 6902 section 4.6
// compares numbers by value and the library compares their bytes.
func applyPatch(document, patch json.RawMessage) (json.RawMessage, error) {
	doc, err := goal.Exact(document)
	if err != nil {
		return nil, fmt.Errorf("stored document: %w", err)
	}
	exact, err := goal.Exact(patch)
	if err != nil {
		return nil, refuse("patch: %v", err)
	}
	ops, err := jsonpatch.DecodePatch(exact)
	if err != nil {
		return nil, refuse("patch: %v", err)
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false // not in RFC 6902
	options.AccumulatedCopySizeLimit = 1 << 20
	options.EscapeHTML = false
	out, err := ops.ApplyWithOptions(doc, options)
	if err != nil {
		return nil, refuse("patch: %v", err)
	}
	return out, nil
}

package goal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// PreConditions is what must hold before the first step (public contract
// section 1.2). The zero value demands nothing.
type PreConditions struct {
	StateHash string            // "sha256:<hex>", see [StateHash]; empty for none
	ETag      string            // empty for none
	Revisions map[string]uint64 // entity "collection/id" to its revision; 0: must not exist
	Match     map[string]any    // tree as Decode makes it; target rules
	Root      map[string]any    // every other member: target rules, at the root of the state
}

// Empty reports whether nothing is demanded.
func (p PreConditions) Empty() bool {
	return p.StateHash == "" && p.ETag == "" && len(p.Revisions) == 0 && len(p.Match) == 0 && len(p.Root) == 0
}

// ParsePreConditions reads the pre_conditions member of a goal; nothing and
// null demand nothing. The error is a [*SyntaxError] or a [*FieldError]; both
// name the pointer within raw.
func ParsePreConditions(raw json.RawMessage) (PreConditions, error) {
	if len(raw) == 0 {
		return PreConditions{}, nil
	}
	tree, err := Decode(raw)
	if err != nil || tree == nil {
		return PreConditions{}, err
	}
	members, ok := tree.(map[string]any)
	if !ok {
		return PreConditions{}, &FieldError{Detail: "must be an object"}
	}
	p, wrong := preConditionsOf(members)
	if len(wrong) > 0 {
		sortFaults(wrong)
		return PreConditions{}, &wrong[0]
	}
	return p, nil
}

func preConditionsOf(members map[string]any) (PreConditions, []FieldError) {
	p := PreConditions{Root: map[string]any{}}
	var wrong []FieldError
	demand := func(ok bool, pointer, detail string) {
		if !ok {
			wrong = append(wrong, FieldError{pointer, detail})
		}
	}
	for name, v := range members {
		switch name {
		case "state_hash":
			p.StateHash, _ = v.(string)
			demand(isStateHash(p.StateHash), "/state_hash", "must be sha256: and 64 lower-case hex digits")
		case "etag":
			p.ETag, _ = v.(string)
			demand(p.ETag != "", "/etag", "must be a string that is not empty")
		case "revisions":
			entities, ok := v.(map[string]any)
			demand(ok, "/revisions", "must be an object")
			p.Revisions = make(map[string]uint64, len(entities))
			for entity, revision := range entities {
				at := pointerOf([]string{"revisions", entity})
				p.Revisions[entity], ok = natural(revision)
				demand(ok, at, "must be a revision number")
				demand(validEntity(entity), at, notAnEntity)
			}
		case "match":
			var ok bool
			p.Match, ok = v.(map[string]any)
			demand(ok, "/match", "must be an object")
			wrong = reservedNames(wrong, []string{"match"}, v)
		default:
			p.Root[name] = v
		}
	}
	return p, reservedNames(wrong, nil, p.Root)
}

func isStateHash(s string) bool {
	digits, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(digits) == 64 && strings.Trim(digits, "0123456789abcdef") == ""
}

// natural is the value of a number that is a whole number within uint64.
func natural(v any) (uint64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	digits, ok := wholeNumber(string(n))
	if !ok {
		return 0, false
	}
	value, err := strconv.ParseUint(digits, 10, 64)
	return value, err == nil
}

const notAnEntity = "is not the name of an entity: collection/id"

// validEntity reports whether name is "collection/id": both not empty, the
// collection without a slash.
func validEntity(name string) bool {
	collection, id, ok := strings.Cut(name, "/")
	return ok && collection != "" && id != ""
}

// StateHash is "sha256:" and the lower-case hex SHA-256 of the RFC 8785 form
// of a tree as [Decode] makes it.
func StateHash(v any) (string, error) {
	form, err := appendTree(nil, v, appendECMANumber)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(form)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

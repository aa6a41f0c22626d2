package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// DocumentStore is the document store that the state.* tools write. All
// methods may be called concurrently.
type DocumentStore interface {
	// Get returns a document and its revision, or goal.ErrNotFound.
	Get(ctx context.Context, namespace, collection, id string) (json.RawMessage, uint64, error)
	// Edit changes one document at once and remembers the key with it. Edit
	// hands over what is there (nil and 0: absent) and gets what shall be there
	// (nil: nothing); it may be called again when another writer was faster.
	// When the key was seen, nothing is changed: replayed is true and rev is
	// the revision that the first call wrote. Rev is 0 after a removal.
	Edit(ctx context.Context, namespace, collection, id, key string,
		edit func(current json.RawMessage, rev uint64) (json.RawMessage, error)) (rev uint64, replayed bool, err error)
	// List returns the ids of at most limit entities of a collection.
	List(ctx context.Context, namespace, collection string, limit int) ([]string, error)
}

// storeAttempts is how often a call asks a store that does not answer; the key
// makes the repeat safe.
const storeAttempts = 3

// The built-in tools.
const (
	StateGet    = "state.get"
	StateSet    = "state.set"
	StateMerge  = "state.merge"
	StatePatch  = "state.patch"
	StateDelete = "state.delete"
)

// Documents is the built-in tools on the document store: get, set, merge (RFC
// 7386), patch (RFC 6902) and delete of one entity, or of one member of the
// root when no id is given. All but get are keyed: the key of a call is stored
// in the same write as its effect.
type Documents struct {
	store     DocumentStore
	namespace string
	roles     []string
	schemas   map[string]schema
	specs     []agent.ToolSpec
}

// NewDocuments offers the state.* tools on one namespace. Empty roles mean
// everybody.
func NewDocuments(store DocumentStore, namespace string, roles ...string) (*Documents, error) {
	d := &Documents{store: store, namespace: namespace, roles: roles, schemas: map[string]schema{}}
	for name, t := range documentTools {
		s, err := compile(json.RawMessage(t.schema))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		d.schemas[name] = s
	}
	for _, name := range d.Names() {
		t := documentTools[name]
		d.specs = append(d.specs, agent.ToolSpec{
			Name: name, Description: t.description, InputSchema: json.RawMessage(t.schema), Replay: t.replay, Roles: d.roles,
		})
	}
	return d, nil
}

type documentTool struct {
	description, schema string
	replay              goal.Replay
}

const (
	entitySchema = `"collection":{"type":"string","description":"member of the state's root"},` +
		`"id":{"type":"string","minLength":1,"description":"entity in the collection; left out: the root member itself"}`
	revisionSchema = `"if_revision":{"type":"integer","minimum":0,"description":"write only if the entity has this revision; 0: only if it is absent"}`
	patchSchema    = `{"type":"object","required":["op","path"],"properties":{"op":{"enum":["add","remove","replace","move","copy","test"]},` +
		`"path":{"type":"string"},"from":{"type":"string"},"value":{}}}`
)

var documentTools = map[string]documentTool{
	StateGet: {
		"Read one entity.",
		`{"type":"object","additionalProperties":false,"required":["collection"],"properties":{` + entitySchema + `}}`, goal.ReplayRead,
	},
	StateSet: {
		"Replace one entity, or create it.",
		`{"type":"object","additionalProperties":false,"required":["collection","value"],"properties":{` + entitySchema + `,"value":{},` + revisionSchema + `}}`,
		goal.ReplayKeyed,
	},
	StateMerge: {
		"Change members of one entity by a JSON Merge Patch (RFC 7386): null removes a member, arrays are replaced whole.",
		`{"type":"object","additionalProperties":false,"required":["collection","patch"],"properties":{` + entitySchema + `,"patch":{"type":"object"},` + revisionSchema + `}}`,
		goal.ReplayKeyed,
	},
	StatePatch: {
		"Change one entity by a JSON Patch (RFC 6902).",
		`{"type":"object","additionalProperties":false,"required":["collection","patch"],"properties":{` + entitySchema +
			`,"patch":{"type":"array","maxItems":1000,"items":` + patchSchema + `},` + revisionSchema + `}}`,
		goal.ReplayKeyed,
	},
	StateDelete: {
		"Remove one entity; one that is not there is fine.",
		`{"type":"object","additionalProperties":false,"required":["collection"],"properties":{` + entitySchema + `,` + revisionSchema + `}}`,
		goal.ReplayKeyed,
	},
}

// Names lists the tools.
func (d *Documents) Names() []string {
	return []string{StateDelete, StateGet, StateMerge, StatePatch, StateSet}
}

// Has implements Source.
func (d *Documents) Has(name string) bool { return slices.Contains(d.Names(), name) }

// List implements agent.Toolbox.
func (d *Documents) List(context.Context) ([]agent.ToolSpec, error) { return d.specs, nil }

// edit is the arguments of every state.* tool.
type edit struct {
	Collection string          `json:"collection"`
	ID         string          `json:"id"`
	Value      json.RawMessage `json:"value"`
	Patch      json.RawMessage `json:"patch"`
	IfRevision *json.Number    `json:"if_revision"`
}

func (e edit) name() string {
	if e.ID == "" {
		return e.Collection
	}
	return e.Collection + "/" + e.ID
}

// refused is an edit that the document as it is does not permit; it is the
// tool's own answer, not a failure of the store.
type refused struct {
	kind    goal.OutcomeKind
	message string
}

func (e *refused) Error() string { return e.message }

func refuse(format string, args ...any) error {
	return &refused{kind: goal.CallToolError, message: fmt.Sprintf(format, args...)}
}

// Call implements agent.Toolbox.
func (d *Documents) Call(ctx context.Context, c agent.Call) (goal.Outcome, error) {
	s, ok := d.schemas[c.Tool]
	if !ok {
		return goal.Outcome{}, fmt.Errorf("%w %q", agent.ErrUnknownTool, c.Tool)
	}
	if _, err := s.check(c.Arguments); err != nil {
		return goal.Outcome{}, err
	}
	var e edit
	if err := json.Unmarshal(c.Arguments, &e); err != nil {
		return goal.Outcome{}, &agent.ArgumentsError{Detail: err.Error()}
	}
	started := time.Now()
	out := d.run(ctx, c, e)
	out.Repeated, out.Took = c.Repeated, goal.Millis(time.Since(started))
	return out, nil
}

// run does one call and turns what happened into an outcome.
func (d *Documents) run(ctx context.Context, c agent.Call, e edit) goal.Outcome {
	var (
		out goal.Outcome
		err error
	)
	for attempt := 1; ; attempt++ {
		if c.Tool == StateGet {
			out, err = d.get(ctx, e)
		} else {
			out, err = d.change(ctx, c, e)
		}
		out.Attempts = attempt
		if attempt == storeAttempts || !errors.Is(err, goal.ErrUnavailable) || pause(ctx, attempt, 0) != nil {
			break
		}
	}
	var no *refused
	switch {
	case err == nil:
		return out
	case errors.As(err, &no):
		out.Kind, out.Message = no.kind, no.message
	case errors.Is(err, goal.ErrTooLarge):
		out.Kind, out.Message = goal.CallToolError, err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		out.Kind, out.Message = goal.CallTimeout, "the store did not answer in time"
	default:
		out.Kind, out.Message = goal.CallUnavailable, "the store did not answer: "+err.Error()
	}
	return out
}

// answer is what every state.* tool answers. It depends on the arguments and
// the revision alone, so that a replay answers the same.
type answer struct {
	Collection string          `json:"collection"`
	ID         string          `json:"id,omitempty"`
	Revision   uint64          `json:"revision"`
	Value      json.RawMessage `json:"value,omitempty"`
	Deleted    bool            `json:"deleted,omitempty"`
}

func (d *Documents) get(ctx context.Context, e edit) (goal.Outcome, error) {
	raw, rev, err := d.store.Get(ctx, d.namespace, e.Collection, e.ID)
	if errors.Is(err, goal.ErrNotFound) && e.ID != "" {
		raw, rev, err = d.member(ctx, e)
	}
	if errors.Is(err, goal.ErrNotFound) {
		return goal.Outcome{}, refuse("there is no %s", e.name())
	}
	if err != nil {
		return goal.Outcome{}, err
	}
	result, err := goal.Marshal(answer{Collection: e.Collection, ID: e.ID, Revision: rev, Value: raw})
	if err != nil {
		return goal.Outcome{}, err
	}
	if len(result) > goal.MaxInline {
		return goal.Outcome{}, refuse("%s is larger than %d bytes", e.name(), goal.MaxInline)
	}
	return goal.Outcome{Kind: goal.CallOK, Result: result}, nil
}

// change does a keyed call.
func (d *Documents) change(ctx context.Context, c agent.Call, e edit) (goal.Outcome, error) {
	revisions := map[string]uint64{}
	if c.Tool == StateDelete && e.ID != "" {
		whole, err := d.removeMember(ctx, c, e)
		if err != nil {
			return goal.Outcome{}, err
		}
		if whole > 0 {
			e.IfRevision, revisions[e.Collection] = nil, whole
		}
	}
	rev, replayed, err := d.store.Edit(ctx, d.namespace, e.Collection, e.ID, c.Key,
		func(current json.RawMessage, rev uint64) (json.RawMessage, error) {
			if current == nil && e.ID != "" {
				// A member of a document that holds the whole collection.
				var err error
				if current, rev, err = d.member(ctx, e); err != nil && !errors.Is(err, goal.ErrNotFound) {
					return nil, err
				}
			}
			if err := e.permitted(rev); err != nil {
				return nil, err
			}
			if c.Tool == StateDelete && e.ID == "" {
				// One call removes one entity: a left-out id must not empty a collection.
				ids, err := d.store.List(ctx, d.namespace, e.Collection, 1)
				if err != nil {
					return nil, err
				}
				if len(ids) > 0 {
					return nil, refuse("%s has entities: remove them one by one", e.Collection)
				}
			}
			return e.apply(c.Tool, current)
		})
	if err != nil {
		return goal.Outcome{}, err
	}
	result, err := goal.Marshal(answer{Collection: e.Collection, ID: e.ID, Revision: rev, Deleted: c.Tool == StateDelete})
	if err != nil {
		return goal.Outcome{}, err
	}
	revisions[e.name()] = rev
	return goal.Outcome{Kind: goal.CallOK, Result: result, Replayed: replayed, Revisions: revisions}, nil
}

// member reads an entity that has no document of its own as a member of the
// document that holds its whole collection. The revision is that document's.
func (d *Documents) member(ctx context.Context, e edit) (json.RawMessage, uint64, error) {
	raw, rev, err := d.store.Get(ctx, d.namespace, e.Collection, "")
	if err != nil {
		return nil, 0, err
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members[e.ID] == nil {
		return nil, 0, goal.ErrNotFound
	}
	return members[e.ID], rev, nil
}

// errNoMember ends an edit that has nothing to do.
var errNoMember = errors.New("no such member")

// removeMember takes an entity out of the document that holds its whole
// collection, if there is one, so that it does not show again once its own
// document is gone. It goes first: a call that is repeated after a crash
// between the two writes finishes the second. It returns the new revision of
// that document and has checked if_revision then; 0 where there was nothing.
func (d *Documents) removeMember(ctx context.Context, c agent.Call, e edit) (whole uint64, err error) {
	whole, _, err = d.store.Edit(ctx, d.namespace, e.Collection, "", c.Key,
		func(current json.RawMessage, rev uint64) (json.RawMessage, error) {
			var members map[string]json.RawMessage
			if err := json.Unmarshal(current, &members); err != nil || members[e.ID] == nil {
				return nil, errNoMember
			}
			_, own, err := d.store.Get(ctx, d.namespace, e.Collection, e.ID)
			switch {
			case err == nil:
				rev = own
			case !errors.Is(err, goal.ErrNotFound):
				return nil, err
			}
			if err := e.permitted(rev); err != nil {
				return nil, err
			}
			delete(members, e.ID)
			return goal.Marshal(members)
		})
	if errors.Is(err, errNoMember) {
		return 0, nil
	}
	return whole, err
}

// permitted checks if_revision.
func (e edit) permitted(rev uint64) error {
	if e.IfRevision == nil {
		return nil
	}
	want, err := e.IfRevision.Int64()
	if err != nil || want < 0 {
		return refuse("if_revision is not a revision")
	}
	if uint64(want) != rev {
		return &refused{kind: goal.CallPrecondition, message: fmt.Sprintf("%s has revision %d, not %d", e.name(), rev, want)}
	}
	return nil
}

// apply computes what shall be there; nil removes.
func (e edit) apply(tool string, current json.RawMessage) (json.RawMessage, error) {
	switch tool {
	case StateSet:
		return e.Value, nil
	case StateMerge:
		return MergePatch(current, e.Patch)
	case StatePatch:
		if current == nil {
			return nil, refuse("there is no %s", e.name())
		}
		return applyPatch(current, e.Patch)
	default:
		return nil, nil
	}
}

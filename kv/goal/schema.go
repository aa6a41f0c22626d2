package goal

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

//go:embed schema.json
var schemaText []byte

// Schema is the JSON Schema (draft 2020-12) of a goal, as it is served. Every
// way in uses it as it is.
func Schema() []byte { return bytes.Clone(schemaText) }

// schemaID is the $id of the schema.
const schemaID = "https://goalkeeper.dev/schemas/goal.json"

// compiled is the schema, compiled once. The text is part of the program, so an
// error is a bug that every test finds.
var compiled = sync.OnceValue(func() *jsonschema.Schema {
	text, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaText))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaID, text); err != nil {
		panic(err)
	}
	return c.MustCompile(schemaID)
})

// Limits of a problem's list of errors.
const (
	maxFieldErrors = 50
	maxPointer     = 1024 // bytes
)

// ParseGoal reads and checks a submitted goal and returns it with the
// fingerprint of its payload (see [Fingerprint]). Problems: PayloadTooLarge
// beyond [MaxBody], MalformedJSON for what [Decode] refuses, GoalInvalid for
// what the schema or the checks beyond it refuse, with one entry of Errors for
// each place, ordered by pointer, at most 50. Whether the environment, its
// tools and its entities exist is for the caller. It may be called concurrently.
func ParseGoal(body []byte) (Goal, string, *Problem) {
	if len(body) > MaxBody {
		return Goal{}, "", NewProblem(PayloadTooLarge, fmt.Sprintf("A goal has at most %d bytes.", MaxBody))
	}
	raw := rawMembers{}
	tree, err := decode(body, raw.keep)
	if err != nil {
		return Goal{}, "", malformed(err)
	}
	faults := checkSchema(tree)
	if len(faults) == 0 {
		faults = checkMeaning(tree.(map[string]any)) // the schema has said that it is an object
	}
	if len(faults) > 0 {
		return Goal{}, "", invalid(faults)
	}
	digest, err := fingerprint(tree, len(body))
	if err != nil {
		return Goal{}, "", malformed(err)
	}
	return raw.goal(tree.(map[string]any)), digest, nil
}

// malformed is the problem of a payload that is not strict JSON.
func malformed(err error) *Problem {
	p := NewProblem(MalformedJSON, err.Error())
	if at, ok := errors.AsType[*SyntaxError](err); ok {
		p.Detail = fmt.Sprintf("At byte %d: %s.", at.Offset, at.Detail)
		p.Errors = []FieldError{{Pointer: shortPointer(at.Pointer), Detail: at.Detail}}
	}
	return p
}

// shortPointer is p or the nearest parent that is short enough to repeat.
func shortPointer(p string) string {
	for len(p) > maxPointer {
		p = p[:strings.LastIndexByte(p, '/')]
	}
	return p
}

func invalid(faults []FieldError) *Problem {
	sortFaults(faults)
	p := NewProblem(GoalInvalid, "")
	switch n := len(faults); {
	case n == 1:
		p.Detail = "One place in the goal is wrong."
	case n > maxFieldErrors:
		p.Detail = fmt.Sprintf("%d places in the goal are wrong; the first %d are listed.", n, maxFieldErrors)
	default:
		p.Detail = fmt.Sprintf("%d places in the goal are wrong.", n)
	}
	p.Errors = slices.Clone(faults[:min(len(faults), maxFieldErrors)])
	return p
}

func sortFaults(faults []FieldError) {
	slices.SortFunc(faults, func(a, b FieldError) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Detail, b.Detail))
	})
}

// rawMembers are the client's bytes of the members that a Goal keeps raw.
type rawMembers struct{ target, preConditions, context json.RawMessage }

func (r *rawMembers) keep(parent, name string, raw []byte) {
	switch {
	case parent == "goal" && name == "target_state":
		r.target = bytes.Clone(raw)
	case parent == "" && name == "pre_conditions":
		r.preConditions = bytes.Clone(raw)
	case parent == "" && name == "context":
		r.context = bytes.Clone(raw)
	}
}

// goal builds the goal from a tree that the schema has accepted.
func (r *rawMembers) goal(root map[string]any) Goal {
	objective := root["goal"].(map[string]any)
	limits := root["guardrails"].(map[string]any)
	g := Goal{
		Objective: Objective{Intent: text(objective["intent"]), TargetState: r.target},
		Guardrails: Guardrails{
			MaxSteps:             int(integer(limits["max_steps"])),
			TimeoutSeconds:       int(integer(limits["timeout_seconds"])),
			MaxTokens:            integer(limits["max_tokens"]),
			MaxRepeats:           int(integer(limits["max_repeats"])),
			MaxConsecutiveErrors: int(integer(limits["max_consecutive_errors"])),
		},
		PreConditions: r.preConditions,
		Environment:   text(root["environment"]),
		Context:       r.context,
		WebhookURL:    text(root["webhook_url"]),
	}
	if tools, ok := limits["allowed_tools"].([]any); ok {
		g.Guardrails.AllowedTools = make([]string, len(tools))
		for i, name := range tools {
			g.Guardrails.AllowedTools[i] = text(name)
		}
	}
	return g
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func integer(v any) int64 {
	n, _ := v.(json.Number)
	i, _ := Integer(n)
	return i
}

// checkSchema validates the tree and lists what is wrong.
func checkSchema(tree any) []FieldError {
	err := compiled().Validate(schemaView(tree))
	if err == nil {
		return nil
	}
	fault, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return []FieldError{{Detail: "cannot be checked"}}
	}
	return appendFaults(nil, fault)
}

// schemaView is the tree with the numbers that the schema looks at in a plain
// spelling. The validator computes with big.Rat, which expands exponents:
// 1e-99999999 would cost minutes, and a longer exponent a panic.
func schemaView(tree any) any {
	root, ok := tree.(map[string]any)
	if !ok {
		return tree
	}
	if limits := plainNumbers(root["guardrails"]); limits != nil {
		root = replaceMember(root, "guardrails", limits)
	}
	if conditions, ok := root["pre_conditions"].(map[string]any); ok {
		if revisions := plainNumbers(conditions["revisions"]); revisions != nil {
			root = replaceMember(root, "pre_conditions", replaceMember(conditions, "revisions", revisions))
		}
	}
	return root
}

// replaceMember is a copy of members with that member set.
func replaceMember(members map[string]any, name string, v any) map[string]any {
	view := maps.Clone(members)
	view[name] = v
	return view
}

// plainNumbers is the object v with plain numbers, or nil when it is no object
// or has none but plain ones.
func plainNumbers(v any) map[string]any {
	members, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	var view map[string]any
	for name, w := range members {
		n, ok := w.(json.Number)
		if !ok || len(n) <= 20 && digitsOnly(string(n)) {
			continue
		}
		if view == nil {
			view = maps.Clone(members)
		}
		view[name] = plainNumber(n)
	}
	return view
}

// plainNumber has the value of n where that is an integer, and else lies
// between the same two integers. It is at most 310 digits long, because n does
// not overflow a float64.
func plainNumber(n json.Number) json.Number {
	d, ok := parseDecimal(string(n))
	if !ok || d.digits == "" {
		return "0"
	}
	sign := ""
	if d.negative {
		sign = "-"
	}
	exp, err := strconv.Atoi(d.exp)
	switch {
	case err != nil || exp < -len(d.digits):
		return json.Number(sign + "0.5")
	case exp < 0:
		whole := d.digits[:len(d.digits)+exp]
		return json.Number(sign + "0"[min(len(whole), 1):] + whole + ".5")
	default:
		return json.Number(sign + d.digits + strings.Repeat("0", exp))
	}
}

// appendFaults lists the leaves of a validation error.
func appendFaults(faults []FieldError, e *jsonschema.ValidationError) []FieldError {
	at := e.InstanceLocation
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return appendMembers(faults, at, k.Missing, "is required")
	case *kind.AdditionalProperties:
		detail := "is not a known member"
		if slices.Equal(at, []string{"pre_conditions", "revisions"}) {
			detail = notAnEntity
		}
		return appendMembers(faults, at, k.Properties, detail)
	}
	if len(e.Causes) == 0 {
		return append(faults, FieldError{pointerOf(at), describe(e.ErrorKind)})
	}
	for _, cause := range e.Causes {
		faults = appendFaults(faults, cause)
	}
	return faults
}

func appendMembers(faults []FieldError, at, names []string, detail string) []FieldError {
	for _, name := range names {
		faults = append(faults, FieldError{pointerOf(append(slices.Clone(at), name)), detail})
	}
	return faults
}

// describe says in words what a keyword of the schema demands.
func describe(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be " + article(k.Want[0])
	case *kind.MinLength:
		return "must be at least " + count(k.Want, "character")
	case *kind.MaxLength:
		return "must be at most " + count(k.Want, "character")
	case *kind.MinProperties:
		return "must have at least " + count(k.Want, "member")
	case *kind.Minimum:
		return "must be at least " + k.Want.RatString()
	case *kind.Maximum:
		return "must be at most " + k.Want.RatString()
	case *kind.Pattern:
		return "must match the pattern " + k.Want
	default:
		return "is not what the schema demands"
	}
}

func article(noun string) string {
	if strings.IndexByte("aeiou", noun[0]) >= 0 {
		return "an " + noun
	}
	return "a " + noun
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// pointerOf is the RFC 6901 pointer of a path, or of the nearest parent that is
// short enough: thousands of faults below one long name must stay cheap.
func pointerOf(path []string) string {
	var b strings.Builder
	for _, name := range path {
		if b.Len()+1+len(name) > maxPointer {
			break
		}
		b.WriteByte('/')
		_, _ = pointerEscapes.WriteString(&b, name)
	}
	return b.String()
}

// checkMeaning finds what a schema cannot say.
func checkMeaning(root map[string]any) []FieldError {
	objective := root["goal"].(map[string]any)
	path := append(make([]string, 0, 8), "goal", "target_state") // room for most goals' depth
	faults := reservedNames(nil, path, objective["target_state"])
	if members, ok := root["pre_conditions"].(map[string]any); ok {
		_, wrong := preConditionsOf(members)
		for _, f := range wrong {
			faults = append(faults, FieldError{"/pre_conditions" + f.Pointer, f.Detail})
		}
	}
	if raw, ok := root["webhook_url"].(string); ok {
		if u, err := url.Parse(raw); err != nil || u.Hostname() == "" {
			faults = append(faults, FieldError{"/webhook_url", "must be an absolute http or https URL"})
		}
	}
	return faults
}

// reservedNames finds the members whose names begin with $, which are kept for
// later. What lies in an array is data and may be named as it likes.
func reservedNames(faults []FieldError, path []string, v any) []FieldError {
	members, ok := v.(map[string]any)
	if !ok {
		return faults
	}
	for name, w := range members {
		at := append(path, name) //nolint:gocritic // overwritten by the next name, after its last use
		if strings.HasPrefix(name, "$") {
			faults = append(faults, FieldError{pointerOf(at), "begins with $, which is reserved"})
		} else {
			faults = reservedNames(faults, at, w)
		}
	}
	return faults
}

package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// emptyArguments stands for arguments that were left out.
var emptyArguments = json.RawMessage(`{}`)

// maxArgumentErrors is how many places a refusal names.
const maxArgumentErrors = 5

// schema checks a tool's arguments before anything is sent. The zero value
// takes every object.
type schema struct{ compiled *jsonschema.Schema }

// compile reads a JSON Schema; without $schema it is draft 2020-12. References
// to other documents are refused: nothing is ever fetched.
func compile(raw json.RawMessage) (schema, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return schema{}, nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return schema{}, fmt.Errorf("input schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const at = "tool:input"
	if err := c.AddResource(at, doc); err != nil {
		return schema{}, fmt.Errorf("input schema: %w", err)
	}
	compiled, err := c.Compile(at)
	if err != nil {
		return schema{}, fmt.Errorf("input schema: %w", err)
	}
	return schema{compiled: compiled}, nil
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to another document %q", url)
}

// check decodes arguments and refuses what the schema refuses, with an
// *agent.ArgumentsError.
func (s schema) check(raw json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = emptyArguments
	}
	v, err := goal.Decode(raw)
	if err != nil {
		return nil, &agent.ArgumentsError{Detail: err.Error()}
	}
	args, ok := v.(map[string]any)
	if !ok {
		return nil, &agent.ArgumentsError{Detail: "must be an object"}
	}
	if s.compiled == nil {
		return args, nil
	}
	if err := s.compiled.Validate(v); err != nil {
		return nil, &agent.ArgumentsError{Detail: describe(err)}
	}
	return args, nil
}

// describe says in one line where a value does not fit and why.
func describe(err error) string {
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err.Error()
	}
	var places []string
	collect(ve, message.NewPrinter(language.English), &places)
	if more := len(places) - maxArgumentErrors; more > 0 {
		places = append(places[:maxArgumentErrors], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(places, "; ")
}

// collect gathers the leaves of a validation error: the causes, not the
// keywords that led to them.
func collect(e *jsonschema.ValidationError, p *message.Printer, places *[]string) {
	if len(e.Causes) == 0 {
		at := "/" + strings.Join(e.InstanceLocation, "/")
		*places = append(*places, at+": "+e.ErrorKind.LocalizedString(p))
		return
	}
	for _, c := range e.Causes {
		collect(c, p, places)
	}
}

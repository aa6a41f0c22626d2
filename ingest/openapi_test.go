package ingest_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type openAPIDoc struct {
	OpenAPI    string                                `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas map[string]openAPISchema `json:"schemas"`
	} `json:"components"`
}

type openAPISchema struct {
	Properties map[string]json.RawMessage `json:"properties"`
	Required   []string                   `json:"required"`
	Enum       []string                   `json:"enum"`
}

func openAPI(t *testing.T) openAPIDoc {
	t.Helper()
	var d openAPIDoc
	if err := json.Unmarshal(ingest.OpenAPI(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOpenAPIRoutes: every route is described and every description is a route.
func TestOpenAPIRoutes(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for path, item := range openAPI(t).Paths {
		for method := range item {
			if method != "parameters" {
				described[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	w := newWorld(t, func(c *ingest.Config) { c.Metrics = http.NotFoundHandler() })
	served := map[string]bool{}
	for _, route := range w.srv.Routes() {
		if !strings.HasPrefix(route, http.MethodHead) { // HEAD goes with GET
			served[route] = true
		}
	}
	if !maps.Equal(described, served) {
		t.Errorf("described %v\nserved %v", slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(served)))
	}
}

// TestOpenAPITypes: the schemas have the members of the Go types, and require
// those that are always written.
func TestOpenAPITypes(t *testing.T) {
	t.Parallel()
	types := map[string]any{
		"Task": goal.Task{}, "Guardrails": goal.Guardrails{}, "Usage": goal.Usage{}, "Difference": goal.Difference{}, "Trip": goal.Trip{},
		"Effect": goal.Effect{}, "Links": goal.Links{}, "Event": goal.Event{}, "Problem": goal.Problem{}, "FieldError": goal.FieldError{},
		"Goal": goal.Goal{}, "Summary": ingest.Summary{}, "Report": ingest.Report{}, "Check": ingest.Check{}, "Environment": ingest.Environment{},
		"Tool": ingest.Tool{}, "Delivery": goal.DeliveryView{}, "Attempt": goal.Attempt{},
	}
	maps.Copy(types, ingest.WireTypes)
	schemas := openAPI(t).Components.Schemas
	for name, v := range types {
		schema := schemas[name]
		all, always := members(reflect.TypeOf(v))
		if got := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(got, all) {
			t.Errorf("%s: described %v, Go type has %v", name, got, all)
		}
		for _, m := range schema.Required {
			if !slices.Contains(always, m) {
				t.Errorf("%s.%s is required, but not always written", name, m)
			}
		}
	}
	delete(schemas, "State")
	for name, schema := range schemas {
		if _, ok := types[name]; !ok && len(schema.Enum) == 0 {
			t.Errorf("schema %s has no Go type", name)
		}
	}
}

// TestOpenAPILists: closed lists are the ones of the code.
func TestOpenAPILists(t *testing.T) {
	t.Parallel()
	schemas := openAPI(t).Components.Schemas
	same := func(name string, got []string, want []string) {
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: described %v, code has %v", name, got, want)
		}
	}
	same("State", schemas["State"].Enum, texts(goal.States()))
	same("Reason", schemas["Reason"].Enum, texts(goal.Reasons()))
	same("EventType", schemas["EventType"].Enum, texts(goal.EventTypes()))
	var problem openAPISchema
	if err := json.Unmarshal(schemas["Problem"].Properties["type"], &problem); err != nil {
		t.Fatal(err)
	}
	want := []string{"about:blank"}
	for _, p := range goal.ProblemTypes() {
		switch p { //nolint:exhaustive // the others are ours
		case goal.KeyMismatch, goal.RequestInProgress, goal.ResponseNotRetained: // of tool calls only
		default:
			want = append(want, goal.ProblemBase+string(p))
		}
	}
	same("Problem", problem.Enum, want)
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

func members(t reflect.Type) (all, always []string) {
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		all = append(all, name)
		if !strings.Contains(opts, "omit") {
			always = append(always, name)
		}
	}
	slices.Sort(all)
	return all, always
}

// checkSchema validates an answer against a schema of the description.
func checkSchema(t *testing.T, name string, body []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(ingest.OpenAPI()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("openapi.json#/components/schemas/" + name)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("answer is no %s: %v\n%s", name, err, body)
	}
}

func TestAnswersAreAsDescribed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := goal.TaskID("default", "k")
	checkSchema(t, "Task", w.post("k", goodGoal).Body.Bytes())
	w.started(id)
	w.store.append("default", id, decided(2, 1))
	checkSchema(t, "Task", w.call(http.MethodGet, "/v1/tasks/"+id, "").Body.Bytes())
	checkSchema(t, "Trace", w.call(http.MethodGet, "/v1/tasks/"+id+"/trace", "").Body.Bytes())
	checkSchema(t, "Problem", w.post("k", otherGoal).Body.Bytes())
	checkSchema(t, "Problem", w.call(http.MethodDelete, "/v1/tasks", "").Body.Bytes())
	checkSchema(t, "Report", w.call(http.MethodPost, "/v1/tasks?dry_run=true", goodGoal, "Content-Type: application/json").Body.Bytes())
	checkSchema(t, "Health", w.call(http.MethodGet, "/readyz", "").Body.Bytes())
	checkSchema(t, "Environments", w.call(http.MethodGet, "/v1/environments", "").Body.Bytes())
	checkSchema(t, "Tools", w.call(http.MethodGet, "/v1/tools", "").Body.Bytes())
}

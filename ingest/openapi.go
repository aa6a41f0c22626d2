package ingest

import (
	_ "embed" // the description
	"fmt"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed openapi.yaml
var openAPIText []byte

// openAPI is the description of the HTTP API (OpenAPI 3.1) as JSON. A test keeps
// it in step with the routes and the types.
var openAPI = sync.OnceValue(func() []byte {
	body, err := yaml.YAMLToJSON(openAPIText)
	if err != nil {
		panic(fmt.Errorf("openapi.yaml: %w", err)) // it is part of the program
	}
	return body
})

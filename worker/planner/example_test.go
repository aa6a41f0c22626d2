package planner_test

import (
	"encoding/json"
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/planner"
)

func ExamplePlan() {
	left := []goal.Difference{
		{Pointer: "/orders/W1/status", Want: json.RawMessage(`"refunded"`)},
		{Pointer: "/orders/W2", Want: json.RawMessage(`null`), Have: json.RawMessage(`{}`)},
	}
	state := map[string]any{"orders": map[string]any{"W1": map[string]any{"status": "paid"}, "W2": map[string]any{}}}
	actions, err := planner.Plan(left, state)
	for _, a := range actions {
		fmt.Println(a.Tool, string(a.Arguments))
	}
	fmt.Println(err)
	// Output:
	// state.merge {"collection":"orders","id":"W1","patch":{"status":"refunded"}}
	// state.delete {"collection":"orders","id":"W2"}
	// <nil>
}

package agent_test

import (
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

func ExampleLeft() {
	target, _ := goal.Decode([]byte(`{"orders":{"W1":{"status":"refunded","hold":null}},"account_version":13}`))
	state, _ := goal.Decode([]byte(`{"orders":{"W1":{"status":"open","total":30.0}},"account_version":12}`))
	for _, d := range agent.Left(target.(map[string]any), state.(map[string]any)) {
		fmt.Printf("%s: want %s, have %s\n", d.Pointer, d.Want, d.Have)
	}
	// Output:
	// /account_version: want 13, have 12
	// /orders/W1/status: want "refunded", have "open"
}

// A target is reached when nothing is left: numbers compare by value, what is
// not named is ignored, and null means absent.
func ExampleLeft_reached() {
	target, _ := goal.Decode([]byte(`{"orders":{"W1":{"total":30,"hold":null}}}`))
	state, _ := goal.Decode([]byte(`{"orders":{"W1":{"total":30.0,"status":"open"},"W2":{}}}`))
	fmt.Println(len(agent.Left(target.(map[string]any), state.(map[string]any))))
	// Output: 0
}

func ExampleEntities() {
	target, _ := goal.Decode([]byte(`{"orders":{"W1":{"status":"refunded"},"W2":null},"account_version":13}`))
	for _, e := range agent.Entities(target.(map[string]any)) {
		fmt.Println(e.Key())
	}
	// Output:
	// account_version
	// orders/W1
	// orders/W2
}

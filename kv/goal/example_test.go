package goal_test

import (
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func ExampleParseGoal() {
	_, _, problem := goal.ParseGoal([]byte(`{"goal":{"intent":"Pay","target_state":{"paid":true}},"guardrails":{"max_steps":12}}`))
	for _, e := range problem.Errors {
		fmt.Println(e.Pointer, e.Detail)
	}
	// Output:
	// /goal/intent must be at least 5 characters
	// /guardrails/timeout_seconds is required
}

func ExampleTaskID() {
	fmt.Println(goal.TaskID("default", "order-42"))
	// Output: tsk_ca3388af3a5ce6f4506a12279383fbb9
}

func ExampleToolCallKey() {
	key, err := goal.ToolCallKey("sess-1", 0, "send_email", []byte(`{ "to": "a@example.com", "subject": "hi" }`))
	fmt.Println(key, err)
	// Output: 8a9887b4343ca2b24ab133086f92625975c9860f9211691c7d15b475b260d7df <nil>
}

func ExampleFingerprint() {
	one, _ := goal.Fingerprint([]byte(`{"id": 9007199254740993, "amount": 1.0}`))
	two, _ := goal.Fingerprint([]byte(`{"amount": 1e0, "id": 9007199254740993}`))
	rounded, _ := goal.Fingerprint([]byte(`{"amount": 1, "id": 9007199254740992}`))
	fmt.Println(one == two, one == rounded)
	// Output: true false
}

func ExampleExact() {
	form, _ := goal.Exact([]byte(`{"b": [1.50, -0, 1200], "a": "\u00e9"}`))
	fmt.Println(string(form))
	// Output: {"a":"é","b":[15e-1,0,12e2]}
}

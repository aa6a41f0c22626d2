package tool_test

import (
	"encoding/json"
	"fmt"

	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

func ExampleTemplate_Expand() {
	t, err := tool.ParseTemplate("https://shop.example/orders/{id}/notes?lang={lang}&draft={draft}")
	if err != nil {
		panic(err)
	}
	u, err := t.Expand(map[string]any{"id": "A/1", "draft": true})
	fmt.Println(u, err)
	// Output: https://shop.example/orders/A%2F1/notes?draft=true <nil>
}

func ExampleMergePatch() {
	out, err := tool.MergePatch(
		json.RawMessage(`{"status":"paid","total":9007199254740993,"note":"x"}`),
		json.RawMessage(`{"status":"refunded","note":null}`),
	)
	fmt.Println(string(out), err)
	// Output: {"status":"refunded","total":9007199254740993} <nil>
}

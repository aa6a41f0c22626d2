package ingest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
)

// The same submission twice is one task; another payload under its key is
// refused.
func ExampleServer_Handler() {
	srv, err := ingest.New(ingest.Config{Store: newFakeStore(), Auth: ingest.Anonymous("default"), Log: quiet()})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, body := range []string{goodGoal, sameGoal, otherGoal} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/tasks", strings.NewReader(body)) //nolint:noctx // an example
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "refund-W2378156")
		w := httptest.NewRecorder()
		srv.Handler().ServeHTTP(w, r)
		fmt.Printf("%d %q %q\n", w.Code, w.Header().Get("Location"), w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 202 "/v1/tasks/tsk_5caeb00e74ac0e1eb0e9a36f3879e805" ""
	// 202 "/v1/tasks/tsk_5caeb00e74ac0e1eb0e9a36f3879e805" "true"
	// 409 "" ""
}

func ExampleNewKeys() {
	keys, err := ingest.NewKeys([]ingest.Key{{SHA256: ingest.HashKey("gk_example"), Tenant: "shop", Roles: []string{"refunds"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/tools", http.NoBody) //nolint:noctx // an example
	r.Header.Set("Authorization", "Bearer gk_example")
	who, err := keys.Authenticate(r)
	fmt.Println(who.Tenant, who.Has("refunds"), who.May([]string{"admin"}), err)
	// Output: shop true false <nil>
}

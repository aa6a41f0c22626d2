package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/goalkeeper-dev/goalkeeper/ingest/idempotency"
	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// A Go backend protects its handlers in five lines with a NATS URL.
func Example() {
	natsURL, shutdown := exampleNATS()
	defer shutdown()
	payments := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("money moves")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
	})

	calls, err := kv.OpenCalls(context.Background(), natsURL)
	if err != nil {
		log.Panic(err)
	}
	guard, err := idempotency.New(idempotency.Config{Store: calls})
	if err != nil {
		log.Panic(err)
	}
	backend := httptest.NewServer(guard.Wrap(payments))

	defer calls.Close() // last: the guard may still write
	defer guard.Close()
	defer backend.Close()
	for range 2 {
		r, _ := http.NewRequest(http.MethodPost, backend.URL, strings.NewReader(`{"amount":12}`)) //nolint:noctx // an example
		r.Header.Set("Idempotency-Key", "order-7")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		fmt.Println(res.StatusCode, string(body), res.Header.Get("X-Cache-Lookup"))
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// money moves
	// 201 paid MISS
	// 201 paid HIT
}

// A gateway protects backends in any language.
func ExampleGateway() {
	natsURL, shutdown := exampleNATS()
	defer shutdown()
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("upstream:", r.Method, r.URL.Path, "attempt", r.Header.Get("Goalkeeper-Attempt"))
	}))
	defer upstream.Close()

	calls, err := kv.OpenCalls(context.Background(), natsURL)
	if err != nil {
		log.Panic(err)
	}
	defer calls.Close()
	gateway, err := idempotency.NewGateway(idempotency.GatewayConfig{
		Guard: idempotency.Config{Store: calls},
		Routes: []idempotency.Route{
			{Path: "/pay", Upstream: upstream.URL, StripPath: true, OnAmbiguous: idempotency.Hold},
		},
	})
	if err != nil {
		log.Println(err)
		return
	}
	defer gateway.Close()
	front := httptest.NewServer(gateway)
	defer front.Close()
	for range 2 {
		r, _ := http.NewRequest(http.MethodDelete, front.URL+"/pay/cards/1", http.NoBody) //nolint:noctx // an example
		r.Header.Set("Idempotency-Key", "remove-card-1")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = res.Body.Close()
		fmt.Println(res.StatusCode, res.Header.Get("X-Cache-Lookup"))
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// upstream: DELETE /cards/1 attempt 1
	// 200 MISS
	// 200 HIT
}

// exampleNATS starts a NATS server for the examples.
func exampleNATS() (url string, shutdown func()) {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
}

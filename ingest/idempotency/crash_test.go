package idempotency

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

// childEnv makes the test binary a gateway: "<mode> <NATS URL> <upstream URL>".
const childEnv = "GOALKEEPER_TEST_GATEWAY"

// crashLease is shorter than Config allows.
const crashLease = 2 * time.Second

func runChild() {
	var mode, nats, upstream string
	if _, err := fmt.Sscan(os.Getenv(childEnv), &mode, &nats, &upstream); err != nil {
		log.Fatal(err)
	}
	calls, err := kv.OpenCalls(context.Background(), nats)
	if err != nil {
		log.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("http://" + l.Addr().String())
	log.Fatal(http.Serve(l, crashGateway(calls, Ambiguous(mode), upstream))) //nolint:gosec // no timeouts in a test
}

func crashGateway(s Store, mode Ambiguous, upstream string) http.Handler {
	cfg, err := Config{Store: s, Log: quiet(), OnAmbiguous: mode}.withDefaults()
	if err != nil {
		log.Fatal(err)
	}
	cfg.Lease = crashLease
	m, err := newMetrics(nil)
	if err != nil {
		log.Fatal(err)
	}
	target, err := url.Parse(upstream)
	if err != nil {
		log.Fatal(err)
	}
	proxy, _ := Route{ConnectTimeout: 5 * time.Second}.proxy(target, cfg)
	return newGuard(cfg, m).Wrap(proxy)
}

// The gateway is killed after the upstream's effect and before the record.
// During the lease the call is in progress; after it exactly one more attempt
// runs, and the backend is told so. Held calls wait for the operator instead.
func TestKilledBetweenEffectAndRecord(t *testing.T) {
	t.Parallel()
	for _, mode := range []Ambiguous{Expire, Hold} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			killed(t, mode)
		})
	}
}

func killed(t *testing.T, mode Ambiguous) {
	t.Helper()
	var (
		effects  atomic.Int64
		attempts = make(chan string, 10)
		dead     = make(chan struct{})
	)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := effects.Add(1)
		attempts <- r.Header.Get(HeaderAttempt)
		if n == 1 {
			<-dead // the effect is done, the answer never arrives
		}
		_, _ = io.WriteString(w, "done")
	}))
	defer upstream.Close()
	cluster := kvtest.Server(t, kvtest.Options{Listen: true})
	child, front := startChild(t, mode, cluster.URL(), upstream.URL)
	w := &world{t: t, url: front, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	failed := make(chan error)
	go func() {
		_, err := w.send(t.Context(), http.MethodPost, "/pay", "k", "{}", "Content-Type", "application/json")
		failed <- err
	}()
	if got := <-attempts; got != "1" {
		t.Fatalf("the first attempt is %q", got)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	close(dead)
	if err := <-failed; err == nil {
		t.Fatal("a dead gateway answered")
	}

	calls, err := kv.OpenCalls(t.Context(), cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	heir := httptest.NewServer(crashGateway(calls, mode, upstream.URL))
	defer heir.Close()
	w.url = heir.URL
	w.post("k", "{}").want(t, 409).problem(t, "request-in-progress")
	if mode == Hold {
		decide(t, w, calls)
	} else {
		eventually(t, "the lease ends", func() bool { return w.post("k", "{}").StatusCode != http.StatusConflict })
		if got := <-attempts; got != "2" {
			t.Fatalf("the backend was told that it is attempt %q; want 2", got)
		}
	}
	w.post("k", "{}").want(t, 200, HeaderLookup, "HIT")
	if want := map[Ambiguous]int64{Expire: 2, Hold: 1}[mode]; effects.Load() != want {
		t.Fatalf("%d effects; want %d", effects.Load(), want)
	}
}

// decide completes the abandoned call as an operator.
func decide(t *testing.T, w *world, calls *kv.Calls) {
	t.Helper()
	op := &Operator{Store: calls}
	id := ID("default", "k")
	eventually(t, "the lease ends", func() bool {
		err := op.Complete(t.Context(), id, "olga", "seen in the ledger", Answer{Status: 200, Body: []byte("done")})
		return err == nil
	})
	entry, err := op.Inspect(t.Context(), id)
	if err != nil || entry.State != Completed || entry.Reason != "seen in the ledger" || !strings.HasPrefix(entry.Owner, "operator:olga") {
		t.Fatalf("record %+v, %v", entry, err)
	}
	if r := w.post("k", "{}"); r.body != "done" {
		t.Fatalf("replay %q", r.body)
	}
}

func startChild(t *testing.T, mode Ambiguous, nats, upstream string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this test binary
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", childEnv, mode, nats, upstream))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var front string
	if _, err := fmt.Fscan(out, &front); err != nil {
		t.Fatal(err)
	}
	return cmd, front
}

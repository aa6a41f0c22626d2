package tool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// httpTool makes a toolbox of one tool "t" on a handler.
func httpTool(t *testing.T, h http.Handler, cfg tool.HTTPTool, objects tool.Objects) *tool.HTTP {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg.Name, cfg.URL = "t", srv.URL+cfg.URL
	return newHTTP(t, tool.HTTPConfig{Tools: []tool.HTTPTool{cfg}, Objects: objects})
}

func newHTTP(t *testing.T, cfg tool.HTTPConfig) *tool.HTTP {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	box, err := tool.NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

func call(args string) agent.Call {
	return agent.Call{TaskID: "tsk_1", Step: 3, Tool: "t", Arguments: json.RawMessage(args), Key: "thekey", Traceparent: "00-trace"}
}

func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		method, url, args        string
		wantURI, wantBody, wantT string
	}{
		"post":                  {"POST", "/orders/{id}", `{"id":"W1","amount":9007199254740993,"f":1.10}`, "/orders/W1", `{"amount":9007199254740993,"f":1.10}`, "application/json"},
		"post nothing":          {"POST", "/orders", ``, "/orders", `{}`, "application/json"},
		"get":                   {"GET", "/orders?limit={n}", `{"n":5,"b":true,"a":"x y"}`, "/orders?limit=5&a=x+y&b=true", "", ""},
		"get, null is left out": {"GET", "/o", `{"b":null}`, "/o", "", ""},
		"delete":                {"DELETE", "/orders/{id}", `{"id":"W1"}`, "/orders/W1", "", ""},
		"delete with a body":    {"DELETE", "/orders/{id}", `{"id":"W1","why":"x"}`, "/orders/W1", `{"why":"x"}`, "application/json"},
		"method by default":     {"", "/o", `{"s":"<&>"}`, "/o", `{"s":"<&>"}`, "application/json"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := httpTool(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				want := map[string]string{
					"Idempotency-Key": "thekey", "Traceparent": "00-trace", "Authorization": "Bearer s3cret", "Content-Type": row.wantT,
				}
				// The parts of the key go where it can be recomputed from the body.
				want["Goalkeeper-Session"], want["Goalkeeper-Step"], want["Goalkeeper-Tool"] = "", "", ""
				if row.method != "GET" && !strings.Contains(row.url, "{") {
					want["Goalkeeper-Session"], want["Goalkeeper-Step"], want["Goalkeeper-Tool"] = "tsk_1", "3", "t"
				}
				for name, v := range want {
					if got := r.Header.Get(name); got != v || len(r.Header.Values(name)) > 1 {
						t.Errorf("%s is %q, want %q", name, got, v)
					}
				}
				if r.RequestURI != row.wantURI || string(body) != row.wantBody {
					t.Errorf("request %s %s, want %s %s", r.RequestURI, body, row.wantURI, row.wantBody)
				}
				w.Header().Set("Idempotent-Replayed", "true")
				_, _ = io.WriteString(w, `{"n":9007199254740993}`)
			}), tool.HTTPTool{Method: row.method, URL: row.url, Headers: map[string]string{"Authorization": "Bearer s3cret"}}, nil)
			out, err := box.Call(t.Context(), call(row.args))
			if err != nil || !out.OK() || !out.Replayed || string(out.Result) != `{"n":9007199254740993}` || out.Status != 200 {
				t.Errorf("outcome %+v, %v", out, err)
			}
		})
	}
}

// What each answer means, and how often it is asked again.
func TestHTTPStatuses(t *testing.T) {
	t.Parallel()
	const again, once = 3, 1
	rows := map[string]struct {
		status     int
		retryAfter string
		replay     goal.Replay
		kind       goal.OutcomeKind
		calls      int32
	}{
		"200":                   {200, "", goal.ReplayKeyed, goal.CallOK, once},
		"204":                   {204, "", goal.ReplayKeyed, goal.CallOK, once},
		"302":                   {302, "", goal.ReplayKeyed, goal.CallToolError, once},
		"400":                   {400, "", goal.ReplayKeyed, goal.CallToolError, once},
		"404":                   {404, "", goal.ReplayRead, goal.CallToolError, once},
		"409":                   {409, "", goal.ReplayKeyed, goal.CallToolError, once},
		"409 with Retry-After":  {409, "0", goal.ReplayKeyed, goal.CallUnavailable, again},
		"412":                   {412, "", goal.ReplayKeyed, goal.CallPrecondition, once},
		"422":                   {422, "", goal.ReplayKeyed, goal.CallToolError, once},
		"429":                   {429, "", goal.ReplayKeyed, goal.CallUnavailable, again},
		"500":                   {500, "", goal.ReplayKeyed, goal.CallUnavailable, again},
		"503, idempotent":       {503, "0", goal.ReplayIdempotent, goal.CallUnavailable, again},
		"500, read":             {500, "", goal.ReplayRead, goal.CallUnavailable, again},
		"500, unsafe":           {500, "", goal.ReplayUnsafe, goal.CallUnknown, once},
		"429, unsafe":           {429, "", goal.ReplayUnsafe, goal.CallUnavailable, once},
		"409 + R-A, unsafe":     {409, "0", goal.ReplayUnsafe, goal.CallUnavailable, once},
		"412, unsafe":           {412, "", goal.ReplayUnsafe, goal.CallPrecondition, once},
		"404, class by default": {404, "", "", goal.CallToolError, once},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			box := httpTool(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.Header.Get("Idempotency-Key") != "thekey" {
					t.Errorf("key is %q", r.Header.Get("Idempotency-Key"))
				}
				if row.retryAfter != "" {
					w.Header().Set("Retry-After", row.retryAfter)
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(row.status)
				if row.status != 204 {
					_, _ = io.WriteString(w, `{"why":"so"}`)
				}
			}), tool.HTTPTool{URL: "/", Replay: row.replay}, nil)
			out, err := box.Call(t.Context(), call(`{}`))
			if err != nil || out.Kind != row.kind || calls.Load() != row.calls || out.Attempts != int(row.calls) || out.Status != row.status {
				t.Errorf("outcome %+v, %v after %d calls; want %s after %d", out, err, calls.Load(), row.kind, row.calls)
			}
			if row.status != 204 && string(out.Result) != `{"why":"so"}` {
				t.Errorf("result %s", out.Result)
			}
		})
	}
}

func TestHTTPRetrySucceeds(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	box := httpTool(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			w.WriteHeader(http.StatusBadGateway)
		case 2:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusConflict)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}), tool.HTTPTool{URL: "/", Replay: goal.ReplayKeyed}, nil)
	started := time.Now()
	out, err := box.Call(t.Context(), call(`{}`))
	if err != nil || !out.OK() || out.Attempts != 3 || time.Since(started) < time.Second {
		t.Errorf("outcome %+v, %v after %s; want ok at the third attempt, after more than 1s", out, err, time.Since(started))
	}
}

func TestHTTPNoRetryBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	box := httpTool(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}), tool.HTTPTool{URL: "/", Replay: goal.ReplayKeyed}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	started := time.Now()
	out, err := box.Call(ctx, call(`{}`))
	if err != nil || out.Kind != goal.CallUnavailable || calls.Load() != 1 || time.Since(started) > 2*time.Second {
		t.Errorf("outcome %+v, %v after %s and %d calls", out, err, time.Since(started), calls.Load())
	}
}

// rawServer answers each connection's first request by a function on the bare
// connection, and counts the requests that it read.
func rawServer(t *testing.T, answer func(n int32, c net.Conn)) (url string, requests *atomic.Int32) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests = &atomic.Int32{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				buf := make([]byte, 64<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if bytes.Contains(buf[:n], []byte("\r\n\r\n")) {
						answer(requests.Add(1), c)
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "http://" + l.Addr().String(), requests
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

// net/http sends a POST again by itself when it has an Idempotency-Key, the
// connection was reused, and it dies before the answer. Then the effect would
// come twice and nobody would know: for an unsafe tool it must not happen.
func TestHTTPUnsafeIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		args   string
		replay goal.Replay
		kind   goal.OutcomeKind
		want   int32 // requests beyond the first call's
	}{
		"unsafe, body":      {`{"x":1}`, goal.ReplayUnsafe, goal.CallUnknown, 1},
		"unsafe, no body":   {``, goal.ReplayUnsafe, goal.CallUnknown, 1},
		"keyed is repeated": {`{}`, goal.ReplayKeyed, goal.CallUnavailable, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, requests := rawServer(t, func(n int32, c net.Conn) {
				if n == 1 {
					_, _ = io.WriteString(c, okAnswer)
					return
				}
				_ = c.Close() // the effect took place, the answer is lost
			})
			method := http.MethodPost
			if row.args == "" {
				method = http.MethodDelete
			}
			box := newHTTP(t, tool.HTTPConfig{Tools: []tool.HTTPTool{{Name: "t", Method: method, URL: url, Replay: row.replay}}})
			if out, err := box.Call(t.Context(), call(row.args)); err != nil || !out.OK() {
				t.Fatalf("first call: %+v, %v", out, err)
			}
			out, err := box.Call(t.Context(), call(row.args))
			if err != nil || out.Kind != row.kind || requests.Load() != 1+row.want || out.Attempts != int(row.want) {
				t.Errorf("outcome %+v, %v; %d requests, want %s and %d", out, err, requests.Load(), row.kind, 1+row.want)
			}
		})
	}
}

func TestHTTPTransportErrors(t *testing.T) {
	t.Parallel()
	cut := "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
	dead, _ := rawServer(t, func(_ int32, c net.Conn) { _ = c.Close() })
	short, _ := rawServer(t, func(_ int32, c net.Conn) { _, _ = io.WriteString(c, cut); _ = c.Close() })
	silent, _ := rawServer(t, func(int32, net.Conn) {})
	refusing := refusingURL(t)
	rows := map[string]struct {
		url      string
		replay   goal.Replay
		kind     goal.OutcomeKind
		attempts int
		message  string
	}{
		"refused, unsafe": {refusing, goal.ReplayUnsafe, goal.CallUnavailable, 3, "connection refused; nothing was sent"},
		"refused, keyed":  {refusing, goal.ReplayKeyed, goal.CallUnavailable, 3, "nothing was sent"},
		"closed, keyed":   {dead, goal.ReplayKeyed, goal.CallUnavailable, 3, "broke"},
		"closed, unsafe":  {dead, goal.ReplayUnsafe, goal.CallUnknown, 1, "broke"},
		"cut, unsafe":     {short, goal.ReplayUnsafe, goal.CallUnknown, 1, "broke"},
		"cut, read":       {short, goal.ReplayRead, goal.CallUnavailable, 3, "broke"},
		"silent, keyed":   {silent, goal.ReplayKeyed, goal.CallTimeout, 3, "in time"},
		"silent, unsafe":  {silent, goal.ReplayUnsafe, goal.CallTimeout, 1, "in time"},
		"no such host":    {"http://no-such-host.invalid/", goal.ReplayUnsafe, goal.CallUnavailable, 3, "resolve"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := tool.HTTPTool{Name: "t", URL: row.url + "/?secret=s3cret", Replay: row.replay}
			if row.kind == goal.CallTimeout {
				cfg.Timeout = 300 * time.Millisecond
			}
			box := newHTTP(t, tool.HTTPConfig{Tools: []tool.HTTPTool{cfg}})
			out, err := box.Call(t.Context(), call(`{}`))
			if err != nil || out.Kind != row.kind || out.Attempts != row.attempts || !strings.Contains(out.Message, row.message) {
				t.Errorf("outcome %+v, %v; want %s after %d attempts: %q", out, err, row.kind, row.attempts, row.message)
			}
			if strings.Contains(out.Message, "127.0.0.1") || strings.Contains(out.Message, "s3cret") {
				t.Errorf("message shows an address or a query: %s", out.Message)
			}
		})
	}
}

func refusingURL(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestHTTPRedirects(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("followed to another origin") }))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	mux.HandleFunc("/same", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/there", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("GET /there", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"there"`) })
	for name, row := range map[string]struct {
		method, path string
		replay       goal.Replay
		kind         goal.OutcomeKind
	}{
		"read, same origin":  {"GET", "/same", goal.ReplayRead, goal.CallOK},
		"read, other origin": {"GET", "/away", goal.ReplayRead, goal.CallToolError},
		"read, loop":         {"GET", "/loop", goal.ReplayRead, goal.CallToolError},
		"post":               {"POST", "/same", goal.ReplayKeyed, goal.CallToolError},
		"post, 307":          {"POST", "/away", goal.ReplayKeyed, goal.CallToolError},
		"get that mutates":   {"GET", "/same", goal.ReplayUnsafe, goal.CallToolError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := httpTool(t, mux, tool.HTTPTool{Method: row.method, URL: row.path, Replay: row.replay}, nil)
			if out, err := box.Call(t.Context(), call(`{}`)); err != nil || out.Kind != row.kind {
				t.Errorf("outcome %+v, %v; want %s", out, err, row.kind)
			}
		})
	}
}

// objects is an object store in memory.
type objects struct {
	mu     sync.Mutex
	stored [][]byte
	err    error
}

func (o *objects) PutObject(_ context.Context, data []byte) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return "", o.err
	}
	o.stored = append(o.stored, data)
	return "obj" + strconv.Itoa(len(o.stored)), nil
}

func TestHTTPResults(t *testing.T) {
	t.Parallel()
	large := `["` + strings.Repeat("x", 100<<10) + `"]`
	rows := map[string]struct {
		body    string
		objects *objects
		want    string // of the result; empty: a preview
		object  string
	}{
		"JSON":               {` {"n":1.10} `, nil, `{"n":1.10}`, ""},
		"text":               {`plain "text"`, nil, `"plain \"text\""`, ""},
		"nothing":            {``, nil, ``, ""},
		"binary":             {"\xff\x00a", nil, "\"\uFFFD\\u0000a\"", ""},
		"duplicate names":    {`{"a":1,"a":2}`, nil, `"{\"a\":1,\"a\":2}"`, ""},
		"large, stored":      {large, &objects{}, "", "obj1"},
		"large, store fails": {large, &objects{err: errors.New("full")}, "", ""},
		"large, no store":    {large, nil, "", ""},
		"over the limit":     {strings.Repeat("y", 300<<10), &objects{}, "", ""},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var store tool.Objects
			if row.objects != nil {
				store = row.objects
			}
			box := httpTool(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, row.body)
			}), tool.HTTPTool{URL: "/", MaxResponse: 256 << 10}, store)
			out, err := box.Call(t.Context(), call(`{}`))
			if err != nil || !out.OK() || out.Object != row.object {
				t.Fatalf("outcome %+v, %v", out, err)
			}
			if len(row.body) < 1000 {
				if string(out.Result) != row.want {
					t.Errorf("result %s, want %s", out.Result, row.want)
				}
				return
			}
			if len(out.Result) > goal.MaxInline || !json.Valid(out.Result) || out.Size == 0 {
				t.Errorf("large result: %d bytes inline, size %d", len(out.Result), out.Size)
			}
			if row.object != "" && (out.Digest == "" || string(row.objects.stored[0]) != row.body) {
				t.Errorf("digest %q, %d bytes stored", out.Digest, len(row.objects.stored[0]))
			}
		})
	}
}

func TestHTTPArguments(t *testing.T) {
	t.Parallel()
	box := httpTool(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("was sent") }), tool.HTTPTool{
		URL: "/{id}", InputSchema: json.RawMessage(`{"type":"object","required":["id"],"additionalProperties":false,"properties":{
			"id":{"type":"string"},"n":{"type":"integer","minimum":1}}}`),
	}, nil)
	for name, args := range map[string]string{
		"missing": `{}`, "wrong type": `{"id":1}`, "unknown": `{"id":"a","x":1}`, "range": `{"id":"a","n":0}`, "no object": `"a"`,
		"broken": `{`, "dot segment": `{"id":".."}`,
	} {
		_, err := box.Call(t.Context(), call(args))
		var ae *agent.ArgumentsError
		if !errors.As(err, &ae) || ae.Detail == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := box.Call(t.Context(), agent.Call{Tool: "nope"}); !errors.Is(err, agent.ErrUnknownTool) {
		t.Errorf("unknown tool: %v", err)
	}
}

func TestHTTPConfigIsChecked(t *testing.T) {
	t.Parallel()
	ok := tool.HTTPTool{Name: "t", URL: "https://h/"}
	for name, change := range map[string]func(*tool.HTTPTool){
		"name":         func(c *tool.HTTPTool) { c.Name = "a:b" },
		"no name":      func(c *tool.HTTPTool) { c.Name = "" },
		"method":       func(c *tool.HTTPTool) { c.Method = "TRACE" },
		"URL":          func(c *tool.HTTPTool) { c.URL = "h" },
		"replay":       func(c *tool.HTTPTool) { c.Replay = "maybe" },
		"schema":       func(c *tool.HTTPTool) { c.InputSchema = json.RawMessage(`{"type":1}`) },
		"schema away":  func(c *tool.HTTPTool) { c.InputSchema = json.RawMessage(`{"$ref":"https://h/schema"}`) },
		"our header":   func(c *tool.HTTPTool) { c.Headers = map[string]string{"idempotency-key": "x"} },
		"split header": func(c *tool.HTTPTool) { c.Headers = map[string]string{"X-A": "a\r\nb"} },
	} {
		c := ok
		change(&c)
		if _, err := tool.NewHTTP(tool.HTTPConfig{Tools: []tool.HTTPTool{c}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := tool.NewHTTP(tool.HTTPConfig{Tools: []tool.HTTPTool{ok, ok}}); err == nil {
		t.Error("defined twice: no error")
	}
}

func TestHTTPLogsNoSecret(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	box := newHTTP(t, tool.HTTPConfig{
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Tools: []tool.HTTPTool{{
			Name: "t", URL: refusingURL(t) + "/?token=s3cret", Replay: goal.ReplayKeyed, Headers: map[string]string{"X-Key": "s3cret"},
		}},
	})
	if out, err := box.Call(t.Context(), call(`{"password":"s3cret"}`)); err != nil || out.OK() {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if text := log.String(); !strings.Contains(text, "repeated") || strings.Contains(text, "s3cret") || strings.Contains(text, "thekey") {
		t.Errorf("log: %s", text)
	}
}

func TestBox(t *testing.T) {
	t.Parallel()
	a := newHTTP(t, tool.HTTPConfig{Tools: []tool.HTTPTool{{Name: "z.a", URL: "https://h/"}}})
	docs, err := tool.NewDocuments(nil, "ns")
	if err != nil {
		t.Fatal(err)
	}
	box, err := tool.NewBox(a, docs)
	if err != nil {
		t.Fatal(err)
	}
	specs, err := box.List(t.Context())
	if err != nil || len(specs) != 6 || specs[5].Name != "z.a" {
		t.Errorf("list %v, %v", specs, err)
	}
	if _, err := box.Call(t.Context(), agent.Call{Tool: "nope"}); !errors.Is(err, agent.ErrUnknownTool) {
		t.Errorf("unknown tool: %v", err)
	}
	server := newMCP(t, tool.MCPServer{URL: "https://h/"})
	shadowed := newHTTP(t, tool.HTTPConfig{Tools: []tool.HTTPTool{{Name: "srv.echo", URL: "https://h/"}}})
	for name, sources := range map[string][]tool.Source{
		"a tool": {a, a}, "a server": {server, newMCP(t, tool.MCPServer{URL: "https://h/"})}, "a tool below a server": {shadowed, server},
	} {
		if _, err := tool.NewBox(sources...); err == nil {
			t.Errorf("%s twice: no error", name)
		}
	}
}

func BenchmarkHTTPCall(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":true}`) }))
	defer srv.Close()
	box, err := tool.NewHTTP(tool.HTTPConfig{Tools: []tool.HTTPTool{{Name: "t", URL: srv.URL + "/{id}", Replay: goal.ReplayKeyed}}})
	if err != nil {
		b.Fatal(err)
	}
	defer box.Close()
	for b.Loop() {
		if out, err := box.Call(b.Context(), call(`{"id":"a","n":1}`)); err != nil || !out.OK() {
			b.Fatalf("%+v, %v", out, err)
		}
	}
}

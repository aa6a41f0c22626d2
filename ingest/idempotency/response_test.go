package idempotency

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func allBytes(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// Every kind of answer comes back as it was.
func TestAnswersAreReplayed(t *testing.T) {
	t.Parallel()
	zipped := gzipped(t, "compressed")
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"binary", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = io.WriteString(w, allBytes(256))
		}},
		{"no content type", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }},
		{"empty", func(http.ResponseWriter, *http.Request) {}},
		{"chunked", func(w http.ResponseWriter, _ *http.Request) {
			for range 5 {
				_, _ = io.WriteString(w, "chunk ")
				w.(http.Flusher).Flush() //nolint:forcetypeassert // every server's writer flushes
			}
		}},
		{"as large as the cap", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, allBytes(defaultBody)) }},
		{"compressed all the same", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped)
		}},
		{"several lines of a field", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Link", "</a>; rel=next")
			w.Header().Add("Link", `</b>; title="x, y"`)
			w.Header().Set("Etag", `"v1"`)
			w.WriteHeader(http.StatusCreated)
		}},
		{"trailers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Digest, X-Never-Set")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("Digest", "abc")
			w.Header().Set(http.TrailerPrefix+"Late", "1")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothForms(t, func(t *testing.T, f form) {
				t.Helper()
				w := newWorld(t, f, test.handler, nil)
				w.client.Transport.(*http.Transport).DisableCompression = true //nolint:forcetypeassert // it is
				first := w.post("k", "{}", "Accept-Encoding", "gzip")
				first.want(t, first.StatusCode, HeaderLookup, "MISS")
				again := w.post("k", "{}").want(t, first.StatusCode, HeaderLookup, "HIT")
				if again.body != first.body {
					t.Errorf("replayed %d bytes; want %d", len(again.body), len(first.body))
				}
				for _, own := range append(slices.Clone(ownFields), "Date") {
					first.Header.Del(own)
					again.Header.Del(own)
				}
				if a, b := fmt.Sprint(first.Header, first.Trailer), fmt.Sprint(again.Header, again.Trailer); a != b {
					t.Errorf("replayed header %s; want %s", b, a)
				}
				if test.name == "trailers" && (again.Trailer.Get("Digest") != "abc" || again.Trailer.Get("Late") != "1") {
					t.Errorf("trailers %v", again.Trailer)
				}
				w.ran(1)
			})
		})
	}
}

func TestWhatIsNeverReplayed(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Set-Cookie", "session=secret")
			h.Set("Authorization", "secret")
			h.Set("Www-Authenticate", "Basic")
			h.Set("Traceparent", "00-secret")
			h.Set("X-Request-Id", "secret")
			h.Set("Date", "Mon, 01 Jan 2001 00:00:00 GMT")
			h.Set("Keep-Alive", "timeout=5")
			h.Set("Access-Control-Allow-Origin", "*")
			h.Set("X-Kept", "1")
		}, nil)
		w.post("k", "{}").want(t, 200, "Set-Cookie", "session=secret", "X-Kept", "1")
		r := w.post("k", "{}").want(t, 200, "Set-Cookie", "", "Authorization", "", "Www-Authenticate", "", "Traceparent", "",
			"X-Request-Id", "", "Keep-Alive", "", "X-Kept", "1")
		if strings.HasPrefix(r.Header.Get("Date"), "Mon, 01 Jan 2001") {
			t.Error("the first answer's Date is replayed")
		}
		if !strings.Contains(r.Header.Get("Access-Control-Expose-Headers"), HeaderReplayed) {
			t.Error("scripts of other origins cannot see that it is a replay")
		}
		for _, rec := range w.store.recs {
			if bytes.Contains(rec.data, []byte("secret")) {
				t.Errorf("a secret is stored: %s", rec.data)
			}
		}
	})
}

func TestOversizedAnswer(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusCreated)
			for range 20 {
				_, _ = io.WriteString(rw, allBytes(100))
			}
		}, func(c *Config) { c.MaxResponse = 1000 })
		first := w.post("k", "{}").want(t, 201, HeaderLookup, "MISS", HeaderIdempotency, "")
		if first.body != strings.Repeat(allBytes(100), 20) {
			t.Fatalf("%d bytes; want the whole answer", len(first.body))
		}
		w.post("k", "{}").want(t, 410, "X-Should-Retry", "false", HeaderReplayed, "").problem(t, "response-not-retained")
		w.post("k", "[]").want(t, 422)
		w.ran(1)
	})
}

// The tombstone is there before the first byte is sent, also when the rest of
// the answer never comes.
func TestOversizedAnswerThatBreaks(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100000")
			_, _ = io.WriteString(rw, allBytes(50000))
			panic(http.ErrAbortHandler)
		}, func(c *Config) { c.MaxResponse = 1000 })
		if r, err := w.send(t.Context(), http.MethodPost, "/pay", "k", "{}"); err == nil {
			t.Fatalf("status %d with %d bytes; want a cut connection", r.StatusCode, len(r.body))
		}
		w.call(http.MethodPost, "/pay", "k", "{}").want(t, 410)
		w.ran(1)
	})
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		next, more := make(chan struct{}, 2), 2
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			for i := range more {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush() //nolint:forcetypeassert // capture flushes
				select {
				case <-next:
				case <-r.Context().Done():
				}
			}
		}, nil)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/pay", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(HeaderKey, "k")
		res, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		lines := bufio.NewReader(res.Body)
		for i := range more { // events arrive while the handler runs
			line, err := lines.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("event %q, %v", line, err)
			}
			_, _ = lines.ReadString('\n')
			during := w.call(http.MethodPost, "/pay", "k", "")
			next <- struct{}{}
			during.want(t, 409) // another process, which knows the record alone, says 410
		}
		if _, err := lines.ReadString('\n'); err != io.EOF {
			t.Fatalf("end of the stream: %v", err)
		}
		w.call(http.MethodPost, "/pay", "k", "").want(t, 200, HeaderLookup, "HIT", "Content-Type", "text/event-stream; charset=utf-8")
		w.ran(1)
	})
}

func TestEarlyHints(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			echo(w, r)
		}, nil)
		var hints atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if code == http.StatusEarlyHints && h.Get("Link") != "" {
					hints.Add(1)
				}
				return nil
			},
		})
		for _, lookup := range []string{"MISS", "HIT"} {
			r, err := w.send(ctx, http.MethodPost, "/pay", "k", "{}")
			if err != nil {
				t.Fatal(err)
			}
			r.want(t, 201, HeaderLookup, lookup, "Link", "")
		}
		if hints.Load() != 1 {
			t.Errorf("%d early hints; want 1, live", hints.Load())
		}
		w.ran(1)
	})
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	backend := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	backend.EnableHTTP2 = true
	backend.StartTLS()
	t.Cleanup(backend.Close)
	w := &world{t: t, store: newMemStore()}
	g, err := NewGateway(GatewayConfig{Guard: Config{Store: w.store, Log: quiet()}, Routes: []Route{
		{Path: "/", Upstream: backend.URL, TLS: backend.Client().Transport.(*http.Transport).TLSClientConfig}, //nolint:forcetypeassert // it is
	}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(g)
	front.EnableHTTP2 = true
	front.StartTLS()
	t.Cleanup(func() {
		front.Close()
		g.Close()
	})
	w.url, w.client = front.URL, front.Client()
	for _, lookup := range []string{"MISS", "HIT"} {
		if r := w.post("k", `{"a":1}`).want(t, 201, HeaderLookup, lookup); r.Proto != "HTTP/2.0" || r.body != `attempt 1 of {"a":1}` {
			t.Fatalf("%s %q", r.Proto, r.body)
		}
	}
}

func TestContinue(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, func(c *Config) { c.MaxRequest = 1000 })
		exchange := func(length int, body string) (continued bool, status int) {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			fmt.Fprintf(c, "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", length)
			br := bufio.NewReader(c)
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != http.StatusContinue {
				_ = res.Body.Close()
				return false, res.StatusCode
			}
			_, _ = io.WriteString(c, body)
			if res, err = http.ReadResponse(br, nil); err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			return true, res.StatusCode
		}
		for range 2 { // the body is needed for the fingerprint, also for a replay
			if continued, status := exchange(2, "{}"); !continued || status != 201 {
				t.Fatalf("continued %v, status %d", continued, status)
			}
		}
		if continued, status := exchange(1001, ""); continued || status != 413 {
			t.Fatalf("too large: continued %v, status %d; want 413 at once", continued, status)
		}
		w.ran(1)
	})
}

// Half an upload never becomes a call.
func TestShortBody(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, f form) {
		t.Helper()
		w := newWorld(t, f, echo, nil)
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 100\r\n\r\n{}")
		if err := c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // it is TCP
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(c)
		_ = c.Close()
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 400")) {
			t.Errorf("answer %q; want 400", answer)
		}
		w.ran(0)
		w.state("")
	})
}

func TestRequestBodies(t *testing.T) {
	t.Parallel()
	form1, type1 := multipartBody(t, "one", "content")
	form2, type2 := multipartBody(t, "two", "content")
	form3, type3 := multipartBody(t, "two", "other content")
	for _, test := range []struct {
		name                 string
		first, second        string
		type1, type2, coding string
		status               int
	}{
		{"JSON in another order", `{"a":1,"b":[1,2]}`, "{ \"b\":[1,2],\n\"a\":1.0e0}", "application/json", "application/json; charset=utf-8", "", 201},
		{"arrays are ordered", `[1,2]`, `[2,1]`, "application/json", "application/json", "", 422},
		{"null is not absent", `{"a":null}`, `{}`, "application/json", "application/json", "", 422},
		{"NFC is not NFD", `["\u00e9"]`, `["e\u0301"]`, "application/json", "application/json", "", 422},
		{"text is compared by bytes", `{"a":1}`, `{"a": 1}`, "text/plain", "text/plain", "", 422},
		{"+json is JSON", `{"a":1}`, `{"a": 1}`, "application/problem+json", "application/problem+json", "", 201},
		{"multipart with another boundary", form1, form2, type1, type2, "", 201},
		{"multipart with other content", form1, form3, type1, type3, "", 422},
		{"broken multipart is compared by bytes", "x", "x", "multipart/form-data; boundary=b", "multipart/form-data; boundary=b", "", 201},
		{"gzip at another level", string(gzipLevel(t, `{"a":1}`, 1)), string(gzipLevel(t, `{"a": 1}`, 9)), "application/json", "application/json", "gzip", 201},
		{"gzip of something else", string(gzipLevel(t, `{"a":1}`, 1)), string(gzipLevel(t, `{"a":2}`, 1)), "application/json", "application/json", "gzip", 422},
		{"unknown coding is compared by bytes", "abc", "abc", "application/json", "application/json", "br", 201},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothForms(t, func(t *testing.T, f form) {
				t.Helper()
				var got string
				w := newWorld(t, f, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					got = string(b)
					w.WriteHeader(http.StatusCreated)
				}, nil)
				pairs := func(media string) []string {
					if test.coding == "" {
						return []string{"Content-Type", media}
					}
					return []string{"Content-Type", media, "Content-Encoding", test.coding}
				}
				w.call(http.MethodPost, "/pay", "k", test.first, pairs(test.type1)...).want(t, 201)
				if got != test.first {
					t.Errorf("the backend got %q; want the body as it was sent", got)
				}
				w.call(http.MethodPost, "/pay", "k", test.second, pairs(test.type2)...).want(t, test.status)
				w.ran(1)
			})
		})
	}
}

func TestRefusedBodies(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	bomb := gzipped(t, strings.Repeat("x", 2<<20))
	for _, test := range []struct {
		name, body, media, coding string
		status                    int
	}{
		{"not JSON", `{"a":`, "application/json", "", 400},
		{"duplicate names", `{"a":1,"\u0061":2}`, "application/json", "", 400},
		{"invalid UTF-8", "[\"\xff\"]", "application/json", "", 400},
		{"lone surrogate", `["\ud800"]`, "application/json", "", 400},
		{"overflow", `[1e400]`, "application/json", "", 400},
		{"too deep", deep, "application/json", "", 400},
		{"trailing data", `{} {}`, "application/json", "", 400},
		{"not gzip", "x", "text/plain", "gzip", 400},
		{"cut gzip", string(bomb[:len(bomb)/2]), "text/plain", "gzip", 400},
		{"gzip bomb", string(bomb), "text/plain", "gzip", 413},
		{"too large", strings.Repeat("x", 1<<20+1), "text/plain", "", 413},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, middleware, echo, nil)
			r := w.call(http.MethodPost, "/pay", "k", test.body, "Content-Type", test.media, "Content-Encoding", test.coding).want(t, test.status)
			if strings.Contains(r.body, "Unmarshal") || strings.Contains(r.body, "jsontext") {
				t.Errorf("the problem speaks Go: %s", r.body)
			}
			w.ran(0)
			w.state("")
		})
	}
}

func multipartBody(t *testing.T, boundary, content string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary("boundary-" + boundary); err != nil {
		t.Fatal(err)
	}
	part, err := w.CreateFormFile("file", "a.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(part, content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

func gzipped(t *testing.T, s string) []byte {
	t.Helper()
	return gzipLevel(t, s, gzip.DefaultCompression)
}

func gzipLevel(t *testing.T, s string, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(z, s)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

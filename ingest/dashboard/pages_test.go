package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"golang.org/x/net/html"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

var paths = []string{
	"/", "/?q=x&status=failed", "/activity", "/environments", "/tasks/" + taskA, "/tasks/" + taskA + "/raw", "/tasks/" + taskA + "/webhook", "/nowhere",
	"/tasks/" + taskB, "/tasks/nonsense",
}

// TestPagesKeepToThePolicy looks for scripts and styles within the pages, which
// browsers would refuse.
func TestPagesKeepToThePolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(ended(snapshot("word"), "word"))
	w.api = hooks("word")
	inline := regexp.MustCompile(`<style|<script>|<script [^>]*>[^<]|\sstyle=|\son[a-z]+=|javascript:|hx-on`)
	for _, path := range paths {
		rec := w.get(path)
		if got := rec.Header().Get("Content-Security-Policy"); got != policy {
			t.Errorf("%s: policy %q", path, got)
		}
		if rec.Header().Get("Cache-Control") != "no-store" || rec.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, rec.Header())
		}
		if at := inline.FindString(rec.Body.String()); at != "" {
			t.Errorf("%s has %q", path, at)
		}
	}
	if w.log.Len() > 0 {
		t.Errorf("log: %s", w.log.String())
	}
}

// skeleton is the elements of a page with the names of their attributes: what
// must not depend on the text that is shown.
func skeleton(t *testing.T, page string) []string {
	t.Helper()
	var out []string
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case html.ErrorToken:
			slices.Sort(out) // members of objects are shown in the order of their names
			return out
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken:
			tok := z.Token()
			words := []string{tok.Data}
			for _, a := range tok.Attr {
				words = append(words, a.Key)
			}
			out = append(out, strings.Join(words, " "))
		case html.TextToken, html.CommentToken, html.DoctypeToken:
		}
	}
}

// TestHostileText renders every page once with a plain word and once with text
// that wants to be more than text: the pages' elements must be the same.
func TestHostileText(t *testing.T) {
	t.Parallel()
	hostile := []string{
		`<script>alert(1)</script><img src=x onerror=alert(1)>`, `" onmouseover="alert(1)" hx-get="/logout`, `'><svg onload=alert(1)>`,
		"</code></pre><h1>\r\nevent: ended\r\ndata: x\r\n", `{{.Key}} ${x} javascript:alert(1)`, "\u202eabc\u2066", "a\x00b", strings.Repeat("<p>", 110),
	}
	render := func(word, path string) []string {
		w := newWorld(t)
		w.put(ended(snapshot(word), word))
		w.api = hooks(word)
		w.rows = []Row{{ID: taskA, Status: goal.Failed, Reason: goal.ToolFailed, Intent: word, Environment: word, Worker: word, AcceptedAt: time.Now(), ChangedAt: time.Now()}}
		return skeleton(t, w.get(path).Body.String())
	}
	for _, path := range []string{"/", "/activity", "/tasks/" + taskA, "/tasks/" + taskA + "/webhook"} {
		want := render("word", path)
		for i, word := range hostile {
			if got := render(word, path); !slices.Equal(got, want) {
				t.Errorf("%s: text %d changes the page's elements", path, i)
			}
		}
	}
	if got := render("word", "/?q="+url.QueryEscape(hostile[0])); slices.Contains(got, "img src onerror") {
		t.Error("the search's text became an element")
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(ended(snapshot("word"), "word"))
	for _, path := range []string{"/tasks/" + taskA, "/tasks/" + taskA + "/goal.json", "/tasks/" + taskA + "/events.json", "/tasks/" + taskA + "/raw"} {
		rec := w.get(path)
		wantStatus(t, rec, http.StatusOK)
		for _, secret := range []string{"token=secret", "user:pw"} {
			if strings.Contains(rec.Body.String(), secret) {
				t.Errorf("%s shows %s", path, secret)
			}
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(ended(snapshot("word"), "word"))
	rec := w.get("/tasks/" + taskA + "/events.json")
	wantStatus(t, rec, http.StatusOK)
	if got := rec.Header().Get("Content-Disposition"); got != `attachment; filename="`+taskA+`.events.json"` {
		t.Errorf("disposition %q", got)
	}
	var events []goal.Event
	if err := json.Unmarshal(rec.Body.Bytes(), &events); err != nil || len(events) != 11 {
		t.Errorf("%d events, %v", len(events), err)
	}
	rec = w.get("/tasks/" + taskA + "/goal.json")
	if _, _, problem := goal.ParseGoal(rec.Body.Bytes()); problem != nil {
		t.Errorf("the goal to download is none: %v", problem)
	}
}

func TestAssets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page := w.get("/").Body.String()
	for _, m := range regexp.MustCompile(`"(/assets/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		rec := w.get(m[1])
		wantStatus(t, rec, http.StatusOK)
		if !strings.Contains(rec.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %v", m[1], rec.Header())
		}
	}
	wantStatus(t, w.get("/assets/htmx/LICENSE"), http.StatusOK)
	wantStatus(t, w.get("/assets/../dashboard.go"), http.StatusNotFound)
	if got := w.get("/assets/dashboard.css?v=old").Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("an old version is kept: %q", got)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 120 {
		r := Row{ID: fmt.Sprintf("tsk_%032x", i), Status: goal.Succeeded, Intent: fmt.Sprint("Ship parcel ", i), Environment: "shop", AcceptedAt: time.Now()}
		if i%10 == 0 {
			r.Status, r.Reason, r.Environment = goal.Failed, goal.ToolFailed, "ops"
		}
		w.rows = append(w.rows, r)
	}
	for _, row := range []struct {
		query        string
		rows, total  int
		older, newer bool
		failed       int
	}{
		{"", 50, 120, true, false, 12},
		{"?page=2", 20, 120, false, true, 12},
		{"?page=99", 0, 120, false, true, 12},
		{"?status=failed", 12, 12, false, false, 12},
		{"?environment=ops", 12, 12, false, false, 12},
		{"?q=parcel+11", 11, 11, false, false, 1},
		{"?q=tool_failed", 12, 12, false, false, 12},
		{"?q=nothing", 0, 0, false, false, 0},
		{"?status=bogus&page=-1", 50, 120, true, false, 12},
	} {
		req := w.get("/" + row.query)
		wantStatus(t, req, http.StatusOK)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/"+row.query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		v := w.d.newListView("acme", filterOf(r))
		if len(v.Rows) != row.rows || v.Total != row.total || (v.Older != "") != row.older || (v.Newer != "") != row.newer {
			t.Errorf("%q: %d of %d rows, older %q, newer %q", row.query, len(v.Rows), v.Total, v.Older, v.Newer)
		}
		for _, c := range v.Counts {
			if c.Status == goal.Failed && c.N != row.failed {
				t.Errorf("%q: %d failed, want %d", row.query, c.N, row.failed)
			}
		}
	}
	part := w.get("/", "HX-Request: true").Body.String()
	if strings.Contains(part, "<html") || !strings.Contains(part, `id="live"`) {
		t.Error("a part of the page is not a part")
	}
	w.whole = false
	if !strings.Contains(w.get("/").Body.String(), "being rebuilt") {
		t.Error("the page does not say that the list is not whole")
	}
}

func TestActivity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Date(2026, 5, 4, 12, 30, 20, 0, time.UTC)
	add := func(accepted, took time.Duration, s goal.State, worker string) {
		from := now.Add(-accepted)
		r := Row{Status: s, AcceptedAt: from, Worker: worker, ChangedAt: from}
		if s.Terminal() {
			end := from.Add(took)
			r.EndedAt, r.ChangedAt = &end, end
		}
		w.rows = append(w.rows, r)
	}
	add(time.Second, 0, goal.Queued, "")
	add(30*time.Second, 0, goal.Running, "w1")
	for i := range 20 {
		add(10*time.Minute, time.Duration(i+1)*100*time.Millisecond, goal.Succeeded, "w1")
	}
	add(20*time.Minute, time.Second, goal.Failed, "w2")
	add(-time.Minute, time.Second, goal.Cancelled, "w2") // another machine's clock
	add(3*time.Hour, time.Second, goal.Failed, "gone")
	v := w.d.newActivityView("acme", now)
	if v.Accepted != 24 || v.Ended != 22 || v.Succeeded != 20 || v.Running != 1 || v.Queued != 1 {
		t.Errorf("counts: %+v", v)
	}
	if v.SuccessRate() != "90.9 %" || v.P95 != 1900*time.Millisecond {
		t.Errorf("rate %s, p95 %s", v.SuccessRate(), v.P95)
	}
	if len(v.Workers) != 2 || v.Workers[0].Running != 1 || v.Workers[0].Succeeded != 20 {
		t.Errorf("workers: %+v", v.Workers)
	}
	if n := len(v.Throughput.Columns[49].Parts); n != 1 || v.Throughput.Columns[49].Values[0] != "20" {
		t.Errorf("column of ten minutes ago: %+v", v.Throughput.Columns[49])
	}
	if v.Latency.Columns[49].Values[1] != "2.00 s" {
		t.Errorf("latency: %+v", v.Latency.Columns[49])
	}
	page := w.get("/activity").Body.String()
	if strings.Count(page, "globex") != 1 {
		t.Error("an administrator does not see every queue")
	}
	w.keys = map[string]Caller{"k": {Tenant: "acme"}}
	if strings.Contains(w.get("/activity", "Authorization: Bearer k").Body.String(), "globex") {
		t.Error("another tenant's queue is shown")
	}
}

func TestEnvironments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page := w.get("/environments").Body.String()
	for _, want := range []string{"orders.get", "&lt;b&gt;", "unsteady", "1.00 s", "files", "answers", "away", "exit status 1", "panic: &lt;b&gt;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, "secret-server") {
		t.Error("a server of an environment that the viewer may not use is shown")
	}
	w.keys = map[string]Caller{"k": {Tenant: "acme"}}
	if page := w.get("/environments", "Authorization: Bearer k").Body.String(); strings.Contains(page, "panic") || !strings.Contains(page, "away") {
		t.Error("what a server wrote is for administrators")
	}
	w.keys = nil
	w.api = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusServiceUnavailable)
		_, _ = rw.Write([]byte(`{"title": "A dependency is away", "status": 503, "detail": "the tools could not be listed"}`))
		return true
	}
	rec := w.get("/environments")
	wantStatus(t, rec, http.StatusServiceUnavailable)
	if !strings.Contains(rec.Body.String(), "could not be listed") {
		t.Error("the page does not say what is wrong")
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(ended(snapshot("word"), "word"))
	const nonce = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for _, row := range []struct {
		name, path, asked, to string
		form                  url.Values
		status                int
	}{
		{"cancel", "/tasks/" + taskA + "/cancel", "/v1/tasks/" + taskA + "/cancel", "/tasks/" + taskA + "?note=cancel", url.Values{}, 303},
		{"resend", "/tasks/" + taskA + "/resend", "/v1/tasks/" + taskA + "/deliveries", "/tasks/" + taskA + "?note=resend", url.Values{}, 303},
		{"again", "/tasks/" + taskA + "/again", "/v1/tasks", "/tasks/" + taskB + "?note=again", url.Values{"nonce": {nonce}}, 303},
		{"again without a nonce", "/tasks/" + taskA + "/again", "", "", url.Values{}, 400},
		{"again with a nonce of one's own", "/tasks/" + taskA + "/again", "", "", url.Values{"nonce": {"a b"}}, 400},
		{"again of no task", "/tasks/" + taskB + "/again", "", "", url.Values{"nonce": {nonce}}, 404},
		{"cancel of no id", "/tasks/*/cancel", "", "", url.Values{}, 404},
	} {
		w.asked, w.bodies = nil, nil
		rec := w.post(row.path, row.form)
		if rec.Code != row.status || rec.Header().Get("Location") != row.to {
			t.Errorf("%s: %d to %q", row.name, rec.Code, rec.Header().Get("Location"))
		}
		if row.asked == "" {
			if len(w.asked) > 0 {
				t.Errorf("%s: the API was asked for %s", row.name, w.asked[0].URL)
			}
			continue
		}
		if len(w.asked) != 1 || w.asked[0].Method != http.MethodPost || w.asked[0].URL.Path != row.asked {
			t.Errorf("%s: the API was asked for %v", row.name, w.asked)
		}
	}
	w.asked, w.bodies = nil, nil
	w.post("/tasks/"+taskA+"/again", url.Values{"nonce": {nonce}})
	key := w.asked[0].Header.Get("Idempotency-Key")
	if copiedFrom(key) != taskA {
		t.Errorf("key %q names no origin", key)
	}
	if _, problem := goal.ParseKey([]string{key}); problem != nil {
		t.Errorf("key %q: %v", key, problem)
	}
	g, _, problem := goal.ParseGoal(w.bodies[0])
	if problem != nil || g.WebhookURL != secretHook || len(g.PreConditions) == 0 {
		t.Errorf("the copy is not whole: %v %+v", problem, g)
	}

	w.api = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusPreconditionFailed)
		_, _ = rw.Write([]byte(`{"title": "A pre-condition does not hold", "status": 412, "errors": [{"pointer": "/x", "detail": "<i>moved</i>"}]}`))
		return true
	}
	rec := w.post("/tasks/"+taskA+"/again", url.Values{"nonce": {nonce}})
	wantStatus(t, rec, http.StatusPreconditionFailed)
	if !strings.Contains(rec.Body.String(), "&lt;i&gt;moved") {
		t.Error("the page does not show the faults")
	}
}

func TestStoreAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.d.cfg.Load = func(context.Context, string, string) (goal.Snapshot, error) {
		return goal.Snapshot{}, fmt.Errorf("nats: secret-host: %w", goal.ErrUnavailable)
	}
	rec := w.get("/tasks/" + taskA)
	wantStatus(t, rec, http.StatusServiceUnavailable)
	if strings.Contains(rec.Body.String(), "secret-host") {
		t.Error("the page shows an internal error")
	}
}

// TestTheAPIRoutesForItself looks that the API's router does not go on with the
// state of the page's, which is read at the same time.
func TestTheAPIRoutesForItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var keys []string
	w.api = func(_ http.ResponseWriter, r *http.Request) bool {
		keys = chi.RouteContext(r.Context()).URLParams.Keys
		return false
	}
	outer := chi.NewRouter()
	outer.Handle("/tasks/{outer}/*", w.d)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/tasks/"+taskA+"/cancel", http.NoBody)
	outer.ServeHTTP(httptest.NewRecorder(), req)
	if !slices.Equal(keys, []string{"kind", "id", "part"}) {
		t.Errorf("the API's route has the parameters %v", keys)
	}
}

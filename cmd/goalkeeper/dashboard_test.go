package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/ingest/dashboard"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// browser is one headless Chromium for a test.
type browser struct {
	t       *testing.T
	ctx     context.Context
	shots   string
	console chan string // errors that pages wrote
}

// newBrowser starts Chromium, or skips the test where there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: the pages are not looked at")
	}
	shots := os.Getenv("GOALKEEPER_ARTIFACTS")
	if shots == "" {
		shots = t.TempDir()
	}
	if err := os.MkdirAll(shots, 0o750); err != nil { //nolint:gosec // who runs the tests says where
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	ctx, stop := chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))...)
	ctx, end := chromedp.NewContext(ctx)
	b := &browser{t: t, ctx: ctx, shots: shots, console: make(chan string, 1000)}
	messages := chromedp.Console(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				b.console <- m.String() + " " + m.URL
			}
		}
	}()
	t.Cleanup(func() {
		end()
		stop()
		cancel()
		<-done
		close(b.console)
		for m := range b.console {
			t.Errorf("console: %s", m)
		}
	})
	b.screen(1280, 860, "light")
	return b
}

// screen sets the size of the window and the colour scheme.
func (b *browser) screen(width, height int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height, chromedp.EmulateScale(1)))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// scripts says whether pages may run scripts from the next one on.
func (b *browser) scripts(on bool) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

func (b *browser) click(sel string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(sel)))
}

func (b *browser) keys(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// eval is the value of an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to hold in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); ; {
		// A page that is being left has no document for a moment.
		v, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean(document.body && ("+expression+"))"))
		if err == nil && v {
			return
		}
		if time.Now().After(end) {
			b.shot("stuck-" + strings.ReplaceAll(b.t.Name(), "/", "-"))
			b.t.Fatalf("never held: %s (%v)", expression, err)
		}
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatal(b.ctx.Err())
		}
	}
}

// shot saves a picture of the whole page.
func (b *browser) shot(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.shots, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// gallery saves the page in light, dark and at a phone's width, and looks that
// nothing sticks out to the side.
func (b *browser) gallery(name string) {
	b.t.Helper()
	for _, s := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"light", 1280, 860, "light"}, {"dark", 1280, 860, "dark"}, {"phone", 390, 844, "light"}} {
		b.screen(s.width, s.height, s.scheme)
		if over := eval[int](b, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
			b.t.Errorf("%s, %s: the page is %d pixels wider than the window", name, s.name, over)
		}
		for _, fault := range eval[[]string](b, audit) {
			b.t.Errorf("%s, %s: %s", name, s.name, fault)
		}
		b.shot(name + "-" + s.name)
	}
	b.screen(1280, 860, "light")
}

// audit lists what a reader with a screen reader, or with weak eyes, would
// stumble over: controls and pictures without a name, ids that are there twice,
// not exactly one main heading, and text whose contrast is below what WCAG 2.2
// asks for (4.5 to 1, 3 to 1 for large text).
const audit = `(() => {
	const faults = [];
	const name = (e) => (e.getAttribute("aria-label") || e.textContent || (e.labels && e.labels[0] && e.labels[0].textContent) || e.title || "").trim();
	for (const e of document.querySelectorAll("a, button, summary, select, input:not([type=hidden])")) {
		if (!name(e)) faults.push("no name: " + e.outerHTML.slice(0, 120));
	}
	for (const e of document.querySelectorAll("svg")) {
		if (!e.closest("[aria-hidden=true], [role=img][aria-label], .legend")) faults.push("no name: " + e.outerHTML.slice(0, 120));
	}
	const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
	for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push("id twice: " + id);
	if (document.querySelectorAll("h1").length !== 1) faults.push("main headings: " + document.querySelectorAll("h1").length);
	const rgba = (c) => { const m = c.match(/[\d.]+/g).map(Number); return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
	const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, k, i) => { const v = c[i] / 255; return sum + k * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (!walk.currentNode.data.trim() || !e.offsetParent || e.closest(".sr, .skip, svg, option, noscript")) continue;
		const style = getComputedStyle(e), size = parseFloat(style.fontSize);
		const [a, b] = [light(rgba(style.color)), light(behind(e))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < (size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5)) faults.push("contrast " + ratio.toFixed(2) + ": " + walk.currentNode.data.trim().slice(0, 40));
	}
	return [...new Set(faults)];
})()`

// allowConsole takes the messages that a step is known to cause.
func (b *browser) allowConsole(part string) {
	b.t.Helper()
	var rest []string
	for {
		select {
		case m := <-b.console:
			if !strings.Contains(m, part) {
				rest = append(rest, m)
			}
			continue
		default:
		}
		break
	}
	for _, m := range rest {
		b.console <- m
	}
}

// slowShop is the demo's shop with a door: calls to /wait stand in front of it
// until it is opened, /flaky fails twice before it works, and /broken always
// refuses.
type slowShop struct {
	demoShop

	door chan struct{}
	mu   sync.Mutex
	n    map[string]int // calls by key; guarded by mu
}

// ServeHTTP implements http.Handler.
func (s *slowShop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/wait"), "/flaky"), "/broken")
	switch {
	case strings.HasPrefix(r.URL.Path, "/wait"):
		select {
		case <-s.door:
		case <-r.Context().Done():
			return
		}
	case strings.HasPrefix(r.URL.Path, "/flaky"):
		s.mu.Lock()
		s.n[r.Header.Get("Idempotency-Key")]++
		n := s.n[r.Header.Get("Idempotency-Key")]
		s.mu.Unlock()
		if n < 3 {
			http.Error(w, "the payment provider is busy", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Idempotent-Replayed", "true")
	case strings.HasPrefix(r.URL.Path, "/broken"):
		http.Error(w, `{"error": "the order is <locked> by another clerk"}`, http.StatusConflict)
		return
	}
	r.URL.Path = rest
	s.demoShop.ServeHTTP(w, r)
}

// dashboardSite is a site with the slow shop behind its tools.
type dashboardSite struct {
	*site

	shop *slowShop
	hook string // a receiver that refuses every second call
}

func newDashboardSite(t *testing.T, edit func(*config)) *dashboardSite {
	t.Helper()
	shop := &slowShop{door: make(chan struct{}), n: map[string]int{}}
	backend := httptest.NewServer(shop)
	t.Cleanup(backend.Close)
	var hooks struct {
		sync.Mutex
		n int
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hooks.Lock()
		defer hooks.Unlock()
		if hooks.n++; hooks.n%2 == 1 {
			http.Error(w, "try again, <please>", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	d := &dashboardSite{shop: shop, hook: receiver.URL + "/hooks/goals?token=hush"}
	d.site = newSite(t, true, func(c *config) {
		shopConfig(c, backend.URL)
		if edit != nil {
			edit(c)
		}
	})
	shop.docs = d.service.store.Documents()
	if err := shop.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// shopConfig has an environment per story, for scripts play the same actions
// for every goal of an environment.
func shopConfig(c *config, backend string) {
	none := 0
	tools := []toolConfig{
		{Name: "orders.get", Description: "Read an order", Method: http.MethodGet, URL: backend + "/orders/{id}", InputSchema: map[string]any{
			"type": "object", "properties": map[string]any{"id": map[string]any{"type": "string"}}, "required": []string{"id"},
		}},
		{Name: "payments.refund", Description: "Give money back to a customer", URL: backend + "/flaky/refunds", Replay: goal.ReplayKeyed},
		{Name: "orders.set_status", Description: "Change the status of an order", URL: backend + "/orders/{id}/status", Replay: goal.ReplayKeyed},
		{Name: "mail.send", Description: "Send a mail to the customer", URL: backend + "/wait/mails", Replay: goal.ReplayUnsafe, Timeout: duration(time.Minute), Retries: &none},
		{Name: "orders.lock", Description: "Lock an order for a clerk", URL: backend + "/broken/orders/{id}/status", Replay: goal.ReplayIdempotent, Retries: &none},
	}
	script := func(actions ...scriptAction) plannerConfig { return plannerConfig{Type: "script", Script: actions} }
	act := func(tool, args string) scriptAction { return scriptAction{Tool: tool, JSON: args} }
	get := act("orders.get", `{"id": "W1001"}`)
	refund := act("payments.refund", `{"order": "W1001", "customer": "c42", "amount": 80}`)
	status := act("orders.set_status", `{"id": "W1001", "status": "refunded"}`)
	mail := act("mail.send", `{"order": "W1001", "text": "Your refund of 80 is on its way. <b>Thank you</b> for your patience."}`)
	lock := act("orders.lock", `{"id": "W1002", "status": "locked"}`)
	shop := stateConfig{Namespace: "shop"}
	for name, planner := range map[string]plannerConfig{
		"shop": script(get, refund, status, mail), "shop-steps": script(get, get, get), "shop-locked": script(get, lock, lock, lock),
	} {
		c.Environments = append(c.Environments, environmentConfig{Name: name, State: shop, Tools: tools, Planner: planner})
	}
	slices.SortFunc(c.Environments, func(a, b environmentConfig) int { return strings.Compare(a.Name, b.Name) })
	c.Environments = append(c.Environments, environmentConfig{Name: "default"},
		environmentConfig{Name: "files", MCP: []mcpConfig{{Name: "disk", Command: []string{"sh", "-c", "echo the disk is <full> >&2; exit 1"}}}})
}

// refundGoal needs every action of the shop's script.
func (d *dashboardSite) refundGoal() map[string]any {
	return map[string]any{
		"goal": map[string]any{"intent": "Refund order W1001 and tell the customer about it", "target_state": map[string]any{
			"orders":    map[string]any{"W1001": map[string]any{"status": "refunded", "total": 80}},
			"customers": map[string]any{"c42": map[string]any{"credit": 120, "tier": "silver"}},
			"mails":     map[string]any{"W1001": map[string]any{"sent": true}},
		}},
		"guardrails":     map[string]any{"max_steps": 8, "timeout_seconds": 120, "max_tokens": 20000, "allowed_tools": []string{"orders.get", "payments.refund", "orders.set_status", "mail.send"}},
		"pre_conditions": map[string]any{"match": map[string]any{"customers": map[string]any{"c42": map[string]any{"tier": "silver"}}}},
		"context":        map[string]any{"ticket": "T-88"},
		"environment":    "shop", "webhook_url": d.hook,
	}
}

// failingGoal runs the three actions of an environment and reaches nothing.
func failingGoal(env, intent string, steps int) map[string]any {
	return map[string]any{
		"goal":       map[string]any{"intent": intent, "target_state": map[string]any{"orders": map[string]any{"W1002": map[string]any{"status": "locked"}}}},
		"guardrails": map[string]any{"max_steps": steps, "timeout_seconds": 60}, "environment": env,
	}
}

func (d *dashboardSite) waitStatus(id string, want goal.State) {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-tick.C {
		if d.task(id).Status == want {
			return
		}
	}
	d.t.Fatalf("task %s is %s, want %s", id, d.task(id).Status, want)
}

// TestDashboardTask follows one goal in the browser, from its fourth step to
// the webhook's second attempt, without reloading the page.
func TestDashboardTask(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	d := newDashboardSite(t, nil)
	id := d.submit("refund-W1001", d.refundGoal())
	d.waitStatus(id, goal.Running)
	b.open(d.url + "/tasks/" + id)
	b.until(`document.querySelector("#step-4 .b-flight")`)
	b.until(`document.querySelector("#target h2 span").textContent.startsWith("4 of 5")`)
	b.click("#step-2 summary")
	b.until(`document.querySelector("#step-2").open`)
	width := eval[string](b, `document.querySelector("#step-4 .b-flight").getAttribute("width")`)
	b.until(`document.querySelector("#step-4 .b-flight").getAttribute("width") !== ` + strconv.Quote(width)) // it grows
	if !eval[bool](b, `document.querySelector("#step-2").open`) {
		t.Error("an open step was closed by an update")
	}
	if n := eval[int](b, `document.querySelectorAll("#step-2 .b-call").length`); n != 3 {
		t.Errorf("step 2 has %d bars for its calls, want one for each of 3 attempts", n)
	}
	for _, want := range []string{"3 attempts", "answered from the backend's record", "/customers/c42/credit", `"amount": 80`, "keyed"} {
		if text := eval[string](b, `document.querySelector("#step-2").textContent`); !strings.Contains(text, want) {
			t.Errorf("step 2 lacks %q", want)
		}
	}
	b.gallery("task-running")
	eval[bool](b, `window.stayed = true`) // gone after a reload
	close(d.shop.door)
	b.until(`document.querySelector("#head .status").textContent.trim() === "Succeeded"`)
	b.until(`document.querySelector("#target h2 span").textContent.startsWith("5 of 5")`)
	b.until(`document.querySelector("#webhook .attempts li")`)
	if !eval[bool](b, `window.stayed === true`) {
		t.Error("the page was reloaded")
	}
	b.click("#step-4 summary")
	b.gallery("task-succeeded")

	b.click("#webhook form button") // the receiver refuses every second call
	b.until(`location.search === "?note=resend"`)
	b.until(`document.querySelectorAll("#webhook .attempts li").length >= 2`)
	if strings.Contains(eval[string](b, `document.documentElement.outerHTML`), "hush") {
		t.Error("the page shows the query of the webhook's URL")
	}
}

// TestDashboardList looks at the list with tasks in every state, narrows it,
// moves by keys, cancels and submits again.
func TestDashboardList(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	d := newDashboardSite(t, func(c *config) { c.Worker.Concurrency = 1 })
	b.open(d.url + "/")
	b.until(`document.querySelector(".empty h2")`)
	b.gallery("list-empty")

	locked := d.submit("locked", failingGoal("shop-locked", "Lock order W1002 for the clerk in charge", 9))
	d.waitStatus(locked, goal.Failed)
	steps := d.submit("steps", failingGoal("shop-steps", "Find out where order W1002 is and lock it", 2))
	d.waitStatus(steps, goal.Failed)
	profile := func(plan string) map[string]any {
		return map[string]any{
			"goal":       map[string]any{"intent": "Move user u7 to the " + plan + " plan", "target_state": map[string]any{"profiles": map[string]any{"u7": map[string]any{"plan": plan}}}},
			"guardrails": map[string]any{"max_steps": 5, "timeout_seconds": 60},
		}
	}
	for i, plan := range []string{"pro", "team", "free"} {
		d.waitStatus(d.submit(fmt.Sprint("plan-", i), profile(plan)), goal.Succeeded)
	}
	hostile := failingGoal("shop-steps", "<script>document.title='owned'</script><img src=x onerror=alert(1)> \u202eevil \r\nevent: x\r\ndata: <b>bold</b>", 2)
	hostileID := d.submit("hostile", hostile)
	d.waitStatus(hostileID, goal.Failed)
	running := d.submit("running", d.refundGoal())
	d.waitStatus(running, goal.Running)
	guarded := profile("enterprise")
	guarded["pre_conditions"] = map[string]any{"profiles": map[string]any{"u7": map[string]any{"seats": 1, "name": "Ines"}}}
	guardedID := d.submit("guarded", guarded)
	queued := d.submit("queued", profile("basic"))

	b.until(`document.querySelector("#r-` + queued + ` .s-queued")`) // by polling
	b.until(`document.querySelector("#r-` + running + ` .s-running")`)
	b.gallery("list")
	if title := eval[string](b, `document.title`); title != "Tasks · Goalkeeper" {
		t.Errorf("title = %q", title)
	}

	// Keys: j goes to the first row, again to the second, enter opens it.
	b.keys("j")
	b.keys("j")
	b.keys("\r")
	b.until(`location.pathname === "/tasks/` + guardedID + `"`)
	b.until(`document.querySelector("#conditions li")`)
	b.gallery("task-queued")

	// What a goal says is text.
	b.open(d.url + "/tasks/" + hostileID)
	if eval[bool](b, `document.title === "owned" || document.querySelector("main img, main script") !== null`) {
		t.Error("a goal's intent became part of the page")
	}
	b.gallery("task-hostile")

	// Cancel the queued task, without any script.
	b.scripts(false)
	b.open(d.url + "/tasks/" + queued)
	b.click("#cancel summary")
	b.click("#cancel form button")
	b.until(`location.search === "?note=cancel"`)
	b.until(`document.querySelector("#head .status").textContent.trim() === "Cancelled"`)
	b.open(d.url + "/?status=cancelled")
	b.until(`document.querySelectorAll(".tasks tbody tr").length === 1`)
	b.shot("list-without-scripts")
	b.scripts(true)

	// The state moves before the guarded task starts: it fails at the start.
	docs := d.service.store.Documents()
	_, rev, err := docs.Get(t.Context(), "default", "profiles", "u7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := docs.Put(t.Context(), "default", "profiles", "u7", json.RawMessage(`{"plan": "free", "seats": 3, "name": "Ines"}`), rev); err != nil {
		t.Fatal(err)
	}
	close(d.shop.door)
	d.waitStatus(running, goal.Succeeded)
	d.waitStatus(guardedID, goal.Failed)
	b.open(d.url + "/tasks/" + guardedID)
	b.until(`document.querySelector("#conditions .m-left .have").textContent.includes("3")`)
	b.gallery("task-precondition")

	// Narrow the list: by status, then by words.
	b.open(d.url + "/?status=failed")
	b.until(`document.querySelectorAll(".tasks tbody tr").length === 4`)
	b.keys("/")
	b.until(`document.activeElement.id === "q"`)
	eval[bool](b, `document.activeElement.value = ""; true`) // the protocol types the slash although the page took the key
	b.keys("clerk")
	b.until(`document.querySelectorAll(".tasks tbody tr").length === 1 && document.querySelector("#r-` + locked + `")`)
	b.until(`location.search.includes("q=clerk")`)
	b.gallery("list-filtered")
	b.do(chromedp.SetValue(chromedp.CSS("#q"), "nothing of this kind"))
	eval[bool](b, `document.querySelector("#q").dispatchEvent(new Event("input", {bubbles: true}))`)
	b.until(`document.querySelector(".empty h2").textContent === "Nothing matches"`)

	// A guardrail that tripped, and the steps that failed.
	b.open(d.url + "/tasks/" + locked + "#step-2")
	b.until(`document.querySelector("#step-2").open && document.querySelector("#guardrails .tripped")`)
	b.gallery("task-tripped")

	// Submit again: a new task, which names the one it is a copy of.
	b.click("#again")
	b.until(`location.search === "?note=again" && location.pathname !== "/tasks/` + locked + `"`)
	if copyOf := eval[string](b, `document.querySelector("#head .facts a").getAttribute("href")`); copyOf != "/tasks/"+locked {
		t.Errorf("copy of %s, want %s", copyOf, locked)
	}

	b.click("#copy-as summary")
	b.until(`document.querySelector("#as-curl").textContent.includes("--data-binary") && document.querySelector("#as-0").textContent.startsWith("goalkeeper watch")`)
	b.shot("copy-as-light")
	b.click("#copy-as .copy")
	b.until(`document.querySelector("#say").textContent === "Copied" || document.querySelector("#copy-as .copy").textContent !== "Copy"`)

	b.open(d.url + "/tasks/" + locked + "/raw")
	var events []goal.Event
	if err := json.Unmarshal([]byte(eval[string](b, `document.querySelector("#raw-text").textContent`)), &events); err != nil || len(events) < 4 {
		t.Errorf("raw events: %d, %v", len(events), err)
	}
	b.gallery("raw")

	b.open(d.url + "/activity")
	b.until(`document.querySelector("#workers tbody tr") && document.querySelector("#queues tbody tr")`)
	b.gallery("activity")
	b.open(d.url + "/environments")
	b.until(`document.querySelector(".tools-table .h-failing") && document.querySelector(".tools-table .h-healthy")`)
	b.until(`document.querySelector(".server .health").textContent === "away"`)
	b.click(".server summary")
	b.gallery("environments")
	b.open(d.url + "/nowhere")
	b.allowConsole("404")
	b.gallery("not-found")
}

// TestDashboardLogin logs in with a key, sees one tenant only, and logs out.
func TestDashboardLogin(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	key, other := "gk_live_0123456789abcdef", "gk_live_other"
	d := newDashboardSite(t, func(c *config) {
		c.Tenants = []tenantConfig{
			{Name: "acme", Keys: []keyConfig{{Name: "ops", SHA256: ingest.HashKey(key), Roles: []string{"admin"}}}},
			{Name: "globex", Keys: []keyConfig{{Name: "dev", SHA256: ingest.HashKey(other)}}},
		}
	})
	b.open(d.url + "/activity?x=1")
	b.until(`location.pathname === "/login"`)
	b.gallery("login")
	b.do(chromedp.SendKeys(chromedp.CSS("#key"), "wrong\r"))
	b.until(`document.querySelector("#key-error")`)
	b.allowConsole("401")
	b.shot("login-refused")
	b.do(chromedp.SendKeys(chromedp.CSS("#key"), key+"\r"))
	b.until(`location.pathname === "/activity" && document.querySelectorAll("#queues tbody tr").length === 2`)
	if eval[bool](b, `document.cookie.includes("goalkeeper")`) {
		t.Error("a script can read the session's cookie")
	}
	b.click(".bar form button")
	b.until(`location.pathname === "/login"`)
	b.open(d.url + "/")
	b.until(`location.pathname === "/login"`)
}

// TestDashboardStories draws what no quick test can make happen: a take-over
// after a crash, refusals, a planner that takes its time, an hour of work.
func TestDashboardStories(t *testing.T) {
	t.Parallel()
	story := takeoverStory(time.Now().Add(-90 * time.Second))
	d, err := dashboard.New(dashboard.Config{
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/events") { // nothing happens while the page is looked at
				<-r.Context().Done()
				return
			}
			fmt.Fprint(w, `{}`)
		}),
		Authenticate: func(*http.Request) (dashboard.Caller, error) {
			return dashboard.Caller{Tenant: "acme", Name: "ops", Admin: true}, nil
		},
		Load: func(context.Context, string, string) (goal.Snapshot, error) { return story, nil },
		Each: busyHour(time.Now()),
		Queue: func(_ context.Context, tenant string) (dashboard.Queue, error) {
			if tenant == "globex" {
				return dashboard.Queue{}, nil
			}
			return dashboard.Queue{Pending: 1284, InFlight: 64, Oldest: time.Now().Add(-42 * time.Second)}, nil
		},
		Tenants: []string{"acme", "globex"},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	b := newBrowser(t) // closed first: its event stream would keep the server open
	b.open(srv.URL + "/activity")
	b.until(`document.querySelectorAll(".plot rect").length > 100`)
	b.gallery("activity-busy")
	b.open(srv.URL + "/")
	b.until(`document.querySelector(".pages [rel=next]")`)
	b.gallery("list-busy")
	b.keys("j")
	b.keys("j")
	eval[bool](b, `window.row = document.activeElement.closest("tr").id; window.polls = 0; document.addEventListener("htmx:after:swap", () => polls++); true`)
	b.until(`polls >= 2`)
	if !eval[bool](b, `document.activeElement.closest("tr") !== null && document.activeElement.closest("tr").id === row`) {
		t.Error("the list's updates take the focus away")
	}
	b.open(srv.URL + "/tasks/" + story.Submission.TaskID)
	b.click("#step-3 summary")
	b.until(`document.querySelector(".k-resumed")`)
	b.gallery("task-takeover")
	b.keys("k") // from the step that was clicked
	b.until(`document.activeElement.closest("#step-2")`)
	b.click("#pause")
	b.until(`document.querySelector("#pause-text").textContent === "Paused"`)
	eval[bool](b, `window.stayed = true`)
	b.click("#pause")
	b.until(`window.stayed === undefined && document.querySelector("#pause-text").textContent === "Live"`)
}

// takeoverStory is a task that began then, was refused a tool, lost its worker
// within a call, and is running.
func takeoverStory(began time.Time) goal.Snapshot {
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	left := []goal.Difference{
		{Pointer: "/reservations/EHGLP3/cabin", Want: raw(`"economy"`), Have: raw(`"business"`)},
		{Pointer: "/reservations/EHGLP3/flights/1/date", Want: raw(`"2026-05-21"`), Have: raw(`"2026-05-18"`)},
		{Pointer: "/users/emma_kim_9957/payment_methods/gift_card_2/amount", Want: raw(`250`)},
	}
	seen := func(n int) *goal.Observed { return &goal.Observed{Left: left[:n], LeftTotal: n, Leaves: 5} }
	decide := func(n, step int, t, took float64, tool, args, why string, tokens int64) goal.Event {
		return goal.Event{N: n, Type: goal.StepDecided, Time: at(t), Step: step, Worker: "worker-7f9c", Decision: &goal.Decision{
			Action: goal.Action{Tool: tool, Arguments: raw(args)}, Key: strings.Repeat("9c4e", 16), Replay: goal.ReplayKeyed, Why: why, Tokens: tokens,
			Took: goal.Millis(time.Duration(took * float64(time.Second))),
		}}
	}
	complete := func(n, step int, t float64, left int, o goal.Outcome, took float64) goal.Event {
		o.Took = goal.Millis(time.Duration(took * float64(time.Second)))
		return goal.Event{N: n, Type: goal.StepCompleted, Time: at(t), Step: step, Worker: "worker-7f9c", Outcome: &o, Observed: seen(left)}
	}
	lookup := `{"reservation_id": "EHGLP3"}`
	change := `{"reservation_id": "EHGLP3", "cabin": "economy", "flights": [{"number": "HAT156", "date": "2026-05-17"}, {"number": "HAT021", "date": "2026-05-21"}]}`
	events := []goal.Event{
		{N: 1, Type: goal.TaskStarted, Time: at(6), Worker: "worker-7f9c", Started: &goal.Started{Attempt: 1, Deadline: at(306)}},
		{N: 2, Type: goal.StateObserved, Time: at(6.2), Worker: "worker-7f9c", Observed: seen(3)},
		decide(3, 1, 10.1, 3.8, "reservations.get", lookup, "Look at the reservation before changing it.", 1240),
		complete(4, 1, 10.6, 3, goal.Outcome{Kind: goal.CallOK, Status: 200, Attempts: 1, Result: raw(`{"reservation_id": "EHGLP3", "cabin": "business", "total_baggages": 3}`)}, 0.4),
		{N: 5, Type: goal.StepRefused, Time: at(15), Step: 2, Worker: "worker-7f9c", Refusal: &goal.Refusal{
			Action: goal.Action{Tool: "reservations.delete", Arguments: raw(lookup)}, Kind: "not_allowed", Tokens: 1310, Took: goal.Millis(4200 * time.Millisecond),
			Message: "the tool reservations.delete is not among the allowed tools", Why: "Cancel the booking and make a new one.",
		}},
		decide(6, 3, 20.5, 5.2, "reservations.update", change, "Change cabin and the second flight in one call; the fare difference goes to the gift card.", 1402),
		{N: 7, Type: goal.TaskResumed, Time: at(36), Worker: "worker-2b1d", Started: &goal.Started{Attempt: 2, Deadline: at(306)}},
		complete(8, 3, 39.4, 1, goal.Outcome{Kind: goal.CallOK, Status: 200, Attempts: 2, Repeated: true, Replayed: true, Result: raw(`{"updated": true}`)}, 2.9),
		decide(9, 4, 45, 4.9, "payments.refund", `{"user": "emma_kim_9957", "method": "gift_card_2", "amount": 250}`, "The rest goes back to the gift card.", 1377),
		complete(10, 4, 57, 1, goal.Outcome{Kind: goal.CallUnavailable, Status: 503, Attempts: 4, Message: "503 Service Unavailable, four times"}, 11.8),
		decide(11, 5, 63, 5.1, "payments.refund", `{"user": "emma_kim_9957", "method": "gift_card_2", "amount": 250}`, "Try the refund again.", 1391),
	}
	for i := range events {
		if events[i].N > 7 {
			events[i].Worker = "worker-2b1d"
		}
	}
	return goal.Snapshot{Accepted: goal.Accepted{Seq: 1, At: began, Expires: began.Add(week), Submission: goal.Submission{
		TaskID: "tsk_5f0c9c1fe21f0a54be2c86b0a1f0a3d7", Tenant: "acme", Key: "k", Via: "nats", Goal: goal.Goal{
			Objective: goal.Objective{
				Intent:      "Move Emma Kim's second flight to 21 May, change the cabin to economy and give the difference back to her gift card",
				TargetState: raw(`{"reservations": {"EHGLP3": {"cabin": "economy", "flights/1/date": "2026-05-21", "total_baggages": 3, "insurance": null}}, "users": {"emma_kim_9957": {"payment_methods": {"gift_card_2": {"amount": 250}}}}}`),
			},
			Guardrails:  goal.Guardrails{MaxSteps: 12, TimeoutSeconds: 300, MaxTokens: 20_000, AllowedTools: []string{"reservations.get", "reservations.update", "payments.refund"}},
			Environment: "airline", WebhookURL: "https://hooks.example.com/goals",
			PreConditions: raw(`{"revisions": {"reservations/EHGLP3": 4}, "match": {"users": {"emma_kim_9957": {"membership": "gold"}}}}`),
		},
	}}, Events: events}
}

const week = 7 * 24 * time.Hour

// busyHour is a list with some 1,500 tasks that came within the hour.
func busyHour(now time.Time) func(string, func(dashboard.Row) bool) bool {
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same hour every time
	intents := []string{
		"Refund order W%d and tell the customer", "Move reservation %d to the next day", "Set user %d to the pro plan with five seats",
		"Find the parcel of order %d and send it again", "Close ticket %d with a summary", "Restock product %d to at least forty pieces",
	}
	var rows []dashboard.Row
	for ms := 0; ms < 3_600_000; ms += rnd.IntN(5000) * min(1+ms/1000, 20) / 20 { // more and more of late
		age := time.Duration(ms) * time.Millisecond
		n := rnd.IntN(90_000) + 10_000
		accepted := now.Add(-age)
		r := dashboard.Row{
			ID: goal.TaskID("acme", fmt.Sprint(age, n)), Intent: fmt.Sprintf(intents[n%len(intents)], n), Environment: []string{"shop", "airline", "support"}[n%3],
			AcceptedAt: accepted, Worker: []string{"worker-7f9c", "worker-2b1d", "worker-a04e"}[n%3], ChangedAt: accepted, Usage: goal.Usage{Steps: 1 + n%7},
		}
		took := time.Duration(1500+rnd.IntN(9000)+rnd.IntN(100)/97*20_000) * time.Millisecond
		end := accepted.Add(took)
		switch {
		case age < 2*time.Second:
			r.Status, r.Worker, r.Usage = goal.Queued, "", goal.Usage{}
		case end.After(now):
			r.Status, r.LeftTotal = goal.Running, 1+n%4
		case n%23 == 0:
			r.Status, r.Reason, r.EndedAt, r.LeftTotal = goal.Failed, goal.Reasons()[1+n%9], &end, 1+n%3
		case n%61 == 0:
			r.Status, r.Reason, r.EndedAt, r.LeftTotal = goal.Cancelled, goal.CancelRequested, &end, 1
		default:
			r.Status, r.Reason, r.EndedAt = goal.Succeeded, goal.TargetStateReached, &end
		}
		rows = append(rows, r)
	}
	return func(_ string, fn func(dashboard.Row) bool) bool {
		for _, r := range rows {
			if !fn(r) {
				break
			}
		}
		return true
	}
}

package dashboard

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Caller is who looks.
type Caller struct {
	Tenant string
	Name   string // of the key
	Admin  bool   // sees every tenant's queue
}

// Row is a task as the list knows it.
type Row struct {
	ID          string
	Status      goal.State
	Reason      goal.Reason
	Intent      string
	Environment string
	AcceptedAt  time.Time
	StartedAt   *time.Time
	EndedAt     *time.Time
	Usage       goal.Usage
	LeftTotal   int
	Worker      string    // who drives or drove it; empty: nobody yet
	ChangedAt   time.Time // last event; zero: none
}

// Queue is the state of a tenant's queue.
type Queue struct {
	Pending  int       // not yet with a worker
	InFlight int       // with workers
	Oldest   time.Time // acceptance of the oldest pending goal; zero: none
}

// ToolHealth is what this process has seen of a tool since it started.
type ToolHealth struct {
	Environment, Tool string
	Calls, Failed     uint64
	Mean              time.Duration
}

// ServerHealth is how an MCP server answers now.
type ServerHealth struct {
	Environment, Name string
	Tools             int
	Err               error  // it does not answer; shown to administrators only, as is
	Stderr            string // the last it wrote there
}

// Config is what a Dashboard needs. Its functions are called concurrently.
type Config struct {
	// API is the HTTP API, called in process with the viewer's credentials.
	API http.Handler
	// Authenticate says who calls, as the API does. A *goal.Problem is shown.
	Authenticate func(r *http.Request) (Caller, error)
	// Load reads all that is known about a task of the tenant. goal.ErrNotFound.
	Load func(ctx context.Context, tenant, task string) (goal.Snapshot, error)
	// Each calls fn for the tenant's tasks, newest first, until it returns
	// false. It says whether the list is whole.
	Each func(tenant string, fn func(Row) bool) (whole bool)
	// Queue reads a tenant's queue. nil: queues are not shown.
	Queue func(ctx context.Context, tenant string) (Queue, error)
	// Health is what is known of the tools. nil: nothing.
	Health func() []ToolHealth
	// Servers asks the MCP servers; it must end with its context. nil: there
	// are none.
	Servers func(ctx context.Context) []ServerHealth
	Tenants []string // in the order shown to an administrator
	Log     *slog.Logger
}

const (
	loadTimeout = 3 * time.Second  // of one read for a page
	callTimeout = 20 * time.Second // of one action
	formLimit   = 8 << 10          // bytes of a form
)

// Dashboard is the pages. It may be called concurrently.
type Dashboard struct {
	cfg      Config
	sessions *sessions
	viewers  atomic.Int64 // live pages
	pages    *template.Template
	handler  http.Handler
}

//go:embed templates/*.html
var templateFiles embed.FS

// New checks the settings and makes the pages.
func New(cfg Config) (*Dashboard, error) {
	if cfg.API == nil || cfg.Authenticate == nil || cfg.Load == nil || cfg.Each == nil {
		return nil, errors.New("dashboard: API, Authenticate, Load and Each are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	assets, err := newAssets()
	if err != nil {
		return nil, err
	}
	pages, err := template.New("").Funcs(functions(assets)).ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d := &Dashboard{cfg: cfg, sessions: newSessions(), pages: pages}
	mux := chi.NewRouter()
	mux.Handle("/assets/*", assets)
	mux.Get("/login", d.loginPage)
	mux.Post("/login", d.login)
	mux.Post("/logout", d.logout)
	mux.Group(d.routes)
	mux.NotFound(d.signedIn(func(w http.ResponseWriter, r *http.Request) {
		d.fail(w, r, missing("There is no such page", ""))
	}).ServeHTTP)
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		d.fail(w, r, &goal.Problem{Title: "Method not allowed", Status: http.StatusMethodNotAllowed})
	})
	d.handler = secure(mux)
	return d, nil
}

func (d *Dashboard) routes(r chi.Router) {
	r.Use(func(next http.Handler) http.Handler { return d.signedIn(next.ServeHTTP) })
	read := func(pattern string, h http.HandlerFunc) {
		r.Get(pattern, h)
		r.Head(pattern, h)
	}
	read("/", d.listPage)
	read("/activity", d.activityPage)
	read("/environments", d.environmentsPage)
	read("/tasks/{id}", d.taskPage)
	read("/tasks/{id}/webhook", d.webhookPart)
	read("/tasks/{id}/raw", d.rawPage)
	read("/tasks/{id}/events.json", d.eventsFile)
	read("/tasks/{id}/goal.json", d.goalFile)
	r.Get("/tasks/{id}/live", d.live)
	r.Post("/tasks/{id}/cancel", d.cancel)
	r.Post("/tasks/{id}/resend", d.resend)
	r.Post("/tasks/{id}/again", d.again)
}

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.handler.ServeHTTP(w, r.WithContext(unrouted(r.Context())))
}

// unrouted is a context without the state of a route. chi would otherwise go on
// with that of the router which called, also while it is read there.
func unrouted(ctx context.Context) context.Context {
	return context.WithValue(ctx, chi.RouteCtxKey, (*chi.Context)(nil))
}

// policy lets a page use its own server's files and nothing else: no script or
// style within the page, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secure sets the headers of every answer and refuses forms that a page of
// another origin sends.
func secure(next http.Handler) http.Handler {
	guarded := http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		guarded.ServeHTTP(w, r)
	})
}

// frame is what every page shows around its content.
type frame struct {
	Title  string
	Nav    string // the page's place in the navigation
	Caller Caller
	Logout bool // there is a session to end
	Reload int  // seconds after which a browser without JavaScript reloads; 0: never
	Body   any
}

// page renders a whole page.
func (d *Dashboard) page(w http.ResponseWriter, r *http.Request, status int, name string, f frame) {
	if v, ok := visitOf(r); ok {
		f.Caller, f.Logout = v.Caller, v.cookie
	}
	d.render(w, r, status, name, f)
}

// render renders a template as an answer.
func (d *Dashboard) render(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var out bytes.Buffer
	if err := d.pages.ExecuteTemplate(&out, name, data); err != nil {
		d.cfg.Log.ErrorContext(r.Context(), "page cannot be rendered", "page", name, "error", err)
		http.Error(w, "The page cannot be shown.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(out.Bytes()) // the viewer has gone; there is nobody to tell
	}
}

// fail shows what went wrong. Of errors that are no problem it says only that
// the store did not answer.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	var p *goal.Problem
	switch {
	case errors.As(err, &p):
	case errors.Is(err, goal.ErrNotFound):
		p = missing("There is no such task", "It may be older than the retention time, or belong to another tenant.")
	default:
		d.cfg.Log.WarnContext(r.Context(), "page failed", "path", r.URL.Path, "error", err)
		p = goal.NewProblem(goal.StoreUnavailable, "The store did not answer in time. Reload the page to try again.")
	}
	d.page(w, r, p.Status, "error", frame{Title: p.Title, Body: p})
}

func missing(title, detail string) *goal.Problem {
	return &goal.Problem{Title: title, Detail: detail, Status: http.StatusNotFound}
}

// partial reports whether htmx asks for a part of a page.
func partial(r *http.Request) bool { return r.Header.Get("HX-Request") == "true" }

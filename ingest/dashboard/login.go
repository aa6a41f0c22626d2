package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

type contextKey int

const keyVisit contextKey = iota

// visit is one request of somebody who may look.
type visit struct {
	Caller

	authorization string // of the API; empty: none is needed
	cookie        bool   // by a session, not by the request's own header
}

func visitOf(r *http.Request) (visit, bool) {
	v, ok := r.Context().Value(keyVisit).(visit)
	return v, ok
}

// signedIn lets in whoever has a session, a key of its own, or needs none.
func (d *Dashboard) signedIn(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := d.authenticate(r)
		if err == nil {
			next(w, r.WithContext(context.WithValue(r.Context(), keyVisit, v)))
			return
		}
		var p *goal.Problem
		if errors.As(err, &p) && p.Kind() == goal.Unauthenticated {
			d.toLogin(w, r)
			return
		}
		d.fail(w, r, err)
	})
}

// authenticate asks who looks, with the key of the session if there is one.
func (d *Dashboard) authenticate(r *http.Request) (visit, error) {
	v := visit{authorization: r.Header.Get("Authorization")}
	if c, err := r.Cookie(cookieName(r)); err == nil && v.authorization == "" {
		if key, ok := d.sessions.key(c.Value); ok {
			v.authorization, v.cookie = "Bearer "+key, true
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", v.authorization)
		}
	}
	var err error
	v.Caller, err = d.cfg.Authenticate(r)
	return v, err
}

// toLogin sends the viewer to the log-in page, and back afterwards. A strict
// cookie does not come with a link from another site: a page of our own that
// reloads itself brings it.
func (d *Dashboard) toLogin(w http.ResponseWriter, r *http.Request) {
	target := "/login"
	if r.Method == http.MethodGet && r.URL.Path != "/" && !partial(r) {
		target += "?" + url.Values{"next": {r.URL.RequestURI()}}.Encode()
	}
	switch {
	case partial(r):
		w.Header().Set("HX-Redirect", target)
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Site") == "cross-site":
		d.render(w, r, http.StatusOK, "bounce", nil)
	default:
		http.Redirect(w, r, target, http.StatusSeeOther)
	}
}

type loginBody struct {
	Next  string
	Error string
}

func (d *Dashboard) loginPage(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.URL.Query().Get("next"))
	if _, err := d.authenticate(r); err == nil {
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath lets only paths of this server through
		return
	}
	d.page(w, r, http.StatusOK, "login", frame{Title: "Log in", Body: loginBody{Next: next}})
}

// login opens a session for a key that the API accepts.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, formLimit)
	if err := r.ParseForm(); err != nil {
		d.fail(w, r, &goal.Problem{Title: "The form cannot be read", Status: http.StatusBadRequest})
		return
	}
	next, key := localPath(r.PostForm.Get("next")), strings.TrimSpace(r.PostForm.Get("key"))
	probe := r.Clone(r.Context())
	probe.Header.Set("Authorization", "Bearer "+key)
	if _, err := d.cfg.Authenticate(probe); err != nil {
		body := loginBody{Next: next, Error: "This key is not known. Check that you have copied all of it."}
		d.page(w, r, http.StatusUnauthorized, "login", frame{Title: "Log in", Body: body})
		return
	}
	d.endSession(r)
	http.SetCookie(w, newCookie(r, d.sessions.open(key), int(sessionLife.Seconds())))
	http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath lets only paths of this server through
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	d.endSession(r)
	http.SetCookie(w, newCookie(r, "", -1))
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func (d *Dashboard) endSession(r *http.Request) {
	if c, err := r.Cookie(cookieName(r)); err == nil {
		d.sessions.end(c.Value)
	}
}

// overTLS reports whether the viewer's connection is encrypted, here or at a
// proxy in front. Who lies about it harms only their own cookie.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// cookieName has, over TLS, the prefix that keeps other hosts and plain
// connections from setting the cookie.
func cookieName(r *http.Request) string {
	if overTLS(r) {
		return "__Host-goalkeeper"
	}
	return "goalkeeper"
}

func newCookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // without TLS a secure cookie would not come back
		Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, Secure: overTLS(r), SameSite: http.SameSiteStrictMode,
	}
}

// localPath is a path on this server, or "/".
func localPath(p string) string {
	if u, err := url.Parse(p); err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(p, "/") ||
		strings.HasPrefix(p, "//") || strings.ContainsAny(p, "\\\r\n\t") {
		return "/"
	}
	return p
}

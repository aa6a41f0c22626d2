package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (w *world) login(key string) *http.Cookie {
	w.t.Helper()
	rec := w.post("/login", url.Values{"key": {key}, "next": {"/activity"}})
	wantStatus(w.t, rec, http.StatusSeeOther)
	if to := rec.Header().Get("Location"); to != "/activity" {
		w.t.Errorf("log-in leads to %q", to)
	}
	return rec.Result().Cookies()[0]
}

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys = map[string]Caller{"good": {Tenant: "acme", Name: "ops"}, "other": {Tenant: "globex"}}
	w.put(snapshot("word"))
	rec := w.get("/tasks/" + taskA + "?x=1")
	wantStatus(t, rec, http.StatusSeeOther)
	if to := rec.Header().Get("Location"); to != "/login?next="+url.QueryEscape("/tasks/"+taskA+"?x=1") {
		t.Errorf("a stranger is led to %q", to)
	}
	wantStatus(t, w.get("/login"), http.StatusOK)
	wantStatus(t, w.post("/login", url.Values{"key": {"bad"}}), http.StatusUnauthorized)
	wantStatus(t, w.post("/login", url.Values{"key": {strings.Repeat("x", formLimit)}}), http.StatusBadRequest)

	c := w.login(" good ")
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Name != "goalkeeper" || strings.Contains(c.Value, "good") {
		t.Errorf("cookie %+v", c)
	}
	cookie := "Cookie: " + c.Name + "=" + c.Value
	wantStatus(t, w.get("/tasks/"+taskA, cookie), http.StatusOK)
	w.asked = nil
	wantStatus(t, w.post("/tasks/"+taskA+"/cancel", url.Values{}, cookie), http.StatusSeeOther)
	if got := w.asked[0].Header.Get("Authorization"); got != "Bearer good" {
		t.Errorf("the API is asked with %q", got)
	}
	if c2 := w.login("other"); true {
		wantStatus(t, w.get("/tasks/"+taskA, "Cookie: "+c2.Name+"="+c2.Value), http.StatusNotFound) // another tenant's
	}

	w.mu.Lock()
	delete(w.keys, "good") // as a reload of the configuration does
	w.mu.Unlock()
	wantStatus(t, w.get("/", cookie), http.StatusSeeOther)
	wantStatus(t, w.post("/tasks/"+taskA+"/cancel", url.Values{}, cookie), http.StatusSeeOther)
	if len(w.asked) != 1 {
		t.Error("the session of a removed key still acts")
	}
}

func TestLoginOverTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys = map[string]Caller{"good": {Tenant: "acme"}}
	rec := w.post("https://example.com/login", url.Values{"key": {"good"}})
	c := rec.Result().Cookies()[0]
	if !c.Secure || c.Name != "__Host-goalkeeper" || c.Path != "/" || c.Domain != "" {
		t.Errorf("cookie %+v", c)
	}
}

func TestLogout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys = map[string]Caller{"good": {Tenant: "acme"}}
	c := w.login("good")
	cookie := "Cookie: " + c.Name + "=" + c.Value
	wantStatus(t, w.get("/", cookie), http.StatusOK)
	rec := w.post("/logout", url.Values{}, cookie)
	if gone := rec.Result().Cookies()[0]; gone.MaxAge >= 0 {
		t.Errorf("cookie %+v", gone)
	}
	wantStatus(t, w.get("/", cookie), http.StatusSeeOther)
}

func TestNoLoginWithoutKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.get("/login?next=/activity")
	if rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != "/activity" {
		t.Errorf("%d to %q", rec.Code, rec.Header().Get("Location"))
	}
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys = map[string]Caller{"good": {Tenant: "acme"}}
	for _, path := range append([]string{"/tasks/" + taskA + "/live", "/tasks/" + taskA + "/events.json"}, paths...) {
		if rec := w.get(path); rec.Code != http.StatusSeeOther {
			t.Errorf("%s: %d", path, rec.Code)
		}
		rec := w.get(path, "HX-Request: true")
		if rec.Code != http.StatusUnauthorized || !strings.HasPrefix(rec.Header().Get("HX-Redirect"), "/login") {
			t.Errorf("%s for htmx: %d %v", path, rec.Code, rec.Header())
		}
	}
	// A link from another site comes without a strict cookie: a page of our own
	// asks again, with it.
	rec := w.get("/tasks/"+taskA, "Sec-Fetch-Site: cross-site")
	if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), `http-equiv="refresh"`) {
		t.Errorf("from another site: %d", rec.Code)
	}
	if len(w.asked) > 0 {
		t.Errorf("the API was asked for %s", w.asked[0].URL)
	}
}

// TestForgedForms sends forms as a page of another origin makes a browser send
// them.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(snapshot("word"))
	for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example"} {
		for _, path := range []string{"/login", "/logout", "/tasks/" + taskA + "/cancel", "/tasks/" + taskA + "/resend", "/tasks/" + taskA + "/again"} {
			if rec := w.post(path, url.Values{}, header); rec.Code != http.StatusForbidden {
				t.Errorf("%s with %s: %d", path, header, rec.Code)
			}
		}
	}
	if len(w.asked) > 0 {
		t.Errorf("the API was asked for %s", w.asked[0].URL)
	}
}

func TestLocalPath(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/tasks/x?a=b": "/tasks/x?a=b", "": "/", "tasks": "/", "//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/",
		"/a\r\nSet-Cookie: x": "/", "/\t/evil.example": "/", "javascript:alert(1)": "/",
	} {
		if got := localPath(in); got != want {
			t.Errorf("localPath(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzLocalPath(f *testing.F) {
	for _, s := range []string{"/", "//a", `/\a`, "/%2f/a", "/a?b#c", "/./../..//evil"} {
		f.Add(s)
	}
	base, err := url.Parse("https://goalkeeper.example/login")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := base.Parse(localPath(s))
		if err != nil || u.Host != base.Host || u.Scheme != base.Scheme {
			t.Errorf("%q leads to %v (%v)", s, u, err)
		}
	})
}

func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		id := s.open("key")
		time.Sleep(sessionLife - time.Second)
		if key, ok := s.key(id); !ok || key != "key" {
			t.Error("the session ended early")
		}
		time.Sleep(time.Second)
		if _, ok := s.key(id); ok {
			t.Error("the session did not end")
		}
		s.open("key")
		if len(s.byID) != 1 {
			t.Errorf("%d sessions are kept", len(s.byID))
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		mine := s.open("mine")
		var first string
		for i := range maxSessionsKey + 5 {
			time.Sleep(time.Millisecond)
			if id := s.open("loud"); i == 0 {
				first = id
			}
		}
		if _, ok := s.key(first); ok {
			t.Error("the oldest session of a key does not give way")
		}
		if _, ok := s.key(mine); !ok {
			t.Error("one key's sessions ended another's")
		}
		for i := range maxSessions + 10 {
			s.open(fmt.Sprint("key ", i))
		}
		if len(s.byID) != maxSessions {
			t.Errorf("%d sessions are kept", len(s.byID))
		}
	})
}

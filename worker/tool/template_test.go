package tool_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

func TestTemplateExpand(t *testing.T) {
	t.Parallel()
	args := map[string]any{
		"id": "W1", "n": json.Number("9007199254740993"), "yes": true, "slash": "a/b?c#d", "up": "..", "empty": "",
		"space": "a b&c=d", "list": []any{}, "null": nil, "pct": "%2e%2e", "é": "é",
	}
	rows := map[string]struct{ template, want, refusal string }{
		"path":                     {"https://h/orders/{id}", "https://h/orders/W1", ""},
		"number stays exact":       {"https://h/{n}", "https://h/9007199254740993", ""},
		"part of a segment":        {"https://h/v{n}.{id}/x", "https://h/v9007199254740993.W1/x", ""},
		"slash is no segment":      {"https://h/{slash}", "https://h/a%2Fb%3Fc%23d", ""},
		"percent is literal":       {"https://h/{pct}/x", "https://h/%252e%252e/x", ""},
		"query":                    {"https://h/?q={space}&b={yes}", "https://h/?q=a+b%26c%3Dd&b=true", ""},
		"absent in the query":      {"https://h/x?q={nope}&r={null}&id={id}", "https://h/x?id=W1", ""},
		"fixed query":              {"https://h/x?api=1", "https://h/x?api=1", ""},
		"empty in the query":       {"https://h/x?q={empty}", "https://h/x?q=", ""},
		"no path":                  {"http://h:8080", "http://h:8080/", ""},
		"not ascii":                {"https://h/{é}", "https://h/%C3%A9", ""},
		"absent in the path":       {"https://h/{nope}", "", `"nope" is missing`},
		"null in the path":         {"https://h/{null}", "", `"null" is missing`},
		"empty in the path":        {"https://h/a/{empty}", "", `"empty" must not be empty`},
		"dot segment":              {"https://h/a/{up}/b", "", "dot segment"},
		"list":                     {"https://h/{list}", "", `"list" must be a string`},
		"list in the query":        {"https://h/?l={list}", "", `"list" must be a string`},
		"dots inside are harmless": {"https://h/a{up}", "https://h/a..", ""},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmpl, err := tool.ParseTemplate(row.template)
			if err != nil {
				t.Fatal(err)
			}
			u, err := tmpl.Expand(args)
			if row.refusal != "" {
				var ae *agent.ArgumentsError
				if !errors.As(err, &ae) || !strings.Contains(ae.Detail, row.refusal) {
					t.Fatalf("got %v, %v; want refusal %q", u, err, row.refusal)
				}
				return
			}
			if err != nil || u.String() != row.want {
				t.Errorf("got %v, %v; want %s", u, err, row.want)
			}
		})
	}
}

func TestTemplateRefuses(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "ftp://h/", "/relative", "https://{host}/", "https://h{x}/", "https://user:secret@h/", "https://h/{", "https://h/}",
		"https://h/{}", "https://h/{a{b}}", "https://h/x#frag", "https://h/?{name}=1", "https://h/%zz", "https://h/a/../b", "https:///x",
	} {
		if _, err := tool.ParseTemplate(raw); err == nil {
			t.Errorf("%q: no error", raw)
		}
	}
	_, err := tool.ParseTemplate("https://h/{?token=secret")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error shows the query: %v", err)
	}
}

// An argument never leaves its place: host and number of segments are the
// template's, and the argument can be read back.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"W1", "../..", "a/b", "?x=1", "#", "%2f", "@evil", "\\..\\", "\r\nX: 1", "é", "."} {
		f.Add(s)
	}
	tmpl, err := tool.ParseTemplate("https://host:1/a/{x}/b?q={x}&r=1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		u, err := tmpl.Expand(map[string]any{"x": arg})
		if err != nil {
			if arg != "" && arg != "." && arg != ".." {
				t.Fatalf("%q is refused: %v", arg, err)
			}
			return
		}
		back, err := url.Parse(u.String())
		if err != nil || back.Scheme != "https" || back.Host != "host:1" || back.Fragment != "" || back.User != nil {
			t.Fatalf("%q makes %s, %v", arg, u, err)
		}
		segments := strings.Split(back.EscapedPath(), "/")
		if len(segments) != 4 || segments[1] != "a" || segments[3] != "b" {
			t.Fatalf("%q makes the path %s", arg, back.EscapedPath())
		}
		if got, err := url.PathUnescape(segments[2]); err != nil || got != arg {
			t.Fatalf("%q is read back as %q, %v", arg, got, err)
		}
		if q := back.Query(); len(q) != 2 || q.Get("q") != arg || q.Get("r") != "1" {
			t.Fatalf("%q makes the query %s", arg, back.RawQuery)
		}
	})
}

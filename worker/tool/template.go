package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// Template is a URL with {argument} places in its path and query. Scheme, host
// and the path's shape are the operator's: an argument is always escaped, so
// it can add neither a segment nor a query member.
type Template struct {
	scheme, host string // host with port
	path         []piece
	query        []param
}

// piece is literal text, or the name of an argument.
type piece struct {
	text string
	arg  bool
}

// param is one member of the query; one whose argument is absent is left out.
type param struct {
	name  string
	value []piece
}

// ParseTemplate reads a URL template. It must be an absolute http or https URL
// without user and fragment, and have places only after the host.
func ParseTemplate(raw string) (*Template, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("URL template %q: not an absolute http or https URL", cutQuery(raw))
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		rest, end = rest+"/", len(rest)
	}
	host, rest := rest[:end], rest[end:]
	u, err := url.Parse(scheme + "://" + host)
	if err != nil || u.Host == "" || u.User != nil || strings.ContainsAny(host, "{}") {
		return nil, fmt.Errorf("URL template %q: bad host", cutQuery(raw))
	}
	if strings.Contains(rest, "#") {
		return nil, fmt.Errorf("URL template %q: has a fragment", cutQuery(raw))
	}
	path, query, _ := strings.Cut(rest, "?")
	t := &Template{scheme: scheme, host: u.Host}
	if t.path, err = pieces(path); err != nil {
		return nil, fmt.Errorf("URL template %q: %w", cutQuery(raw), err)
	}
	for segment := range strings.SplitSeq(path, "/") {
		plain, err := url.PathUnescape(segment)
		if err != nil || plain == "." || plain == ".." {
			return nil, fmt.Errorf("URL template %q: bad path", cutQuery(raw))
		}
	}
	for q := range strings.SplitSeq(query, "&") {
		if q == "" {
			continue
		}
		name, value, _ := strings.Cut(q, "=")
		if strings.ContainsAny(name, "{}") {
			return nil, fmt.Errorf("URL template %q: a place in a query name", cutQuery(raw))
		}
		ps, err := pieces(value)
		if err != nil {
			return nil, fmt.Errorf("URL template %q: %w", cutQuery(raw), err)
		}
		t.query = append(t.query, param{name: name, value: ps})
	}
	return t, nil
}

// cutQuery keeps what may be a secret out of errors.
func cutQuery(raw string) string {
	raw, _, _ = strings.Cut(raw, "?")
	return raw
}

var errBraces = errors.New("unbalanced braces")

// pieces splits text at its {places}.
func pieces(s string) ([]piece, error) {
	var out []piece
	for s != "" {
		before, rest, ok := strings.Cut(s, "{")
		if strings.Contains(before, "}") {
			return nil, errBraces
		}
		if before != "" {
			out = append(out, piece{text: before})
		}
		if !ok {
			break
		}
		name, rest, ok := strings.Cut(rest, "}")
		if !ok || name == "" || strings.Contains(name, "{") {
			return nil, errBraces
		}
		out = append(out, piece{text: name, arg: true})
		s = rest
	}
	return out, nil
}

// Arguments lists the arguments that the template names, sorted.
func (t *Template) Arguments() []string {
	names := map[string]bool{}
	add := func(ps []piece) {
		for _, p := range ps {
			if p.arg {
				names[p.text] = true
			}
		}
	}
	add(t.path)
	for _, q := range t.query {
		add(q.value)
	}
	return slices.Sorted(maps.Keys(names))
}

// Expand fills the places. Arguments are strings, json.Number or bool; one
// that the path needs must be there, be not empty, and not turn its segment
// into a dot segment, which servers resolve. Errors are *agent.ArgumentsError.
func (t *Template) Expand(args map[string]any) (*url.URL, error) {
	for _, p := range t.path {
		if p.arg && args[p.text] == "" {
			return nil, &agent.ArgumentsError{Detail: fmt.Sprintf("%q must not be empty", p.text)}
		}
	}
	path, _, err := fill(t.path, args, url.PathEscape)
	if err != nil {
		return nil, err
	}
	for segment := range strings.SplitSeq(path, "/") {
		if plain, err := url.PathUnescape(segment); err != nil || plain == "." || plain == ".." {
			return nil, &agent.ArgumentsError{Detail: "an argument makes a dot segment of the path"}
		}
	}
	var query []string
	for _, q := range t.query {
		v, present, err := fill(q.value, args, url.QueryEscape)
		if err != nil && present {
			return nil, err
		}
		if present {
			query = append(query, q.name+"="+v)
		}
	}
	u, err := url.Parse(t.scheme + "://" + t.host + path)
	if err != nil {
		return nil, &agent.ArgumentsError{Detail: "an argument does not fit into the path"}
	}
	u.RawQuery = strings.Join(query, "&")
	return u, nil
}

// fill writes the pieces with their arguments. It reports whether every
// argument was there.
func fill(ps []piece, args map[string]any, escape func(string) string) (text string, present bool, err error) {
	var b strings.Builder
	for _, p := range ps {
		if !p.arg {
			b.WriteString(p.text)
			continue
		}
		v, ok := args[p.text]
		if !ok || v == nil {
			return "", false, &agent.ArgumentsError{Detail: fmt.Sprintf("%q is missing", p.text)}
		}
		s, ok := scalar(v)
		if !ok {
			return "", true, &agent.ArgumentsError{Detail: fmt.Sprintf("%q must be a string, a number or a boolean", p.text)}
		}
		b.WriteString(escape(s))
	}
	return b.String(), true, nil
}

// scalar is a value as it stands in a URL; numbers keep their spelling.
func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		if v {
			return "true", true
		}
		return "false", true
	default:
		return "", false
	}
}

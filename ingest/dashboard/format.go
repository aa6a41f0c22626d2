package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// functions are what templates can say.
func functions(a *assets) template.FuncMap {
	return template.FuncMap{
		"asset": a.url, "ago": ago, "duration": duration, "stamp": stamp, "rfc3339": rfc3339, "number": number,
		"pretty": pretty, "clip": clip, "label": statusLabel, "words": words,
		"millis": func(m goal.Millis) string { return duration(time.Duration(m)) },
		"plotTable": func(p plot, heads ...string) plotTable {
			return plotTable{plot: p, ID: strings.ToLower(heads[0]), Heads: heads}
		},
	}
}

// duration is a time as people say it: 350 ms, 1.24 s, 2 min 05 s, 3 h 20 min.
func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// ago is how long since t, roughly. The pages' script says it the same way.
func ago(t time.Time) string {
	switch d := time.Since(t); {
	case t.IsZero():
		return "never"
	case d < 5*time.Second:
		return "just now"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s ago"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min ago"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h ago"
	default:
		return strconv.Itoa(int(d.Hours()/24)) + " days ago"
	}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// number has thin spaces between groups of three digits.
func number(v any) string {
	s := fmt.Sprint(v)
	if len(s) < 5 || strings.Trim(s, "0123456789") != "" {
		return s
	}
	var out []byte
	for i := range len(s) {
		if i > 0 && (len(s)-i)%3 == 0 {
			out = append(out, "\u2009"...)
		}
		out = append(out, s[i])
	}
	return string(out)
}

// pretty is JSON with indentation, cut to n bytes.
func pretty(raw json.RawMessage, n int) string {
	if len(raw) > 4*n { // no need to indent what is cut anyway
		return clip(string(raw), n)
	}
	var out bytes.Buffer
	if json.Indent(&out, raw, "", "  ") != nil {
		return clip(string(raw), n)
	}
	return clip(out.String(), n)
}

// clip cuts s to at most n bytes at a rune boundary and says so. Characters that
// would change the order of the text around them are replaced: a page shows who
// wrote what.
func clip(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Bidi_Control, r) || r == 0 {
			return utf8.RuneError
		}
		return r
	}, s)
}

func statusLabel(s goal.State) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(string(s[:1])) + string(s[1:])
}

// words is a reason as a sentence: GUARDRAIL_MAX_STEPS is "Guardrail max steps".
func words(r goal.Reason) string {
	s := strings.ToLower(strings.ReplaceAll(string(r), "_", " "))
	return statusLabel(goal.State(s))
}

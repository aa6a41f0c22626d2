package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Output formats.
const (
	formatTable = "table" // for people
	formatJSON  = "json"  // one document
	formatJSONL = "jsonl" // one document a line
)

// outputFlags are the flags of every verb that prints data.
type outputFlags struct {
	Output  string `short:"o" enum:"table,json,jsonl" default:"table" placeholder:"FORMAT" group:"Output:" help:"Data as table, json or jsonl. Errors are JSON too, on stderr."`
	Quiet   bool   `short:"q" group:"Output:" help:"No progress on stderr, only errors."`
	NoColor bool   `group:"Output:" help:"No colours (also by NO_COLOR). There are none where stdout is no terminal."`
}

// AfterApply tells the terminal what the flags say; kong calls it.
//
//nolint:unparam // kong wants an error
func (o *outputFlags) AfterApply(t *terminal) error {
	t.format, t.quiet = o.Output, o.Quiet
	t.colour = t.live && !o.NoColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return nil
}

// terminal is how a verb talks: data on stdout, progress and errors on stderr.
// It is used by one goroutine at a time.
type terminal struct {
	streams
	format string
	quiet  bool
	live   bool   // stdout is a terminal: it may be redrawn
	width  int    // columns, where live
	colour bool   // only where live
	hint   string // printed after an error
	key    string // idempotency key that this process made up, part of a JSON error
}

// newTerminal looks at the streams. The format is read from the arguments
// already here, so that an error in them is printed in the format asked for.
func newTerminal(std streams, args []string) *terminal {
	t := &terminal{streams: std, format: formatTable}
	if f, ok := std.out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			t.live, t.width = true, int(size.Col)
		}
	}
	if t.width < 20 { // unknown, or nothing fits
		t.width = 80
	}
	for i, a := range args {
		v, ok := strings.CutPrefix(a, "--output=")
		if (a == "-o" || a == "--output") && i+1 < len(args) {
			v, ok = args[i+1], true
		}
		if ok && (v == formatJSON || v == formatJSONL) {
			t.format = v
		}
	}
	return t
}

// machine reports whether a program reads the output.
func (t *terminal) machine() bool { return t.format != formatTable }

// notef prints a line of progress on stderr. With -o json stderr holds nothing
// but one error.
func (t *terminal) notef(format string, args ...any) {
	if !t.quiet && !t.machine() {
		fmt.Fprintln(t.err, printable(fmt.Sprintf(format, args...)))
	}
}

// printf prints data.
func (t *terminal) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(t.out, format, args...)
	return err
}

// document prints one value as JSON: indented for json, one line for jsonl.
func (t *terminal) document(v any) error {
	b, err := goal.Marshal(v)
	if err != nil {
		return err
	}
	if t.format == formatJSON {
		b = indent(b)
	}
	_, err = t.out.Write(append(b, '\n'))
	return err
}

// line prints one value as one line of JSON.
func (t *terminal) line(v any) error {
	b, err := goal.Marshal(v)
	if err != nil {
		return err
	}
	_, err = t.out.Write(append(b, '\n'))
	return err
}

func indent(b []byte) []byte {
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return b
	}
	return out.Bytes()
}

// table prints rows in columns.
func (t *terminal) table(rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// Colours, as SGR parameters.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

func (t *terminal) paint(sgr, s string) string {
	if !t.colour || s == "" {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

// paintState colours a state; the word itself says everything too.
func (t *terminal) paintState(s goal.State) string {
	switch s {
	case goal.Succeeded:
		return t.paint(green, string(s))
	case goal.Failed:
		return t.paint(red, string(s))
	case goal.Running, goal.Cancelled:
		return t.paint(yellow, string(s))
	case goal.Queued:
		return t.paint(faint, string(s))
	default: // of a newer server
		return printable(string(s))
	}
}

// printable is s without control characters: what planners, tools and clients
// wrote must not move the cursor or change colours.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// oneLine is s on one line of at most n characters.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(printable(s)), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:max(n-1, 0)]) + "…"
	}
	return s
}

// when is a time for people, without a fraction; empty where there is none.
func when(at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// short is a duration for people.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

// failure is an error as -o json prints it: the server's problem, or one made
// from the error.
type failure struct {
	goal.Problem
	Status   int    `json:"status,omitempty"` // absent where no server answered
	ExitCode int    `json:"exit_code"`
	Key      string `json:"idempotency_key,omitempty"`
}

// fail prints an error and returns the exit code.
func (t *terminal) fail(err error, code int) int {
	var asked *exitError
	if errors.As(err, &asked) && asked.err == nil {
		return code
	}
	var problem *goal.Problem
	known := errors.As(err, &problem)
	if t.machine() {
		f := failure{ExitCode: code, Key: t.key}
		if known {
			f.Problem, f.Status = *problem, problem.Status
		} else {
			f.Problem = goal.Problem{Type: "about:blank", Title: "Error", Detail: err.Error()}
		}
		if b, err := goal.Marshal(f); err == nil {
			fmt.Fprintf(t.err, "%s\n", b)
		}
		return code
	}
	if known {
		explain(t.err, "goalkeeper", problem)
	} else {
		fmt.Fprintln(t.err, "goalkeeper:", printable(err.Error()))
	}
	if t.hint != "" {
		fmt.Fprintln(t.err, t.hint)
	}
	return code
}

// explain prints a problem with every place that is wrong.
func explain(w io.Writer, who string, p *goal.Problem) {
	name := string(p.Kind())
	if name == "" {
		name = p.Title
	}
	if p.Status != 0 {
		name = fmt.Sprintf("%s (%d)", name, p.Status)
	}
	detail := p.Detail
	if detail == "" {
		detail = p.Title
	}
	fmt.Fprintln(w, printable(who+": "+name+": "+detail))
	for _, e := range p.Errors {
		place := e.Pointer
		if place == "" {
			place = "(whole document)"
		}
		fmt.Fprintln(w, printable("  "+place+": "+e.Detail))
	}
	for _, d := range p.Checks {
		fmt.Fprintln(w, printable("  "+difference(d)))
	}
}

// difference is one line about a place that is not as wanted.
func difference(d goal.Difference) string {
	return fmt.Sprintf("%s: want %s, have %s", place(d.Pointer), value(d.Want), value(d.Have))
}

func place(pointer string) string {
	if pointer == "" {
		return "(root)"
	}
	return pointer
}

// value is JSON on one line; what is absent is called so.
func value(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	return oneLine(string(raw), 120)
}

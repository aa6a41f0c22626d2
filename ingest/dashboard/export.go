package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	maxCommand = 16 << 10  // bytes of a command to copy
	maxRaw     = 512 << 10 // bytes of raw events on a page; the file has all of it
)

// addCommands are the ways to do on a command line what the page does.
func (v *taskView) addCommands(r *http.Request, snap goal.Snapshot) {
	scheme := "http"
	if overTLS(r) {
		scheme = "https"
	}
	server := scheme + "://" + r.Host
	auth := ""
	if who, _ := visitOf(r); who.authorization != "" {
		auth = ` -H "Authorization: Bearer $GOALKEEPER_TOKEN"`
	}
	body, err := goal.Marshal(shownGoal(snap.Submission.Goal))
	if err == nil && len(body) < maxCommand {
		v.Curl = fmt.Sprintf("curl%s -H 'Content-Type: application/json' -H \"Idempotency-Key: $(uuidgen)\" \\\n  --data-binary %s \\\n  %s",
			auth, shellQuote(string(body)), shellQuote(server+"/v1/tasks"))
	}
	s := " --server " + shellQuote(server)
	v.Commands = []string{"goalkeeper watch" + s + " " + v.ID, "goalkeeper trace" + s + " " + v.ID}
	if !v.Ended() {
		v.Commands = append(v.Commands, "goalkeeper cancel"+s+" "+v.ID)
	}
}

// shownGoal is the goal without what may be secret.
func shownGoal(g goal.Goal) goal.Goal {
	g.WebhookURL = goal.RedactURL(g.WebhookURL)
	return g
}

// shellQuote makes one word of a POSIX shell of s.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

type rawBody struct {
	ID, Text string
	Cut      bool
	Size     int
}

// rawPage is the journal as it is.
func (d *Dashboard) rawPage(w http.ResponseWriter, r *http.Request) {
	snap, err := d.load(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	text, err := eventsText(snap)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	b := rawBody{ID: snap.Submission.TaskID, Text: clip(string(text), maxRaw), Cut: len(text) > maxRaw, Size: len(text)}
	d.page(w, r, http.StatusOK, "raw", frame{Title: "Events of " + b.ID, Nav: "tasks", Body: b})
}

func eventsText(snap goal.Snapshot) ([]byte, error) {
	raw, err := goal.Marshal(snap.Trace(0))
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return out.Bytes(), nil
}

func (d *Dashboard) eventsFile(w http.ResponseWriter, r *http.Request) {
	d.file(w, r, "events", eventsText)
}

func (d *Dashboard) goalFile(w http.ResponseWriter, r *http.Request) {
	d.file(w, r, "goal", func(snap goal.Snapshot) ([]byte, error) {
		return json.MarshalIndent(shownGoal(snap.Submission.Goal), "", "  ") //nolint:wrapcheck // ends in fail
	})
}

// file answers with JSON to be saved, never to be shown as a page.
func (d *Dashboard) file(w http.ResponseWriter, r *http.Request, kind string, text func(goal.Snapshot) ([]byte, error)) {
	snap, err := d.load(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	body, err := text(snap)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Disposition", `attachment; filename="`+snap.Submission.TaskID+"."+kind+`.json"`)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the viewer has gone; there is nobody to tell
	}
}

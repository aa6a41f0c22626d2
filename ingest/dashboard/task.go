package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	maxValue   = 4 << 10   // bytes of a value that a page shows; the raw events have all of it
	maxCommand = 16 << 10  // bytes of a command to copy
	maxRaw     = 512 << 10 // bytes of raw events on a page; the file has all of it
)

// taskView is the task page.
type taskView struct {
	goal.Task
	story

	Now        time.Time
	LastN      int // number of the last event that is shown
	Target     tree
	Waterfall  waterfall
	Meters     []meter
	Conditions []condition
	Others     []goal.Difference // failed checks that name none of the conditions
	Deliveries []goal.DeliveryView
	NoHooks    error // why deliveries are not shown
	Hooks      bool  // the webhook can be asked for
	Via        string
	From       string // task that this one is a copy of
	Nonce      string // of the form that submits again
	Note       string
	Curl       string
	Commands   []string
}

// Age is how long the task took or has taken so far.
func (v taskView) Age() time.Duration {
	if v.EndedAt != nil {
		return v.EndedAt.Sub(v.AcceptedAt)
	}
	return v.Now.Sub(v.AcceptedAt)
}

// Ended reports whether the task never changes again.
func (v taskView) Ended() bool { return v.Status.Terminal() }

// AnyTool reports whether the goal names no tools, which allows all.
func (v taskView) AnyTool() bool { return v.Guardrails.AllowedTools == nil }

// Explained reports whether the detail says more than the trip does.
func (v taskView) Explained() bool {
	return v.Detail != "" && (v.Trip == nil || !strings.HasPrefix(v.Detail, "limit "))
}

// Settling reports whether the webhook's story may go on.
func (v taskView) Settling() bool {
	if v.WebhookURL == "" || !v.Ended() {
		return false
	}
	for _, d := range v.Deliveries {
		if d.State != goal.DeliveryPending {
			return false
		}
	}
	return v.NoHooks == nil
}

// load reads the task in the path.
func (d *Dashboard) load(r *http.Request) (goal.Snapshot, error) {
	id := chi.URLParam(r, "id")
	if !isTaskID(id) {
		return goal.Snapshot{}, goal.ErrNotFound
	}
	v, _ := visitOf(r)
	ctx, cancel := context.WithTimeout(r.Context(), loadTimeout)
	defer cancel()
	return d.cfg.Load(ctx, v.Tenant, id)
}

// isTaskID keeps what is no id away from the store's subjects.
func isTaskID(id string) bool {
	digits, ok := strings.CutPrefix(id, "tsk_")
	return ok && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}

func (d *Dashboard) taskPage(w http.ResponseWriter, r *http.Request) {
	snap, err := d.load(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := newTaskView(snap, time.Now())
	d.addDeliveries(r, &v)
	v.Note = notes[r.URL.Query().Get("note")]
	v.Nonce = rand.Text()
	v.addCommands(r, snap)
	f := frame{Title: clip(v.Intent, 60), Nav: "tasks", Body: v}
	if !v.Ended() || v.Settling() {
		f.Reload = 3
	}
	d.page(w, r, http.StatusOK, "task", f)
}

// newTaskView is the snapshot as the page tells it.
func newTaskView(snap goal.Snapshot, now time.Time) taskView {
	t := snap.Task()
	v := taskView{Task: t, Now: now, Via: snap.Submission.Via, From: copiedFrom(snap.Submission.Key)}
	v.story = newStory(snap.Trace(0), t.Status.Terminal(), now)
	for _, e := range snap.Events {
		v.LastN = max(v.LastN, e.N)
	}
	known := v.Known || t.Status == goal.Succeeded || t.LeftTotal > 0
	v.Target = newTree(t.TargetState, t.Left, known, t.LeftTotal <= len(t.Left))
	v.Waterfall = newWaterfall(t, v.Steps, v.Marks, now)
	v.Meters = newMeters(t, v.story, now)
	v.Conditions, v.Others = newConditions(snap.Submission.Goal.PreConditions, t)
	return v
}

// addDeliveries asks for the webhook's attempts, once there can be any.
func (d *Dashboard) addDeliveries(r *http.Request, v *taskView) {
	if v.WebhookURL == "" || !v.Ended() {
		return
	}
	var answer struct {
		Deliveries []goal.DeliveryView `json:"deliveries"`
	}
	v.NoHooks = d.call(r, http.MethodGet, v.Links.Self+"/deliveries", nil, nil, &answer)
	v.Deliveries, v.Hooks = answer.Deliveries, v.NoHooks == nil
}

// webhookPart is the webhook's attempts alone, for the page's polling.
func (d *Dashboard) webhookPart(w http.ResponseWriter, r *http.Request) {
	snap, err := d.load(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := newTaskView(snap, time.Now())
	d.addDeliveries(r, &v)
	d.render(w, r, http.StatusOK, "webhook", v)
}

// meter is one guardrail: what is used of what there is.
type meter struct {
	Name    string
	Used    string
	Limit   string // empty: none
	Percent string // of the bar
	Full    bool
	Tripped bool
}

func newMeter(name string, used, limit int64, t goal.Task, reason goal.Reason) meter {
	m := meter{Name: name, Used: number(used), Tripped: t.Reason == reason}
	if limit > 0 {
		m.Limit, m.Full = number(limit), used >= limit
		m.Percent = percent(min(float64(used)/float64(limit)*most, most))
	}
	return m
}

func newMeters(t goal.Task, st story, now time.Time) []meter {
	g := t.Guardrails
	errs, same := st.inARow()
	out := []meter{
		newMeter("Steps", int64(t.Usage.Steps), int64(g.MaxSteps), t, goal.GuardrailMaxSteps),
		timeMeter(t, now),
		newMeter("Tokens", t.Usage.Tokens, g.MaxTokens, t, goal.GuardrailMaxTokens),
		newMeter("Errors in a row", int64(errs), int64(g.ConsecutiveErrors()), t, goal.GuardrailNoProgress),
		newMeter("Same call in a row", int64(same), int64(max(g.Repeats(), 2)), t, goal.GuardrailNoProgress),
	}
	if t.Reason == goal.GuardrailNoProgress { // one of the two; errors are looked at first
		out[3].Tripped, out[4].Tripped = out[3].Full, !out[3].Full
	}
	return out
}

func timeMeter(t goal.Task, now time.Time) meter {
	limit := t.Guardrails.Timeout()
	m := meter{Name: "Time", Used: "0 s", Limit: duration(limit), Percent: percent(0), Tripped: t.Reason == goal.GuardrailTimeout}
	if t.StartedAt == nil {
		return m
	}
	end := now
	if t.EndedAt != nil {
		end = *t.EndedAt
	}
	used := end.Sub(*t.StartedAt)
	m.Used, m.Full = duration(used), used >= limit
	m.Percent = percent(min(max(float64(used)/float64(limit)*most, 0), most))
	return m
}

// inARow counts the errors and the equal calls at the end of the journal.
func (st story) inARow() (errs, same int) {
	var last string
	for _, s := range st.Steps {
		if s.Outcome == nil && s.Refusal == nil {
			continue
		}
		if s.Bad() {
			errs++
		} else {
			errs = 0
		}
		this := s.Tool + "\x00" + string(s.Arguments)
		if s.Outcome != nil {
			this += "\x00" + string(s.Outcome.Result) + s.Outcome.Digest
		}
		if s.Observed != nil {
			this += "\x00" + s.Observed.StateHash
		}
		if this == last {
			same++
		} else {
			same, last = 1, this
		}
	}
	return errs, same
}

// condition is one demand on the state before the start.
type condition struct {
	Pointer string
	Want    string
	Have    string
	Mark    mark
}

// newConditions lists what was demanded. Which demands failed is known by their
// pointers; until the start the rest is unknown.
func newConditions(raw json.RawMessage, t goal.Task) ([]condition, []goal.Difference) {
	value, err := goal.Decode(raw)
	members, ok := value.(map[string]any)
	if err != nil || !ok {
		return nil, t.Checks
	}
	g := grower{}
	g.grow(members, "", 0)
	failed := map[string]goal.Difference{}
	for _, c := range t.Checks {
		failed[c.Pointer] = c
	}
	var out []condition
	for _, b := range g.out {
		if !b.Leaf {
			continue
		}
		c := condition{Pointer: b.Pointer, Want: b.Want, Mark: markDone}
		for _, at := range []string{b.Pointer, strings.TrimPrefix(b.Pointer, "/match"), "/pre_conditions" + b.Pointer} {
			if f, bad := failed[at]; bad {
				c.Mark, c.Have = markLeft, string(f.Have)
				delete(failed, at)
				break
			}
		}
		if c.Mark == markDone && t.StartedAt == nil {
			c.Mark = markUnknown
		}
		out = append(out, c)
	}
	var others []goal.Difference
	for _, c := range t.Checks {
		if _, rest := failed[c.Pointer]; rest {
			others = append(others, c)
		}
	}
	return out, others
}

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

// notes are what a page says after an action.
var notes = map[string]string{
	"cancel": "Cancel was requested. The call in flight is finished or given up first.",
	"resend": "The webhook will be sent again.",
	"again":  "Submitted again as this new task.",
}

func (d *Dashboard) cancel(w http.ResponseWriter, r *http.Request) {
	d.act(w, r, "cancel", "/cancel")
}

func (d *Dashboard) resend(w http.ResponseWriter, r *http.Request) {
	d.act(w, r, "resend", "/deliveries")
}

// act posts to a task's resource and shows the task.
func (d *Dashboard) act(w http.ResponseWriter, r *http.Request, note, resource string) {
	id := chi.URLParam(r, "id")
	if !isTaskID(id) {
		d.fail(w, r, goal.ErrNotFound)
		return
	}
	if err := d.call(r, http.MethodPost, goal.LinksOf(id).Self+resource, nil, nil, nil); err != nil {
		d.fail(w, r, err)
		return
	}
	http.Redirect(w, r, "/tasks/"+id+"?note="+note, http.StatusSeeOther)
}

// again submits the task's goal anew. The key is made of the form's nonce: a
// form that is sent twice is one task.
func (d *Dashboard) again(w http.ResponseWriter, r *http.Request) {
	snap, err := d.load(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, formLimit)
	nonce := r.PostFormValue("nonce")
	if len(nonce) != 26 || strings.Trim(nonce, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		d.fail(w, r, &goal.Problem{Title: "The form is not complete", Detail: "Go back and reload the task's page.", Status: http.StatusBadRequest})
		return
	}
	body, err := goal.Marshal(snap.Submission.Goal)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	var t goal.Task
	header := map[string]string{"Content-Type": "application/json", "Idempotency-Key": againKey + snap.Submission.TaskID + "." + nonce}
	if err := d.call(r, http.MethodPost, "/v1/tasks", header, body, &t); err != nil {
		d.fail(w, r, err)
		return
	}
	if !isTaskID(t.ID) {
		d.fail(w, r, errors.New("submit again: the answer has no task"))
		return
	}
	http.Redirect(w, r, "/tasks/"+t.ID+"?note=again", http.StatusSeeOther)
}

// againKey begins the Idempotency-Key of a copy; the task's id follows.
const againKey = "again."

// copiedFrom is the task that a key says the submission is a copy of.
func copiedFrom(key string) string {
	rest, ok := strings.CutPrefix(key, againKey)
	id, _, found := strings.Cut(rest, ".")
	if !ok || !found || !isTaskID(id) {
		return ""
	}
	return id
}

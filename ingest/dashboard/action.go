package dashboard

import (
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

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

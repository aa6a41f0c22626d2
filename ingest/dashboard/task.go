package dashboard

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
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

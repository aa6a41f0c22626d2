package dashboard

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// activityView is the last hour.
type activityView struct {
	Accepted, Ended, Succeeded int
	Running, Queued            int
	Median, P95                time.Duration
	Throughput, Latency        plot
	Queues                     []queueRow
	NoQueues                   bool
	Workers                    []workerRow
	Rebuilding                 bool
}

// SuccessRate is the share of ended tasks that reached their target.
func (v activityView) SuccessRate() string {
	if v.Ended == 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(v.Succeeded*1000/v.Ended)/10, 'f', -1, 64) + " %" // never rounded up to 100
}

type queueRow struct {
	Tenant string
	Queue
	Failed bool // it did not answer
}

type workerRow struct {
	Name                      string
	Running, Succeeded, Other int
	Seen                      time.Time
}

// minute is what happened within one minute.
type minute struct {
	accepted int
	ended    map[goal.State]int
	took     []time.Duration
}

func (d *Dashboard) activityPage(w http.ResponseWriter, r *http.Request) {
	who, _ := visitOf(r)
	v := d.newActivityView(who.Tenant, time.Now())
	v.NoQueues = d.cfg.Queue == nil
	v.Queues = d.queues(r.Context(), who.Caller)
	if partial(r) {
		d.render(w, r, http.StatusOK, "activity-live", v)
		return
	}
	d.page(w, r, http.StatusOK, "activity", frame{Title: "Activity", Nav: "activity", Reload: 10, Body: v})
}

func (d *Dashboard) newActivityView(tenant string, now time.Time) activityView {
	var v activityView
	hour := make([]minute, minutes)
	// The last column is the minute that is not over.
	from := now.Truncate(time.Minute).Add(-(minutes - 1) * time.Minute)
	workers := map[string]*workerRow{}
	var all []time.Duration
	v.Rebuilding = !d.cfg.Each(tenant, func(r Row) bool {
		v.countRow(r, from, hour, &all)
		countWorker(workers, r, from)
		return true
	})
	v.Median, v.P95 = quantile(all, 0.5), quantile(all, 0.95)
	v.Throughput, v.Latency = throughputPlot(hour, from), latencyPlot(hour, from)
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		v.Workers = append(v.Workers, *workers[name])
	}
	return v
}

func (v *activityView) countRow(r Row, from time.Time, hour []minute, all *[]time.Duration) {
	if r.Status == goal.Queued {
		v.Queued++
	}
	if r.Status == goal.Running {
		v.Running++
	}
	if i := minuteOf(r.AcceptedAt, from); i >= 0 {
		v.Accepted++
		hour[i].accepted++
	}
	if r.EndedAt == nil {
		return
	}
	i := minuteOf(*r.EndedAt, from)
	if i < 0 {
		return
	}
	took := max(r.EndedAt.Sub(r.AcceptedAt), 0)
	if hour[i].ended == nil {
		hour[i].ended = map[goal.State]int{}
	}
	hour[i].ended[r.Status]++
	hour[i].took = append(hour[i].took, took)
	*all = append(*all, took)
	v.Ended++
	if r.Status == goal.Succeeded {
		v.Succeeded++
	}
}

func countWorker(workers map[string]*workerRow, r Row, from time.Time) {
	if r.Worker == "" || r.ChangedAt.Before(from) && r.Status.Terminal() {
		return
	}
	w := workers[r.Worker]
	if w == nil {
		w = &workerRow{Name: r.Worker}
		workers[r.Worker] = w
	}
	switch r.Status {
	case goal.Running:
		w.Running++
	case goal.Succeeded:
		w.Succeeded++
	case goal.Queued, goal.Failed, goal.Cancelled:
		w.Other++
	}
	if r.ChangedAt.After(w.Seen) {
		w.Seen = r.ChangedAt
	}
}

// minuteOf is the column of a time, or -1.
func minuteOf(t, from time.Time) int {
	if t.Before(from) {
		return -1
	}
	if i := int(t.Sub(from) / time.Minute); i < minutes {
		return i
	}
	return minutes - 1 // another machine's clock is ahead
}

// quantile is the value that the share p does not pass; it sorts values.
func quantile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}

// queues are the queues that the viewer may see.
func (d *Dashboard) queues(ctx context.Context, who Caller) []queueRow {
	if d.cfg.Queue == nil {
		return nil
	}
	tenants := []string{who.Tenant}
	if who.Admin && len(d.cfg.Tenants) > 0 {
		tenants = d.cfg.Tenants
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	out := make([]queueRow, 0, len(tenants))
	for _, t := range tenants {
		q, err := d.cfg.Queue(ctx, t)
		if err != nil {
			d.cfg.Log.WarnContext(ctx, "queue cannot be read", "tenant", t, "error", err)
		}
		out = append(out, queueRow{Tenant: t, Queue: q, Failed: err != nil})
	}
	return out
}

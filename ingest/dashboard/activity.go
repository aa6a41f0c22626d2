package dashboard

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	minutes    = 60  // that the plots show
	plotHeight = 140 // pixels of a plot's bars; the template draws lines at half and whole
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

// plot is a picture of sixty minutes.
type plot struct {
	Columns []column
	Labels  []string // of the axis: top, middle, bottom
	Summary string   // for those who do not see it
}

// column is one minute.
type column struct {
	X, Width string // per cent
	Parts    []part
	Title    string
	At       time.Time
	Values   []string // for the table
}

// part is one bar of a column, in pixels from the top.
type part struct {
	Y, Height string
	Class     string
}

// plotTable is a plot in numbers.
type plotTable struct {
	plot

	ID    string
	Heads []string
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

// throughputPlot stacks how tasks ended, minute by minute.
func throughputPlot(hour []minute, from time.Time) plot {
	peak, ended := 1, 0
	for _, m := range hour {
		n := 0
		for _, k := range m.ended {
			n += k
		}
		peak, ended = max(peak, n), ended+n
	}
	top := niceCount(peak)
	p := plot{Summary: fmt.Sprintf("%d tasks ended within the last hour, at most %d a minute", ended, peak)}
	p.Labels = []string{number(top), number(top / 2), "0"}
	for i, m := range hour {
		c := newColumn(i, from)
		y := float64(plotHeight)
		c.Title = c.At.UTC().Format("15:04 UTC")
		for _, s := range []goal.State{goal.Succeeded, goal.Failed, goal.Cancelled} {
			n := m.ended[s]
			c.Values = append(c.Values, strconv.Itoa(n))
			if n == 0 {
				continue
			}
			h := float64(n) / float64(top) * plotHeight
			y -= h
			c.Parts = append(c.Parts, part{Y: pixels(y), Height: pixels(h), Class: string(s)})
			c.Title += fmt.Sprintf(", %d %s", n, s)
		}
		c.Values = append(c.Values, strconv.Itoa(m.accepted))
		p.Columns = append(p.Columns, c)
	}
	return p
}

// latencyPlot shows, minute by minute, the time from acceptance to the end:
// from the median to what 95 of 100 tasks stay below.
func latencyPlot(hour []minute, from time.Time) plot {
	var peak time.Duration
	for _, m := range hour {
		peak = max(peak, quantile(m.took, 0.95))
	}
	top := niceUnit(max(peak, 2*time.Millisecond))
	p := plot{Summary: "longest 95th percentile of a minute within the last hour: " + duration(peak)}
	p.Labels = []string{axisLabel(top), axisLabel(top / 2), "0"}
	for i, m := range hour {
		c := newColumn(i, from)
		if len(m.took) == 0 {
			c.Values = []string{"–", "–"}
			p.Columns = append(p.Columns, c)
			continue
		}
		median, p95 := quantile(m.took, 0.5), quantile(m.took, 0.95)
		c.Values = []string{duration(median), duration(p95)}
		c.Title = fmt.Sprintf("%s: median %s, 95 %% within %s", c.At.UTC().Format("15:04 UTC"), c.Values[0], c.Values[1])
		scale := func(d time.Duration) float64 { return float64(plotHeight) * (1 - float64(d)/float64(top)) }
		c.Parts = []part{
			{Y: pixels(scale(p95)), Height: pixels(max(scale(median)-scale(p95), 2)), Class: "span"},
			{Y: pixels(min(max(scale(median)-2, 0), plotHeight-4)), Height: "4", Class: "median"},
		}
		p.Columns = append(p.Columns, c)
	}
	return p
}

func newColumn(i int, from time.Time) column {
	const share = most / minutes
	return column{
		X: percent(float64(i)*share + share*0.14), Width: percent(share * 0.72),
		At: from.Add(time.Duration(i) * time.Minute),
	}
}

func pixels(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// niceCount is the next 1, 2 or 5 times a power of ten, at least 2.
func niceCount(n int) int {
	for unit := 1; ; unit *= 10 {
		for _, f := range []int{2, 4, 10} {
			if f*unit >= n {
				return f * unit
			}
		}
	}
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

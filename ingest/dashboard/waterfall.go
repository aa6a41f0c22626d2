package dashboard

import (
	"fmt"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// waterfall is a task's time on one axis: the wait in the queue, every step
// with the planner's time and the call's, and the marks of take-overs.
type waterfall struct {
	Lanes []lane
	Ticks []tick
	Cut   bool // the queue's bar is longer than it is drawn
}

// lane is one line of the waterfall.
type lane struct {
	Kind  string // "queue", "step", "resumed", "note"
	Label string
	Time  string // what the lane took
	Bars  []bar
	Step  *step // of a step's lane
	Ticks []tick
}

// bar is one span of time. Its place and width are per cent of the axis.
type bar struct {
	X, Width string
	Class    string // wait, plan, call, gap
	Pattern  string // "", "hatch" (repeated or replayed), "cross" (failed)
	Title    string
}

// tick is a mark on the axis.
type tick struct{ X, Label string }

const (
	leastWidth = 0.5 // per cent of the axis, so that a short bar can be seen
	most       = 100.0
	queueShare = 0.25 // of the time at work, that a long wait is cut to
)

// axis maps times to per cent.
type axis struct {
	from time.Time
	span time.Duration
}

func (a axis) at(t time.Time) float64 {
	return min(max(float64(t.Sub(a.from))/float64(a.span)*most, 0), most)
}

// bar draws a span. One that is too short is widened to the left at the end of
// the axis, to the right elsewhere.
func (a axis) bar(from, to time.Time, class, title string) bar {
	x, end := a.at(from), a.at(to)
	width := max(end-x, leastWidth)
	x = min(x, most-width)
	return bar{X: percent(x), Width: percent(width), Class: class, Title: title}
}

func percent(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) + "%" }

// newWaterfall draws the steps of a task. The store's clock and the workers'
// meet here; where they disagree, a bar is cut at the axis.
func newWaterfall(t goal.Task, steps []*step, marks []resumption, now time.Time) waterfall {
	end := now
	if t.EndedAt != nil {
		end = *t.EndedAt
	}
	for _, s := range steps {
		if s.To.After(end) {
			end = s.To
		}
	}
	started := end
	if t.StartedAt != nil {
		started = *t.StartedAt
	}
	if started.Before(t.AcceptedAt) {
		started = t.AcceptedAt
	}
	w := waterfall{}
	from, work := t.AcceptedAt, end.Sub(started)
	if lead := time.Duration(float64(work) * queueShare); t.StartedAt != nil && work > 0 && started.Sub(from) > lead {
		from, w.Cut = started.Add(-lead), true
	}
	a := axis{from: from, span: max(end.Sub(from), time.Millisecond)}
	wait := started.Sub(t.AcceptedAt)
	queue := a.bar(from, started, "wait", "waited "+duration(wait)+" for a worker")
	w.Lanes = append(w.Lanes, lane{Kind: "queue", Label: "In the queue", Time: duration(wait), Bars: []bar{queue}})
	w.addSteps(a, started, steps, marks)
	zero := started
	if t.StartedAt == nil {
		zero = from
	}
	w.Ticks = a.ticks(zero)
	for i := range w.Lanes {
		w.Lanes[i].Ticks = w.Ticks
	}
	return w
}

// addSteps adds the lanes of steps and take-overs in the order of time.
func (w *waterfall) addSteps(a axis, last time.Time, steps []*step, marks []resumption) {
	for _, s := range steps {
		for len(marks) > 0 && marks[0].before(s) {
			w.addResumption(a, marks[0])
			last, marks = later(last, marks[0].At), marks[1:]
		}
		l := lane{Kind: "step", Step: s, Label: s.Tool, Time: duration(s.To.Sub(s.From))}
		if gap := s.From.Sub(last); float64(gap)/float64(a.span)*most > leastWidth {
			l.Bars = append(l.Bars, a.bar(last, s.From, "gap", duration(gap)+" before the step"))
		}
		l.Bars = append(l.Bars, s.bars(a)...)
		w.Lanes = append(w.Lanes, l)
		last = s.To
	}
	for _, m := range marks {
		w.addResumption(a, m)
	}
}

func (w *waterfall) addResumption(a axis, m resumption) {
	silence := m.At.Sub(m.Since)
	w.Lanes = append(w.Lanes, lane{
		Kind: "resumed", Label: fmt.Sprintf("Taken over by %s, attempt %d", m.Worker, m.Attempt), Time: duration(silence),
		Bars: []bar{a.bar(m.Since, m.At, "wait", "no event for "+duration(silence))},
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ticks are round times from the start on, about five of them.
func (a axis) ticks(zero time.Time) []tick {
	unit := niceUnit(a.span / 5)
	var out []tick
	for at := time.Duration(0); at <= a.span; at += unit {
		x := a.at(zero.Add(at))
		if x > most-4 {
			break
		}
		out = append(out, tick{X: percent(x), Label: axisLabel(at)})
	}
	return out
}

// units are the round times that an axis is divided by.
var units = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// niceUnit is the next round time that is not shorter.
func niceUnit(d time.Duration) time.Duration {
	for _, u := range units {
		if u >= d {
			return u
		}
	}
	return d.Truncate(time.Hour) + time.Hour
}

func axisLabel(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
	case d < time.Hour && d%time.Minute == 0:
		return strconv.Itoa(int(d.Minutes())) + " min"
	default:
		return duration(d)
	}
}

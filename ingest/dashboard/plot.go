package dashboard

import (
	"fmt"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const (
	minutes    = 60  // that the plots show
	plotHeight = 140 // pixels of a plot's bars; the template draws lines at half and whole
)

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

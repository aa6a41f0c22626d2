package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// scenario is a column of the table under "Simulated".
type scenario struct {
	name      string
	load      example
	cells     float64 // over which the load is spread
	workers   int     // processes of a cell, of figures.bigSlots each
	notifiers float64 // of a cell
}

// scenarios are both examples, with the workers of the document's tables and
// with those that it recommends: a tenth more, at least one.
func (f figures) scenarios() []scenario {
	var out []scenario
	for _, e := range []struct {
		name string
		example
		cells, notifiers float64
	}{{"1 M", f.million, 1, 1}, {"1 G", f.billion, f.billion.cells(f), 2}} {
		bare := math.Ceil(e.atPeak() / e.cells * f.goalTime() / f.bigSlots)
		for _, workers := range []float64{bare, math.Ceil(max(1.1*bare, bare+1))} {
			out = append(out, scenario{fmt.Sprintf("%s, %.0f workers", e.name, workers), e.example, e.cells, int(workers), e.notifiers})
		}
	}
	return out
}

// cell is the scenario's cell around the peak of the day: it fills, is watched,
// loses a server, and later a worker.
func (f figures) cell(s scenario) cellConfig {
	return cellConfig{
		rate: s.load.atPeak() / s.cells, peak: s.load.peak,
		steps: int(f.steps), think: lognormal(f.think), call: exponential(f.call), answer: exponential(f.answer),
		store: f.commit(), tenants: 4, inWork: int(f.inWork),
		workers: s.workers, slots: int(f.bigSlots), posts: int(s.notifiers * f.inFlight),
		from: -200 * time.Second, steady: -100 * time.Second, serverLost: -40 * time.Second,
		workerLost: 110 * time.Second, to: 190 * time.Second,
		electionMin: f.electionMin, electionMax: f.electionMax,
		ackWait: f.ackWait, workerBack: 30 * time.Second, retryMost: time.Second,
	}
}

// Planners vary much, tools less.
func lognormal(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(math.Exp(r.NormFloat64()-0.5) * float64(mean)) }
}

func exponential(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
}

func atOnce(*rand.Rand) time.Duration { return 0 }

// TestScalingSimulated runs the scenarios and compares with the table under
// "Simulated". With -v it prints the table.
func TestScalingSimulated(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"| in one cell"}}
	for _, s := range scaling.scenarios() {
		rows[0] = append(rows[0], s.name)
		for i, cell := range scaling.report(s, simulate(scaling.cell(s))) {
			if i+1 == len(rows) {
				rows = append(rows, []string{"| " + cell[0]})
			}
			rows[i+1] = append(rows[i+1], cell[1])
		}
	}
	document := scalingSections(t)["Simulated"]
	var table strings.Builder
	for _, row := range rows {
		line := strings.Join(row, " | ") + " |"
		table.WriteString("\n" + line)
		checkSimulated(t, document, row[0]+" |", line)
	}
	t.Log(table.String())
}

// checkSimulated compares a row by a quarter: another processor may round
// differently, and chance makes much of it.
func checkSimulated(t *testing.T, document []string, begin, line string) {
	t.Helper()
	for _, block := range document {
		if !strings.HasPrefix(block, begin) {
			continue
		}
		got, want := numbersIn(block), numbersIn(line)
		same := len(got) == len(want)
		for i := 0; same && i < len(got); i++ {
			a, b := got[i].value(), want[i].value()
			same = math.Abs(a-b) <= max(a, b)/4
		}
		if !same {
			t.Errorf("Simulated: the document has\n%s\nthe simulation says\n%s", block, line)
		}
		return
	}
	t.Errorf("Simulated: no row begins with %q", begin)
}

// report is a column of the table: what it is, and how much.
func (f figures) report(s scenario, p []*phase) [][2]string {
	steady, server, worker := p[0], p[1], p[2]
	rows := [][2]string{
		{"slots", written(float64(s.workers) * f.bigSlots)},
		{"slots in use at the peak", written(steady.used)},
		{"`EVENTS`, share of its rate", written(100*steady.writes/f.replicaSome) + " %"},
		{"writes in one commit", written(steady.shared)},
		{"from acceptance to start, p50", quantile(steady.start, 50)},
		{"the same, p99", quantile(steady.start, 99)},
		{"from end to webhook, p99", quantile(steady.told, 99)},
		{"memory of a server", written(s.load.retained()/s.cells*f.bytesPerTask/1e9) + " GB"},
	}
	for _, lost := range []struct {
		what string
		*phase
	}{{"server", server}, {"worker", worker}} {
		caught := written(lost.behind.Seconds()) + " s"
		if lost.behind > lost.to-lost.from-time.Second {
			caught = "not in " + caught
		}
		rows = append(rows, [][2]string{
			{lost.what + " lost: start, p99", quantile(lost.start, 99)},
			{lost.what + " lost: goals that wait, at most", written(float64(lost.backlog))},
			{lost.what + " lost: caught up after", caught},
		}...)
	}
	return rows
}

// quantile is one of a histogram of microseconds.
func quantile(h *hdrhistogram.Histogram, q float64) string {
	us := float64(h.ValueAtQuantile(q))
	if us < 100_000 {
		return written(us/1000) + " ms"
	}
	return written(us/1e6) + " s"
}

// written is v with two digits, or all of its whole part from 1,000 on.
func written(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%d,%03d", int(v)/1000, int(v)%1000)
	case v >= 10, v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
}

// TestScalingQueue compares the simulation with what is known of c servers with
// one queue: how long a goal waits (Erlang C), and how many servers are busy.
func TestScalingQueue(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		slots int
		rate  float64
	}{
		{"one slot, half used", 1, 0.5},
		{"ten slots, 80 % used", 10, 8},
		{"a hundred slots, 90 % used", 100, 90},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			goals := 200_000.0
			to := seconds(goals / row.rate)
			p := simulate(cellConfig{
				rate: row.rate, peak: 1, steps: 1, think: exponential(time.Second), call: atOnce,
				tenants: 3, workers: 1, slots: row.slots, steady: to / 10, to: to,
			})[0]
			c := float64(row.slots)
			near(t, "mean wait, s", p.start.Mean()/1e6, erlangC(row.slots, row.rate)/(c-row.rate), 0.1)
			near(t, "busy slots", p.used, row.rate, 0.02)
		})
	}
}

// erlangC is the share of goals that wait for one of c slots, each of which
// works on a goal for a mean of 1, when so many come in that time.
func erlangC(c int, load float64) float64 {
	b := 1.0 // Erlang B by its recursion
	for n := 1; n <= c; n++ {
		b = load * b / (float64(n) + load*b)
	}
	return b / (1 - load/float64(c)*(1-b))
}

// TestScalingCommit compares the leader's group commit with the rates that were
// measured, and with what a commit holds when writes come by chance.
func TestScalingCommit(t *testing.T) {
	t.Parallel()
	f := scaling
	for _, row := range []struct {
		name        string
		writers     int
		least, most float64
	}{
		{"one writer", 1, f.replicaAlone, f.replicaAlone},
		// The first one back begins a commit of its own, which the others wait for.
		{"as many as a commit takes", int(f.someWriters), 0.8 * f.replicaSome, f.replicaSome},
		{"many writers", int(f.manyWriters), f.replicaSome, f.replicaSome},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			// Slots that do nothing but write, and goals without end.
			p := simulate(cellConfig{
				rate: 2 * f.replicaMany, peak: 1, steps: 1000, think: atOnce, call: atOnce,
				store: f.commit(), tenants: 1, workers: 1, slots: row.writers, steady: time.Second / 10, to: time.Second / 2,
			})[0]
			if p.writes < row.least*0.98 || p.writes > row.most*1.02 {
				t.Errorf("%.0f writes/s, measured %.0f to %.0f", p.writes, row.least, row.most)
			}
		})
	}
	t.Run("open", func(t *testing.T) {
		t.Parallel()
		for _, share := range []float64{0.3, 0.55, 0.8} {
			goals := share * f.replicaSome / f.toEvents()
			conf := f.cell(scenario{load: example{perDay: goals * 24 * 60 * 60, peak: 1}, cells: 1, workers: 1, notifiers: 1})
			conf.think, conf.call, conf.answer = exponential(time.Second), atOnce, nil // a short way
			conf.slots, conf.from, conf.steady, conf.to, conf.serverLost, conf.workerLost = 100_000, 0, 30*time.Second, 60*time.Second, 0, 0
			conf.inWork = 0
			p := simulate(conf)[0]
			rate := goals * f.toEvents()
			near(t, "writes/s", p.writes, rate, 0.02)
			// n writes a commit that takes sync + n*each, in which n come.
			near(t, "writes in a commit", p.shared, rate*conf.store.sync.Seconds()/(1-rate*conf.store.each.Seconds()), 0.1)
		}
	})
}

// TestScalingDay: the day's curve has the mean and the peak that it should.
func TestScalingDay(t *testing.T) {
	t.Parallel()
	for _, peak := range []float64{1, 3, 10} {
		c := concentration(peak)
		near(t, "peak over mean", daily(c, 0)/dailyMean(c), peak, 0.001)
	}
}

// near reports a value that is not within a share of what it should be.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: %.4g, want %.4g ± %.0f %%", what, got, want, 100*share)
	}
}

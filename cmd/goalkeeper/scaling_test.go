package main

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker"
)

// figures is what deploy/SCALING.md counts with: the values, and where they come
// from, stand in scaling. Rates are writes a second.
type figures struct {
	someWriters, manyWriters                             float64
	alwaysAlone, alwaysSome, alwaysSyncs                 float64 // embedded, a sync per message
	groupSome, groupMany, groupSyncs                     float64 // embedded, group commit
	replicaAlone, replicaSome, replicaMany, replicaSyncs float64 // three servers
	electionMin, electionMax                             time.Duration

	subjects                        float64 // in the stream that the next four were measured with
	subjectMin, subjectMax          float64 // bytes of heap for each
	restartMin, restartMax          time.Duration
	subjectsPerTask                 float64
	bytesPerTask, diskPerTask       float64
	messageOverhead, inlineKiB      float64
	queueWrites                     float64 // of a goal, and so on
	eventWrites, eventWritesPerStep float64
	resultWrites, deliveryWrites    float64
	slots, bigSlots                 float64 // of a worker process
	ackWait                         time.Duration
	inWork, listed                  float64 // goals of a tenant
	inFlight, destination           float64 // webhooks of a notifier

	steps               float64
	think, call, answer time.Duration // means: planner and tool for a step, receiver of a webhook
	serverBytes         float64       // memory of a server for what is retained
	replicas            float64
	million, billion    example
}

// example is a load that SCALING.md works out.
type example struct {
	perDay, peak float64 // goals; the peak as a multiple of the mean
	retention    float64 // days
}

var scaling = figures{
	// Publishes of 512 bytes into one file-backed stream of a quiet machine, by so
	// many writers, each with one in flight; and syncs per write for someWriters.
	someWriters: 64, manyWriters: 256,
	alwaysAlone: 4_400, alwaysSome: 5_000, alwaysSyncs: 1.00, // durability: always
	groupSome: 36_000, groupMany: 57_000, groupSyncs: 0.05, // durability: group
	replicaAlone: 1_350, replicaSome: 19_800, replicaMany: 36_000, replicaSyncs: 0.14, // three servers, sync_interval: always, one disk
	// How long publishes fail after kill -9 of the leader among three servers.
	electionMin: 5 * time.Second, electionMax: 8 * time.Second,

	// Streams of up to 1,000,000 subjects: heap of the server, and its start after a
	// clean end and after kill -9. Of whole tasks: goalkeeper bench list --finished N.
	subjects: 1_000_000, subjectMin: 150, subjectMax: 500,
	restartMin: 400 * time.Millisecond, restartMax: 2600 * time.Millisecond,
	// Reckoned from these for a finished task with a webhook: goal, journal, end,
	// result, delivery.
	subjectsPerTask: 5, bytesPerTask: 1200, diskPerTask: 10_000,
	messageOverhead: 30, inlineKiB: goal.MaxInline >> 10, // headers of a stored message; what is larger is an object

	// TestWritesPerGoal counts them.
	queueWrites: 1, eventWrites: 2, eventWritesPerStep: 2, resultWrites: 1, deliveryWrites: 2,

	// Limits and defaults of the program: worker.concurrency and what the examples
	// set it to; MaxAckPending of a tenant's queue and the length of a list;
	// attempts of a notifier in all and at one destination.
	slots: 64, bigSlots: 512, ackWait: worker.DefaultAckWait, inWork: 10_000, listed: 10_000,
	inFlight: 256, destination: 8,

	// The examples are chosen.
	steps: 5, think: 5 * time.Second, call: time.Second, answer: 500 * time.Millisecond,
	serverBytes: 64e9, replicas: 3,
	million: example{perDay: 1e6, peak: 10, retention: 7},
	billion: example{perDay: 1e9, peak: 3, retention: 2},
}

func (f figures) goalTime() float64 { return f.steps * (f.think + f.call).Seconds() }

// toEvents and durable are what a goal writes to EVENTS and in all.
func (f figures) toEvents() float64 { return f.eventWrites + f.eventWritesPerStep*f.steps }

func (f figures) durable() float64 {
	return f.queueWrites + f.toEvents() + f.resultWrites + f.deliveryWrites
}

// commit is the group commit that has the measured rates for one writer and for
// some, and takes no more writes at once than those: what more writers reach is
// left as a reserve.
func (f figures) commit() groupCommit {
	one, all := 1/f.replicaAlone, f.someWriters/f.replicaSome // seconds
	each := (all - one) / (f.someWriters - 1)
	return groupCommit{sync: seconds(one - each), each: seconds(each), most: int(f.someWriters)}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (e example) mean() float64     { return e.perDay / (24 * 60 * 60) } // goals a second
func (e example) atPeak() float64   { return e.mean() * e.peak }
func (e example) retained() float64 { return e.perDay * e.retention }

// cells is how many clusters hold what is retained.
func (e example) cells(f figures) float64 {
	return math.Ceil(e.retained() * f.bytesPerTask / f.serverBytes)
}

// restart is the time in which one server reads the example's subjects, from and to.
func (e example) restart(f figures) (from, to float64) {
	n := e.retained() / e.cells(f) * f.subjectsPerTask / f.subjects
	return n * f.restartMin.Seconds(), n * f.restartMax.Seconds()
}

// claims are the numbers of SCALING.md by section and by the beginning of the
// row, item or paragraph, in the order in which they stand there.
func (f figures) claims() map[string]map[string][]float64 {
	const kilo, mega, giga, tera = 1e3, 1e6, 1e9, 1e12
	m, b := f.million, f.billion
	mFrom, mTo := m.restart(f)
	bFrom, bTo := b.restart(f)
	fixed := f.durable() - f.eventWritesPerStep*f.steps
	processes := func(n, each float64) float64 { return math.Ceil(n / each) }
	return map[string]map[string][]float64{
		"What a goal writes": {
			"| `GOALS_":      {f.queueWrites},
			"| `EVENTS`":     {f.eventWrites, f.eventWritesPerStep},
			"| `KV_RESULTS`": {f.resultWrites},
			"| `DELIVERIES`": {f.deliveryWrites, 2},
			"| `KV_LOCKS`":   {1, 1},
			"So ":            {fixed, f.eventWritesPerStep, f.eventWrites, f.eventWritesPerStep, f.steps, f.durable(), f.toEvents()},
		},
		"What limits one stream": {
			"| store":                          {1, f.someWriters, f.someWriters},
			"| embedded, `durability: always`": {f.alwaysAlone, f.alwaysSome, f.alwaysSyncs},
			"| embedded, `durability: group`":  {f.groupSome, f.groupSyncs, f.groupMany, f.manyWriters},
			"| three replicas":                 {f.replicaAlone, f.replicaSome, f.replicaSyncs, f.replicaMany, f.manyWriters},
			"- A leader":                       {f.electionMin.Seconds(), f.electionMax.Seconds(), 503},
			"`EVENTS` is the first": {
				f.replicaSome, f.toEvents(), f.replicaSome / f.toEvents(), f.steps,
				f.groupSome, f.durable(), f.groupSome / f.durable(),
			},
		},
		"What else grows": {
			"- **Memory": {f.subjectMin, f.subjectMax, f.subjects, f.bytesPerTask / kilo},
			"- **Disk":   {f.messageOverhead, f.steps, f.diskPerTask / kilo, f.inlineKiB},
			"- **Restart": {
				f.restartMin.Seconds(), f.restartMax.Seconds(), f.subjects, mFrom, mTo, bFrom / 60, bTo / 60,
			},
			"- **Workers":   {f.slots},
			"- **Tenants":   {f.inWork, f.inWork / f.goalTime(), f.goalTime()},
			"- **Notifiers": {f.inFlight, f.destination, f.destination / f.answer.Seconds(), f.answer.Seconds() * kilo},
			"- **Ingest":    {f.listed},
		},
		"A million goals a day": {
			"Five steps":       {f.goalTime(), m.peak, m.retention},
			"| goals":          {m.mean(), m.atPeak()},
			"| durable writes": {m.mean() * f.durable(), m.atPeak() * f.durable()},
			"| writes to":      {m.mean() * f.toEvents(), m.atPeak() * f.toEvents(), 100 * m.atPeak() * f.toEvents() / f.replicaSome},
			"| slots":          {f.goalTime(), m.mean() * f.goalTime(), m.atPeak() * f.goalTime(), processes(m.mean()*f.goalTime(), f.slots), f.slots, processes(m.atPeak()*f.goalTime(), f.slots), processes(m.atPeak()*f.goalTime(), f.bigSlots), f.bigSlots},
			"| webhooks":       {f.answer.Seconds() * kilo, m.mean() * f.answer.Seconds(), m.atPeak() * f.answer.Seconds()},
			"| tasks retained": {m.retained(), m.retained() * f.bytesPerTask / giga, m.retained() * f.diskPerTask / giga},
		},
		"A billion goals a day": {
			"The same goals":   {b.peak, b.retention},
			"| goals":          {b.mean(), b.atPeak()},
			"| writes to":      {b.mean() * f.toEvents(), b.atPeak() * f.toEvents(), processes(b.mean()*f.toEvents(), f.replicaSome), processes(b.atPeak()*f.toEvents(), f.replicaSome)},
			"| tasks retained": {b.retained(), b.retained() * f.bytesPerTask / tera, b.cells(f), f.replicas, f.serverBytes / giga, b.retained() * f.diskPerTask / tera},
			"| slots":          {b.mean() * f.goalTime(), b.atPeak() * f.goalTime(), processes(b.atPeak()*f.goalTime(), f.bigSlots), f.bigSlots},
			"| tenants":        {processes(b.atPeak()*f.goalTime(), f.inWork)},
			"| webhooks":       {f.answer.Seconds() * kilo, b.mean() * f.answer.Seconds(), b.atPeak() * f.answer.Seconds(), processes(b.atPeak()*f.answer.Seconds(), f.inFlight)},
			"Memory decides":   {b.cells(f), b.atPeak() / b.cells(f), 100 * b.atPeak() / b.cells(f) * f.toEvents() / f.replicaSome},
		},
	}
}

// TestScalingDocument: every number in the reckoning sections of SCALING.md is
// what the figures give, to the digits that are written.
func TestScalingDocument(t *testing.T) {
	t.Parallel()
	document := scalingSections(t)
	for section, claims := range scaling.claims() {
		seen := 0
		for _, block := range document[section] {
			got := numbersIn(block)
			if len(got) == 0 {
				continue
			}
			want, ok := claimOf(claims, block)
			if !ok {
				t.Errorf("%s: nobody checks the numbers of %q", section, block)
				continue
			}
			seen++
			if !slices.EqualFunc(got, want, numeral.rounds) {
				t.Errorf("%s: %q\n has  %v\n want %.6v", section, block, got, want)
			}
		}
		if seen != len(claims) {
			t.Errorf("%s: %d of %d claims were found", section, seen, len(claims))
		}
	}
}

// scalingSections are the rows, items and paragraphs of SCALING.md by heading.
func scalingSections(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	blocks := regexp.MustCompile(`\n\n+|\n(?:\d+\. )?(?:[|-])`)
	for section := range strings.SplitSeq(string(readDeploy(t, "SCALING.md")), "\n## ") {
		heading, text, _ := strings.Cut(section, "\n")
		for at := 0; at < len(text); {
			end := len(text)
			if next := blocks.FindStringIndex(text[at+1:]); next != nil {
				end = at + 1 + next[0]
			}
			if block := strings.Join(strings.Fields(text[at:end]), " "); block != "" {
				out[heading] = append(out[heading], block)
			}
			at = end
		}
	}
	return out
}

func claimOf(claims map[string][]float64, block string) ([]float64, bool) {
	for begin, want := range claims {
		if strings.HasPrefix(block, begin) {
			return want, true
		}
	}
	return nil, false
}

// numeral is a number as it is written.
type numeral string

var (
	numerals = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)
	codeSpan = regexp.MustCompile("`[^`]*`")
)

func numbersIn(text string) []numeral {
	var out []numeral
	for _, s := range numerals.FindAllString(codeSpan.ReplaceAllString(text, ""), -1) {
		out = append(out, numeral(strings.ReplaceAll(strings.TrimRight(s, ","), ",", "")))
	}
	return out
}

func (n numeral) value() float64 {
	v, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		panic(err) // numerals matches numbers only
	}
	return v
}

// rounds reports whether n is v, rounded to the digits of n. Zeros at the end of
// a whole number are no digits.
func (n numeral) rounds(v float64) bool {
	var unit float64
	if whole, decimals, ok := strings.Cut(string(n), "."); ok {
		unit = math.Pow10(-len(decimals))
	} else {
		unit = math.Pow10(len(whole) - len(strings.TrimRight(whole, "0")))
	}
	return math.Abs(n.value()-v) <= unit/2*(1+1e-9)
}

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// benchCmd generates load.
type benchCmd struct {
	Mode        string        `arg:"" enum:"submit,replay,list,e2e,trivial,gateway,middleware,webhook,noop" help:"What to measure: submit, replay, list, e2e, trivial, gateway, middleware, webhook or noop."`
	Concurrency int           `short:"c" default:"16" help:"Requests in flight."`
	Duration    time.Duration `short:"d" default:"10s" help:"How long to measure."`
	Operations  int64         `short:"n" placeholder:"N" help:"End after so many operations, if that is sooner."`
	Warmup      time.Duration `default:"1s" help:"How long to run before measuring."`
	Rate        float64       `placeholder:"N" help:"Start N operations a second, and count latency from when each was due. Default: each begins when the one before ends."`
	Via         string        `enum:"http,nats" default:"http" help:"submit, e2e, trivial: how goals are sent and followed, http or nats; nats is for a server in this process."`
	Durability  string        `enum:"group,always" default:"group" help:"Of the server in this process: group or always."`
	Path        string        `default:"/bench" help:"gateway: the path that is called."`
	Repeat      int           `default:"1" help:"gateway, middleware: how often each key is sent; from the second time on it is a replay."`
	Finished    int           `placeholder:"N" help:"Fill the store with so many finished tasks before, and start the server on it anew."`
	Queued      int           `placeholder:"N" help:"And with so many goals that wait."`
	Workers     int           `default:"-1" placeholder:"N" help:"Goals that the server in this process works on at a time. Default: none for submit, as many as are in flight for the others."`
	Ratio       bool          `help:"Measure noop and the disk as well, before and after, and compare."`
	Profile     string        `type:"existingdir" placeholder:"DIR" help:"Write the profiles cpu.pprof and allocs.pprof of this process to the folder."`
	Dir         string        `type:"existingdir" placeholder:"DIR" help:"Where the server in this process keeps its store while it runs. Default: the system's temporary folder, which may be in memory."`
	Receiver    string        `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"webhook: where to receive; the server must allow and reach it."`
	remoteFlags

	fill *benchFill
}

// Help says what the modes do.
func (*benchCmd) Help() string {
	return `submit: goals are accepted, one key each. replay: one goal, which has ended, is submitted again and again; with
--workers 0 it still waits. list: the newest tasks. e2e: from submission to the reached target, by one call of a built-in
tool. trivial: the same, where the target holds already. gateway: protected calls through a gateway (--server is the
gateway). middleware: the same before a handler in the server itself. webhook: from submission to the webhook's receipt by
this process, which the server must be able to reach. noop: a handler that does nothing, behind the same router, to compare
with.

Without --server or --context a server is started in this process. GOALKEEPER_URL and the current context do not count
here: load is for a server that is named.`
}

// benchResult is what was measured. Times are in milliseconds.
type benchResult struct {
	Mode        string             `json:"mode"`
	Concurrency int                `json:"concurrency"`
	Rate        float64            `json:"rate_wanted,omitempty"`
	Seconds     float64            `json:"seconds"`
	Operations  int64              `json:"operations"`
	Errors      int64              `json:"errors"`
	FirstError  string             `json:"first_error,omitempty"`
	PerSecond   float64            `json:"per_second"`
	Latency     map[string]float64 `json:"latency_ms"`

	Fill *benchFill `json:"store,omitempty"` // of --finished and --queued

	// Of --ratio.
	Noop  float64 `json:"noop_per_second,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	Sync  float64 `json:"sync_ms,omitempty"` // median time in which the disk takes one small write
}

// operation is one measured piece of work of one of the workers, which are
// numbered from 0. It may be called concurrently by different workers.
type operation func(ctx context.Context, worker int) error

// Run measures.
func (c *benchCmd) Run(ctx context.Context, t *terminal) (err error) {
	if c.Concurrency < 1 || c.Duration <= 0 || c.Repeat < 1 || c.Rate < 0 || c.Finished < 0 || c.Queued < 0 {
		return usageError("--concurrency and --repeat must be at least 1, --duration above 0, no number below 0")
	}
	if (c.Ratio || c.Finished+c.Queued > 0) && (c.Server != "" || c.Context != "") {
		return usageError("--ratio, --finished and --queued are for a server in this process: leave out --server and --context")
	}
	if c.Via == "nats" {
		switch {
		case c.Server != "" || c.Context != "":
			return usageError("--via nats is for a server in this process: leave out --server and --context")
		case c.Mode != "submit" && c.Mode != "e2e" && c.Mode != "trivial":
			return usageError("--via nats is for submit, e2e and trivial")
		}
	}
	if c.Finished > 0 || c.Queued > 0 {
		c.fill = &benchFill{Finished: c.Finished, Queued: c.Queued}
	}
	var noop [2]float64
	if c.Ratio {
		if noop[0], err = c.yardstick(ctx, t); err != nil {
			return err
		}
	}
	r, err := c.measure(ctx, t)
	if err != nil {
		return err
	}
	r.Fill = c.fill
	if c.Ratio {
		if noop[1], err = c.yardstick(ctx, t); err != nil {
			return err
		}
		if r.Sync, err = syncTime(ctx, c.Dir); err != nil {
			return err
		}
		r.Noop = rounded((noop[0] + noop[1]) / 2)
		r.Ratio = rounded(r.PerSecond / r.Noop)
	}
	return printBench(t, r)
}

// yardstick is the rate of the handler that does nothing.
func (c *benchCmd) yardstick(ctx context.Context, t *terminal) (float64, error) {
	noop := *c
	noop.Mode, noop.Via, noop.Rate, noop.Operations, noop.Profile, noop.fill = "noop", "http", 0, 0, "", nil
	r, err := noop.measure(ctx, t)
	return r.PerSecond, err
}

func (c *benchCmd) measure(ctx context.Context, t *terminal) (r benchResult, err error) {
	api, server, stop, err := c.target(ctx, t)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	defer api.close()
	api.notef = func(string, ...any) {} // a repetition is part of the latency
	b := bench{cmd: c, api: api, nonce: rand.Text()}
	if c.Via == "nats" {
		if b.direct, err = openBenchDirect(ctx, server); err != nil {
			return r, err
		}
		defer b.direct.close()
	}
	op, done, err := b.prepare(ctx)
	if err != nil {
		return r, err
	}
	defer done()
	t.notef("%s: %s with %d in flight, after %s", c.Mode, c.Duration, c.Concurrency, c.Warmup)
	m := newMeter(time.Now().Add(c.Warmup))
	endProfile, err := profile(c.Profile)
	if err != nil {
		return r, err
	}
	drive(ctx, c, op, m, t)
	if err := endProfile(); err != nil {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return m.result(c), nil
}

// target is the server that is named, or one in this process, then with the
// address of its NATS server if that is wanted.
func (c *benchCmd) target(ctx context.Context, t *terminal) (api *client, natsURL string, stop func() error, err error) {
	if c.Server != "" || c.Context != "" {
		api, err = c.dial(t)
		return api, "", func() error { return nil }, err
	}
	opts := benchServer{Via: c.Via, Mode: c.Mode, Durability: c.Durability, Dir: c.Dir, Fill: c.fill, Progress: t.notef, Workers: c.Workers}
	switch {
	case c.Workers >= 0:
	case c.Mode == "submit", c.Mode == "list":
		opts.Workers = 0
	default:
		opts.Workers = max(c.Concurrency, 64)
	}
	server, stop, err := startBenchServer(ctx, opts)
	if err != nil {
		return nil, "", nil, err
	}
	if api, err = newClient(server.url(), "", t.notef); err != nil {
		return nil, "", nil, errors.Join(err, stop())
	}
	if s, ok := server.(*service); ok && c.Via == "nats" {
		natsURL = s.broker.server.ClientURL()
	}
	return api, natsURL, stop, nil
}

// drive keeps operations in flight until the time is over or enough were
// started, and waits for the last ones.
func drive(ctx context.Context, c *benchCmd, op operation, m *meter, t *terminal) {
	ctx, cancel := context.WithTimeout(ctx, c.Warmup+c.Duration)
	defer cancel()
	begin := time.Now()
	var started atomic.Int64
	work := func(worker int) {
		for ctx.Err() == nil {
			n := started.Add(1)
			if c.Operations > 0 && n > c.Operations {
				return
			}
			due := time.Now()
			if c.Rate > 0 {
				due = begin.Add(time.Duration(float64(n-1) / c.Rate * float64(time.Second)))
				if sleep(ctx, time.Until(due)) != nil {
					return
				}
			}
			// What began in time may end: cutting it off would hide the slowest.
			err := op(context.WithoutCancel(ctx), worker)
			m.record(due, time.Now(), err)
		}
	}
	var workers sync.WaitGroup
	for worker := range c.Concurrency {
		workers.Go(func() { work(worker) })
	}
	ended := make(chan struct{})
	go func() { workers.Wait(); close(ended) }()
	report := time.NewTicker(time.Second)
	defer report.Stop()
	for {
		select {
		case <-report.C:
			t.notef("%s", m.progress())
		case <-ended:
			return
		}
	}
}

// bench is one benchmark.
type bench struct {
	cmd    *benchCmd
	api    *client
	direct *benchDirect // nil: over HTTP
	nonce  string       // makes the keys and entities of this run its own
	n      atomic.Int64
}

// prepare makes the mode's operation, and what ends it.
func (b *bench) prepare(ctx context.Context) (operation, func(), error) {
	nothing := func() {}
	if b.cmd.Mode == "list" || b.cmd.fill != nil {
		// The list is being rebuilt for a while after the start.
		if err := b.api.get(ctx, "/v1/tasks", nil, &struct{}{}); err != nil {
			return nil, nothing, err
		}
	}
	switch b.cmd.Mode {
	case "submit", "noop":
		return func(ctx context.Context, _ int) error {
			n := b.n.Add(1)
			if b.direct != nil {
				return b.direct.submit(ctx, b.key(n), b.goal(n, ""))
			}
			_, err := b.submit(ctx, b.key(n), b.goal(n, ""))
			return err
		}, nothing, nil
	case "list":
		return func(ctx context.Context, _ int) error {
			_, err := b.api.once(ctx, request{method: http.MethodGet, path: "/v1/tasks"})
			return err
		}, nothing, nil
	case "replay":
		body := b.goal(0, "")
		first := func() error { return b.endToEnd(ctx, b.key(0), 0) }
		if b.cmd.Workers == 0 {
			first = func() error { _, err := b.submit(ctx, b.key(0), body); return err }
		}
		if err := first(); err != nil {
			return nil, nothing, err
		}
		return func(ctx context.Context, _ int) error {
			r, err := b.submit(ctx, b.key(0), body)
			if err == nil && r.header.Get("Idempotent-Replayed") != "true" {
				return errors.New("the answer is not a replay")
			}
			return err
		}, nothing, nil
	case "e2e":
		return func(ctx context.Context, _ int) error {
			n := b.n.Add(1)
			return b.endToEnd(ctx, b.key(n), n)
		}, nothing, nil
	case "trivial":
		if err := b.endToEnd(ctx, b.key(0), 0); err != nil {
			return nil, nothing, err
		}
		return func(ctx context.Context, _ int) error { return b.endToEnd(ctx, b.key(b.n.Add(1)), 0) }, nothing, nil
	case "gateway", "middleware":
		return b.protectedCalls(), nothing, nil
	default:
		return b.webhooks(ctx)
	}
}

func (b *bench) key(n int64) string { return "bench-" + b.nonce + "-" + strconv.FormatInt(n, 10) }

// goal is a goal of about 300 bytes that one call of a built-in tool reaches.
func (b *bench) goal(n int64, webhook string) []byte {
	hook := ""
	if webhook != "" {
		hook = fmt.Sprintf(`,"webhook_url":%q`, webhook)
	}
	return fmt.Appendf(nil, `{"goal":{"intent":"Benchmark goal %d","target_state":{"bench":{"%s-%d":{"status":"done","n":%d}}}},`+
		`"guardrails":{"max_steps":5,"timeout_seconds":60},"context":{"note":"made by goalkeeper bench; it may be deleted"}%s}`,
		n, b.nonce, n, n, hook)
}

// submit submits once: a refusal or a lost answer is an error to be counted.
func (b *bench) submit(ctx context.Context, key string, body []byte) (*response, error) {
	return b.api.once(ctx, request{
		method: http.MethodPost, path: "/v1/tasks", body: body, header: map[string]string{"Idempotency-Key": key},
	})
}

// endToEnd submits a goal and follows its events to the end. n is the number of
// the entity that the goal is about.
func (b *bench) endToEnd(ctx context.Context, key string, n int64) error {
	if b.direct != nil {
		return b.direct.endToEnd(ctx, key, b.goal(n, ""))
	}
	r, err := b.submit(ctx, key, b.goal(n, ""))
	if err != nil {
		return err
	}
	var task struct {
		ID string `json:"id"`
	}
	if err := r.decode(&task); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, receiptTime, fmt.Errorf("no end after %s", receiptTime))
	defer cancel()
	var end *goal.Ended
	for last := 0; end == nil; {
		over, err := stream(ctx, b.api, task.ID, last, func(e goal.Event) error {
			last, end = max(last, e.N), e.Ended
			return nil
		})
		if err != nil || over && end == nil {
			return cmp.Or(context.Cause(ctx), err, errors.New("the events have no end"))
		}
	}
	if end.Status != goal.Succeeded {
		return fmt.Errorf("the task ended %s", end.Reason)
	}
	return nil
}

// protectedCalls sends each key as often as is wanted, one after the other: two
// at once would be a conflict.
func (b *bench) protectedCalls() operation {
	type sequence struct{ n, sent int64 }
	workers := make([]sequence, b.cmd.Concurrency) // each used by one worker
	return func(ctx context.Context, worker int) error {
		w := &workers[worker]
		if w.sent%int64(b.cmd.Repeat) == 0 {
			w.n = b.n.Add(1)
		}
		w.sent++
		return b.protectedCall(ctx, w.n)
	}
}

func (b *bench) protectedCall(ctx context.Context, n int64) error {
	_, err := b.api.once(ctx, request{
		method: http.MethodPost, path: b.cmd.Path, body: fmt.Appendf(nil, `{"n":%d}`, n),
		header: map[string]string{"Idempotency-Key": b.key(n)},
	})
	return err
}

// receiptTime is how long a goal's end or its webhook may take before it counts
// as an error.
const receiptTime = 30 * time.Second

// webhooks receives in this process what the server sends.
func (b *bench) webhooks(ctx context.Context) (operation, func(), error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", b.cmd.Receiver)
	if err != nil {
		return nil, nil, err
	}
	var waiting sync.Map // path → chan struct{}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // it may be cut off: the arrival is what counts
		w.WriteHeader(http.StatusNoContent)
		if c, ok := waiting.LoadAndDelete(r.URL.Path); ok {
			close(c.(chan struct{})) //nolint:forcetypeassert // the map holds nothing else
		}
	})}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends with cancel; done waits for it
		defer close(ended)
		_ = serveListener(ctx, s, l) // a receiver that fails shows as webhooks that do not arrive
	}()
	done := func() { cancel(); <-ended }
	return func(ctx context.Context, _ int) error {
		n := b.n.Add(1)
		path := "/" + b.key(n)
		arrived := make(chan struct{})
		waiting.Store(path, arrived)
		if _, err := b.submit(ctx, b.key(n), b.goal(n, "http://"+l.Addr().String()+path)); err != nil {
			return err
		}
		late := time.NewTimer(receiptTime)
		defer late.Stop()
		select {
		case <-arrived:
			return nil
		case <-late.C:
			return fmt.Errorf("no webhook after %s", receiptTime)
		}
	}, done, nil
}

// Range of the histogram, in microseconds: three digits of everything up to
// ten minutes.
const (
	slowest = 600_000_000
	digits  = 3
)

// meter counts what was measured. It may be used concurrently.
type meter struct {
	from time.Time // what ended before is warm-up

	mu     sync.Mutex
	hist   *hdrhistogram.Histogram // guarded by mu
	errors int64                   // guarded by mu
	first  error                   // guarded by mu
	last   time.Time               // guarded by mu
}

func newMeter(from time.Time) *meter {
	return &meter{from: from, last: from, hist: hdrhistogram.New(1, slowest, digits)}
}

// record counts an operation that was due at one time and ended at another.
func (m *meter) record(due, ended time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.errors++
		if m.first == nil {
			m.first = err
		}
		return
	}
	if ended.Before(m.from) {
		return
	}
	m.last = ended
	_ = m.hist.RecordValue(min(max(ended.Sub(due).Microseconds(), 1), slowest)) // it is in range
}

func (m *meter) progress() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("%8d done, %d errors, p50 %s, p99 %s", m.hist.TotalCount(), m.errors,
		time.Duration(m.hist.ValueAtQuantile(50))*time.Microsecond, time.Duration(m.hist.ValueAtQuantile(99))*time.Microsecond)
}

func (m *meter) result(c *benchCmd) benchResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := max(m.last.Sub(m.from), time.Millisecond)
	ms := func(us int64) float64 { return float64(us) / 1000 }
	r := benchResult{
		Mode: c.Mode, Concurrency: c.Concurrency, Rate: c.Rate, Seconds: float64(took.Milliseconds()) / 1000,
		Operations: m.hist.TotalCount(), Errors: m.errors,
		PerSecond: rounded(float64(m.hist.TotalCount()) / took.Seconds()),
		Latency: map[string]float64{
			"p50": ms(m.hist.ValueAtQuantile(50)), "p90": ms(m.hist.ValueAtQuantile(90)), "p99": ms(m.hist.ValueAtQuantile(99)),
			"p99.9": ms(m.hist.ValueAtQuantile(99.9)), "max": ms(m.hist.Max()), "mean": ms(int64(m.hist.Mean())),
		},
	}
	if m.first != nil {
		r.FirstError = m.first.Error()
	}
	return r
}

// rounded has three decimals.
func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// printBench prints the result. Errors are an error: a fast refusal is no result.
func printBench(t *terminal, r benchResult) error {
	var err error
	if t.machine() {
		err = t.document(r)
	} else {
		rows := [][]string{
			{"mode", r.Mode},
			{"in flight", strconv.Itoa(r.Concurrency)},
			{"operations", strconv.FormatInt(r.Operations, 10)},
			{"errors", strconv.FormatInt(r.Errors, 10)},
			{"per second", strconv.FormatFloat(r.PerSecond, 'f', 1, 64)},
		}
		for _, q := range []string{"mean", "p50", "p90", "p99", "p99.9", "max"} {
			rows = append(rows, []string{q, strconv.FormatFloat(r.Latency[q], 'f', 3, 64) + " ms"})
		}
		if f := r.Fill; f != nil {
			rows = append(rows,
				[]string{"finished tasks", strconv.Itoa(f.Finished)},
				[]string{"queued goals", strconv.Itoa(f.Queued)},
				[]string{"restart", strconv.FormatFloat(f.Restart, 'f', 3, 64) + " s"},
				[]string{"live heap", strconv.FormatUint(f.Heap>>20, 10) + " MiB"},
				[]string{"heap per task", strconv.FormatFloat(f.HeapOfTask, 'f', 0, 64) + " B"},
				[]string{"store", strconv.FormatInt(f.Disk>>20, 10) + " MiB"})
		}
		if r.Noop > 0 {
			rows = append(rows,
				[]string{"noop per second", strconv.FormatFloat(r.Noop, 'f', 1, 64)},
				[]string{"ratio", strconv.FormatFloat(r.Ratio, 'f', 3, 64)},
				[]string{"one sync", strconv.FormatFloat(r.Sync, 'f', 3, 64) + " ms"})
		}
		err = t.table(rows)
	}
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d operations failed, the first: %s", r.Errors, r.FirstError)
	}
	return err
}

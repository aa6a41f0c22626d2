package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// webhookCmd is the receiver's and the operator's side of webhooks.
type webhookCmd struct {
	Listen     webhookListenCmd     `cmd:"" help:"Receive webhooks, verify and print them."`
	Verify     webhookVerifyCmd     `cmd:"" help:"Say whether a recorded webhook verifies, and if not, why."`
	Secret     webhookSecretCmd     `cmd:"" help:"Make a signing secret."`
	Deliveries webhookDeliveriesCmd `cmd:"" help:"List a task's deliveries with every attempt."`
	Redeliver  webhookRedeliverCmd  `cmd:"" help:"Send a task's webhook again, or all that failed since a time."`
	Test       webhookTestCmd       `cmd:"" help:"Send a webhook.test event to a URL."`
}

// secretFlag is the receiver's secret.
type secretFlag struct {
	Secret string `placeholder:"whsec_…" help:"The tenant's secret, or an ed25519 public key (also GOALKEEPER_WEBHOOK_SECRET)."`
}

// secret is the flag or the environment's secret; it may be empty.
func (f secretFlag) secret() (string, error) {
	s := cmp.Or(f.Secret, os.Getenv("GOALKEEPER_WEBHOOK_SECRET"))
	if s == "" {
		return "", nil
	}
	return s, notifier.CheckSecret(s)
}

// webhookListenCmd receives webhooks.
type webhookListenCmd struct {
	secretFlag
	Listen    string `default:"127.0.0.1:8999" placeholder:"HOST:PORT" help:"Where to listen; port 0 is any free one."`
	FailFirst int    `placeholder:"N" help:"Answer 500 to the first N attempts of each webhook."`
	Status    int    `default:"204" help:"Answer what verifies with this status."`
	Count     int    `placeholder:"N" help:"End after N webhooks that verified and were taken."`
	outputFlags
}

// received is one attempt as it is printed.
type received struct {
	At       time.Time       `json:"at"`
	ID       string          `json:"webhook_id"`
	Attempt  string          `json:"attempt,omitempty"`
	Verified bool            `json:"verified"`
	Why      string          `json:"why,omitempty"` // why it does not verify
	Answered int             `json:"answered"`
	Again    bool            `json:"again,omitempty"` // it had been taken before
	Body     json.RawMessage `json:"body,omitempty"`
}

const maxReceived = 1 << 20 // bytes of a body: more than any sender of ours sends

// Run listens until it is interrupted, or --count is reached.
func (c *webhookListenCmd) Run(ctx context.Context, t *terminal) error {
	secret, err := c.secret()
	if err != nil {
		return usageError("%w", err)
	}
	if secret == "" {
		t.notef("no secret: nothing is verified")
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	r := &receiver{cmd: c, t: t, secret: secret, enough: enough, tries: map[string]int{}, taken: map[string]bool{}}
	s := &http.Server{Handler: r, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	fmt.Fprintf(t.err, "listening on http://%s\n", l.Addr())
	return serveListener(ctx, s, l)
}

// receiver handles webhooks. Attempts are handled one at a time, so that what
// is printed never mixes.
type receiver struct {
	cmd    *webhookListenCmd
	t      *terminal
	secret string
	enough func()

	mu    sync.Mutex
	tries map[string]int  // by webhook-id; guarded by mu
	taken map[string]bool // by webhook-id; guarded by mu
}

// ServeHTTP takes one attempt.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReceived))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.judge(req, body)
	if rec.Answered == http.StatusNoContent {
		w.WriteHeader(rec.Answered)
	} else {
		http.Error(w, http.StatusText(rec.Answered), rec.Answered)
	}
	if err := r.print(rec); err != nil { // stdout is gone: nobody listens any more
		r.enough()
	}
	if r.cmd.Count > 0 && len(r.taken) >= r.cmd.Count {
		r.enough()
	}
}

// judge verifies an attempt and decides about its answer.
func (r *receiver) judge(req *http.Request, body []byte) received {
	rec := received{
		At: time.Now().UTC(), ID: req.Header.Get(notifier.HeaderID), Attempt: req.Header.Get("Goalkeeper-Attempt"),
		Answered: r.cmd.Status,
	}
	if json.Valid(body) {
		rec.Body = body
	} else if quoted, err := goal.Marshal(string(body)); err == nil {
		rec.Body = quoted
	}
	if r.secret != "" {
		if err := notifier.Verify(r.secret, req.Header, body, rec.At, 0); err != nil {
			rec.Why, rec.Answered = err.Error(), http.StatusUnauthorized
			return rec
		}
		rec.Verified = true
	}
	r.tries[rec.ID]++
	rec.Again = r.taken[rec.ID]
	switch {
	case r.tries[rec.ID] <= r.cmd.FailFirst:
		rec.Answered = http.StatusInternalServerError
	case rec.Answered < http.StatusMultipleChoices:
		r.taken[rec.ID] = true
	}
	return rec
}

func (r *receiver) print(rec received) error {
	t := r.t
	if t.machine() {
		return t.line(rec)
	}
	word := t.paint(green, "verified")
	if !rec.Verified {
		word = t.paint(yellow, "not verified")
		if rec.Why != "" {
			word = t.paint(red, "refused: "+printable(rec.Why))
		}
	}
	line := fmt.Sprintf("%s  %s  %s  answered %d", rec.At.Format("15:04:05.000"), oneLine(rec.ID, 60), word, rec.Answered)
	if rec.Attempt != "" {
		line += "  attempt " + oneLine(rec.Attempt, 10)
	}
	return t.printf("%s%s\n%s\n", line, mark(rec.Again, "  (taken before)"), printable(string(indent(rec.Body))))
}

// webhookVerifyCmd explains a recorded webhook.
type webhookVerifyCmd struct {
	secretFlag
	Headers   string        `required:"" placeholder:"FILE" help:"The request's header fields, one \"Name: value\" on a line."`
	Body      string        `required:"" placeholder:"FILE" help:"The body, byte for byte as it was received; - is stdin."`
	At        string        `placeholder:"TIME" help:"When it was received (RFC 3339). Default: the time is not checked."`
	Tolerance time.Duration `default:"5m" help:"How far the timestamp may be from --at."`
	outputFlags
}

// Run verifies, and where it fails says what else would.
func (c *webhookVerifyCmd) Run(t *terminal) error {
	secret, err := c.secret()
	if err != nil || secret == "" {
		return usageError("want a secret by --secret or GOALKEEPER_WEBHOOK_SECRET: %w", cmp.Or(err, errors.New("there is none")))
	}
	headers, err := readHeaders(c.Headers)
	if err != nil {
		return err
	}
	body, err := readInput(c.Body, t.in)
	if err != nil {
		return err
	}
	now, tolerance := time.Now(), time.Duration(-1)
	if c.At != "" {
		tolerance = c.Tolerance
		if now, err = time.Parse(time.RFC3339, c.At); err != nil {
			return usageError("--at: %w", err)
		}
	}
	if err := notifier.Verify(secret, headers, body, now, tolerance); err != nil {
		t.hint = whatElse(secret, headers, body)
		return err
	}
	if t.machine() {
		return t.document(map[string]any{"verified": true, "webhook_id": headers.Get(notifier.HeaderID)})
	}
	return t.printf("verified: %s\n", headers.Get(notifier.HeaderID))
}

// whatElse looks for the usual accidents with a body.
func whatElse(secret string, headers http.Header, body []byte) string {
	var compact bytes.Buffer
	_ = json.Compact(&compact, body) // what is no JSON stays empty and does not verify
	for _, try := range []struct {
		body []byte
		say  string
	}{
		{bytes.TrimRight(body, "\r\n"), "It would verify without the line end after the body: keep the bytes as they come."},
		{append(bytes.Clone(body), '\n'), "It would verify with a line end after the body: keep the bytes as they come."},
		{bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n")), "It would verify with plain line ends: keep the bytes as they come."},
		{compact.Bytes(), "It would verify without the white space: somebody parsed the body and wrote it again."},
	} {
		if notifier.Verify(secret, headers, try.body, time.Now(), -1) == nil {
			return try.say
		}
	}
	return ""
}

// readHeaders reads header fields; a request or status line before them and an
// empty line after them are passed over.
func readHeaders(path string) (http.Header, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	for line := range strings.Lines(string(raw)) {
		name, v, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && !strings.ContainsAny(name, " \t") {
			h.Add(textproto.CanonicalMIMEHeaderKey(name), strings.TrimSpace(v))
		}
	}
	return h, nil
}

// webhookSecretCmd makes a secret.
type webhookSecretCmd struct {
	Ed25519 bool `name:"ed25519" help:"An ed25519 key pair: the private key for the server, the public one for receivers."`
	outputFlags
}

// Run prints the secret.
func (c *webhookSecretCmd) Run(t *terminal) error {
	if !c.Ed25519 {
		s := notifier.NewSecret()
		if t.machine() {
			return t.document(map[string]string{"secret": s})
		}
		return t.printf("%s\n", s)
	}
	private, public, err := notifier.NewKeyPair()
	if err != nil {
		return err
	}
	if t.machine() {
		return t.document(map[string]string{"private": private, "public": public})
	}
	return t.table([][]string{{"private", private}, {"public", public}})
}

// webhookDeliveriesCmd lists a task's deliveries.
type webhookDeliveriesCmd struct {
	taskArg
	remoteFlags
}

// Run lists the deliveries.
func (c *webhookDeliveriesCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	var raw json.RawMessage
	if err := api.get(ctx, taskPath(c.ID)+"/deliveries", nil, &raw); err != nil {
		return err
	}
	return printDeliveries(t, raw)
}

// deliveryList is what the API answers about deliveries.
type deliveryList struct {
	Deliveries []goal.DeliveryView `json:"deliveries"`
}

func printDeliveries(t *terminal, raw json.RawMessage) error {
	if t.machine() {
		return t.document(raw)
	}
	var list deliveryList
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("the server's deliveries cannot be read: %w", err)
	}
	rows := [][]string{}
	for _, d := range list.Deliveries {
		rows = append(rows, []string{d.ID, string(d.State), d.URL, "next " + cmp.Or(when(&d.Next), "none")})
		for _, a := range d.Attempts {
			rows = append(rows, []string{
				fmt.Sprintf("  %d", a.N), cmp.Or(a.Error, strconv.Itoa(a.Status)), when(&a.At),
				string(a.Trigger) + " in " + short(time.Duration(a.Took)),
			})
		}
	}
	return t.table(rows)
}

// Paths of the operators' API for webhooks (role admin).
const (
	redeliverPath = "/v1/admin/webhooks/redeliver"
	testPath      = "/v1/admin/webhooks/test"
)

// webhookRedeliverCmd sends webhooks again.
type webhookRedeliverCmd struct {
	ID    string `arg:"" optional:"" help:"Task id (tsk_…)."`
	Since string `placeholder:"TIME" help:"All that failed since then: RFC 3339, or a duration such as 24h (role admin)."`
	remoteFlags
}

// Run asks for the deliveries. It is not repeated: each request is a delivery.
func (c *webhookRedeliverCmd) Run(ctx context.Context, t *terminal) error {
	q := request{method: http.MethodPost}
	switch {
	case (c.ID == "") == (c.Since == ""):
		return usageError("want a task id, or --since")
	case c.ID != "":
		q.path = taskPath(c.ID) + "/deliveries"
	default:
		since, err := sinceTime(c.Since, time.Now())
		if err != nil {
			return err
		}
		q.path, q.query = redeliverPath, url.Values{"since": {since.UTC().Format(time.RFC3339)}}
	}
	return c.post(ctx, t, q)
}

// post sends the request and prints the answer.
func (r remoteFlags) post(ctx context.Context, t *terminal, q request) error {
	api, err := r.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	res, err := api.do(ctx, q)
	if err != nil {
		return err
	}
	if t.machine() {
		return t.document(json.RawMessage(res.body))
	}
	t.notef("accepted")
	return t.printf("%s\n", printable(string(indent(res.body))))
}

// sinceTime reads a time, or a duration before now.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usageError("--since: %q is neither a time such as 2026-01-02T15:04:05Z nor a duration such as 24h", s)
	}
	return at, nil
}

// webhookTestCmd sends a test event.
type webhookTestCmd struct {
	URL string `arg:"" name:"url" help:"The receiver; it must pass the checks of a webhook_url."`
	remoteFlags
}

// Run asks for the event.
func (c *webhookTestCmd) Run(ctx context.Context, t *terminal) error {
	body, err := goal.Marshal(map[string]string{"url": c.URL})
	if err != nil {
		return err
	}
	return c.post(ctx, t, request{method: http.MethodPost, path: testPath, body: body})
}

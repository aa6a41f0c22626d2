package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// callsPath is the operators' API for the records of protected calls (role admin).
const callsPath = "/v1/admin/calls"

// callsCmd is the operator's view of protected tool calls.
type callsCmd struct {
	List     callsListCmd     `cmd:"" help:"List records."`
	Get      callsGetCmd      `cmd:"" help:"Show a record."`
	Release  callsReleaseCmd  `cmd:"" help:"Let a held call run again: it took no effect."`
	Complete callsCompleteCmd `cmd:"" help:"Give a held call its answer: it did take effect."`
}

// callRecord is a record as the API answers it.
type callRecord struct {
	ID         string    `json:"id"`
	State      string    `json:"state"`
	Owner      string    `json:"owner"`
	Attempt    int       `json:"attempt"`
	Tenant     string    `json:"tenant"`
	KeyHint    string    `json:"key_hint"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Reason     string    `json:"reason"`
	Started    time.Time `json:"started"`
	LeaseUntil time.Time `json:"lease_until"`
	Answer     *struct {
		Status int `json:"status"`
		Size   int `json:"size"`
	} `json:"answer"`
}

type callsListCmd struct {
	State string `enum:"any,IN_PROGRESS,HELD,COMPLETED,RELEASED" default:"HELD" placeholder:"STATE" help:"IN_PROGRESS, HELD, COMPLETED, RELEASED or any; HELD ones wait for a decision."`
	Limit int    `short:"n" default:"100" help:"At most so many."`
	remoteFlags
}

// Run lists the records.
func (c *callsListCmd) Run(ctx context.Context, t *terminal) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	if c.State != "any" {
		q.Set("state", c.State)
	}
	var list struct {
		Calls []json.RawMessage `json:"calls"`
	}
	if err := api.get(ctx, callsPath, q, &list); err != nil {
		return err
	}
	if t.machine() {
		return listOut(t, list.Calls)
	}
	rows := [][]string{{"ID", "STATE", "TENANT", "KEY", "CALL", "ATTEMPT", "STARTED", "REASON"}}
	for _, raw := range list.Calls {
		var r callRecord
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("the server's list cannot be read: %w", err)
		}
		rows = append(rows, []string{
			r.ID, r.State, r.Tenant, r.KeyHint + "…", r.Method + " " + oneLine(r.Path, 60), strconv.Itoa(r.Attempt), when(&r.Started), oneLine(r.Reason, 60),
		})
	}
	return t.table(rows)
}

type callsGetCmd struct {
	ID     string `arg:"" optional:"" help:"Id of the record, as calls list shows it."`
	Key    string `placeholder:"KEY" help:"The Idempotency-Key, instead of the id."`
	Tenant string `default:"default" help:"The key's tenant."`
	remoteFlags
}

// Run shows the record.
func (c *callsGetCmd) Run(ctx context.Context, t *terminal) error {
	if (c.ID == "") == (c.Key == "") {
		return usageError("want the id of a record, or --key")
	}
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	path, q := callPath(c.ID), url.Values(nil)
	if c.Key != "" {
		path, q = callsPath, url.Values{"tenant": {c.Tenant}, "key": {c.Key}}
	}
	var raw json.RawMessage
	if err := api.get(ctx, path, q, &raw); err != nil {
		return err
	}
	if t.machine() {
		return t.document(raw)
	}
	var r callRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the server's record cannot be read: %w", err)
	}
	rows := [][]string{
		{"id", r.ID},
		{"state", r.State},
		{"reason", r.Reason},
		{"tenant", r.Tenant},
		{"key", r.KeyHint + "…"},
		{"call", r.Method + " " + r.Path},
		{"attempt", strconv.Itoa(r.Attempt)},
		{"owner", r.Owner},
		{"started", when(&r.Started)},
		{"lease until", cmp.Or(when(&r.LeaseUntil), "none")},
	}
	if r.Answer != nil {
		rows = append(rows, []string{"answer", fmt.Sprintf("%d with %d bytes", r.Answer.Status, r.Answer.Size)})
	}
	return t.table(rows)
}

func callPath(id string) string { return callsPath + "/" + url.PathEscape(id) }

type callsReleaseCmd struct {
	ID     string `arg:"" help:"Id of the record."`
	Reason string `required:"" help:"How it is known; kept with the record."`
	remoteFlags
}

// Run releases the call.
func (c *callsReleaseCmd) Run(ctx context.Context, t *terminal) error {
	return c.decide(ctx, t, callPath(c.ID)+"/release", callDecision{Reason: c.Reason})
}

type callsCompleteCmd struct {
	ID     string   `arg:"" help:"Id of the record."`
	Reason string   `required:"" help:"How it is known; kept with the record."`
	Status int      `required:"" help:"HTTP status of the answer."`
	Header []string `short:"H" sep:"none" placeholder:"NAME:VALUE" help:"A header field of the answer."`
	Body   string   `placeholder:"FILE" help:"Body of the answer; - is stdin."`
	remoteFlags
}

// Run gives the call its answer.
func (c *callsCompleteCmd) Run(ctx context.Context, t *terminal) error {
	d := callDecision{Reason: c.Reason, Status: c.Status, Header: http.Header{}}
	for _, field := range c.Header {
		name, v, ok := strings.Cut(field, ":")
		if !ok {
			return usageError("--header %q is not of the form Name: value", field)
		}
		d.Header.Add(strings.TrimSpace(name), strings.TrimSpace(v))
	}
	if c.Body != "" {
		body, err := readInput(c.Body, t.in)
		if err != nil {
			return err
		}
		d.Body = string(body)
	}
	return c.decide(ctx, t, callPath(c.ID)+"/complete", d)
}

// callDecision is what an operator decides about a held call.
type callDecision struct {
	Reason string      `json:"reason"`
	Status int         `json:"status,omitempty"`
	Header http.Header `json:"header,omitempty"`
	Body   string      `json:"body,omitempty"`
}

// decide sends the decision. It is not repeated: the second one would be refused.
func (r remoteFlags) decide(ctx context.Context, t *terminal, path string, d callDecision) error {
	api, err := r.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	body, err := goal.Marshal(d)
	if err != nil {
		return err
	}
	res, err := api.do(ctx, request{method: http.MethodPost, path: path, body: body})
	if err != nil {
		return err
	}
	if t.machine() && len(res.body) > 0 {
		return t.document(json.RawMessage(res.body))
	}
	t.notef("done")
	return nil
}

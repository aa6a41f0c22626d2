package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/agent"
)

// HTTPConfig configures a planner that is an HTTP service.
type HTTPConfig struct {
	URL     string
	Headers map[string]string // may hold secrets; never logged
	Timeout time.Duration     // of one answer; 0: DefaultTimeout
}

// HTTP is a planner that is an HTTP service: it is sent the situation and
// answers the next actions. It may be asked the same question again, and must
// have no side effect.
type HTTP struct{ c *client }

// NewHTTP checks the configuration. Close it at the end.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	c, err := newClient(cfg.URL, cfg.Headers, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	return &HTTP{c: c}, nil
}

// Close closes idle connections.
func (h *HTTP) Close() { h.c.close() }

// question is the body that the service is sent.
type question struct {
	TaskID   string            `json:"task_id"`
	Tenant   string            `json:"tenant"`
	Goal     goal.Goal         `json:"goal"`
	Left     []goal.Difference `json:"left"`
	State    map[string]any    `json:"state"`
	Steps    []pastStep        `json:"steps"`
	Tools    []agent.ToolSpec  `json:"tools"`
	Budget   budget            `json:"budget"`
	Notice   string            `json:"notice,omitempty"`
	Deadline time.Time         `json:"deadline"`
}

// pastStep is an earlier step. PlannerState is what the service answered with it.
type pastStep struct {
	N            int             `json:"n"`
	Tool         string          `json:"tool,omitempty"`
	Arguments    json.RawMessage `json:"arguments,omitempty"`
	Why          string          `json:"why,omitempty"`
	Outcome      *goal.Outcome   `json:"outcome,omitempty"`
	Refused      *refused        `json:"refused,omitempty"`
	PlannerState json.RawMessage `json:"planner_state,omitempty"`
}

type refused struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

type budget struct {
	Steps   int     `json:"steps"`
	Tokens  *int64  `json:"tokens,omitempty"` // left out: no limit
	Seconds float64 `json:"seconds"`
}

// decision is the body of an answer. Either Actions or Action is set, or none
// of them when there is nothing to do.
type decision struct {
	Actions      []goal.Action   `json:"actions"`
	Action       *goal.Action    `json:"action"`
	Why          string          `json:"why"`
	Tokens       int64           `json:"tokens"`
	PlannerState json.RawMessage `json:"planner_state"`
}

// Decide implements agent.Planner.
func (h *HTTP) Decide(ctx context.Context, s agent.Situation) (agent.Answer, error) {
	body, err := goal.Marshal(ask(s))
	if err != nil {
		return agent.Answer{}, err
	}
	r, err := h.c.post(ctx, body)
	switch {
	case err != nil:
		return agent.Answer{}, err
	case r.status == http.StatusNoContent:
		return agent.Answer{}, nil
	case r.status != http.StatusOK:
		return agent.Answer{}, failure(r, string(r.body))
	}
	return read(r.body)
}

// read takes an answer, strictly: the service is ours to define.
func read(body []byte) (agent.Answer, error) {
	bad := func(err error) (agent.Answer, error) {
		return agent.Answer{}, &agent.PlannerError{Kind: agent.PlannerBadAnswer, Err: err}
	}
	if _, err := goal.Decode(body); err != nil {
		return bad(fmt.Errorf("the answer is not JSON: %w", err))
	}
	var d decision
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return bad(fmt.Errorf("the answer is not a decision: %w", err))
	}
	if d.Action != nil {
		if len(d.Actions) > 0 {
			return bad(errors.New("the answer has both action and actions"))
		}
		d.Actions = []goal.Action{*d.Action}
	}
	if d.Tokens < 0 {
		return bad(errors.New("tokens are negative"))
	}
	return agent.Answer{Actions: d.Actions, Why: d.Why, Tokens: d.Tokens, State: d.PlannerState}, nil
}

// ask is the situation as the service is sent it.
func ask(s agent.Situation) question {
	q := question{
		TaskID: s.TaskID, Tenant: s.Tenant, Goal: s.Goal, Left: s.Left, State: s.State, Tools: s.Tools, Notice: s.Notice,
		Deadline: s.Deadline.UTC(), Steps: make([]pastStep, 0, len(s.Steps)),
		Budget: budget{Steps: s.Budget.Steps, Seconds: s.Budget.Time.Seconds()},
	}
	if s.Budget.Tokens >= 0 {
		q.Budget.Tokens = &s.Budget.Tokens
	}
	for _, step := range s.Steps {
		p := pastStep{N: step.N, Outcome: step.Outcome}
		if r := step.Refusal; r != nil {
			p.Tool, p.Arguments, p.Why, p.PlannerState = r.Tool, r.Arguments, r.Why, r.PlannerState
			p.Refused = &refused{Kind: r.Kind, Message: r.Message}
		}
		if d := step.Decision; d != nil {
			p.Tool, p.Arguments, p.Why, p.PlannerState = d.Tool, d.Arguments, d.Why, d.PlannerState
		}
		q.Steps = append(q.Steps, p)
	}
	// The URL of the webhook is nobody's business here and may hold a secret.
	q.Goal.WebhookURL = ""
	return q
}

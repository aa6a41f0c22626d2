package idempotency

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// call is a protected request that passed every check.
type call struct {
	tenant, key string
	id          string // of its record
	fp          string
	body        []byte
	slot        slot
}

// slot is the place of a call in its session. The zero value means that the
// caller named none.
type slot struct {
	session, tool string
	step          int
}

func (s slot) named() bool { return s.session != "" }

// unsafeMethod reports whether the contract protects the method. All others
// pass, and their Idempotency-Key is ignored.
func unsafeMethod(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// admit reads and checks a request before anything is stored: key, tenant,
// body, fingerprint, derived key. The call is returned with its key also when
// there is a problem, for the answer to echo.
func (g *Guard) admit(w http.ResponseWriter, r *http.Request) (*call, *goal.Problem) {
	c := &call{}
	key, p := goal.ParseKey(r.Header.Values(HeaderKey))
	if p != nil {
		return c, p
	}
	c.key = key
	tenant, err := g.cfg.Tenant(r)
	if err != nil {
		if p, ok := errors.AsType[*goal.Problem](err); ok {
			return c, p
		}
		return c, goal.NewProblem(goal.Unauthenticated, "")
	}
	c.tenant, c.id = tenant, recordID(tenant, key)
	if c.body, p = g.readBody(w, r); p != nil {
		return c, p
	}
	fp, payload, err := fingerprint(r, c.body, g.cfg.MaxRequest)
	if err != nil {
		return c, bodyProblem(err)
	}
	c.fp = fp
	c.slot, p = g.derived(r, c, payload)
	return c, p
}

// readBody reads the whole body, which is needed before the call is claimed:
// half an upload must not become a call. A body whose announced length is too
// large is refused without asking for it (no 100 Continue).
func (g *Guard) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *goal.Problem) {
	if r.ContentLength > g.cfg.MaxRequest {
		return nil, bodyProblem(errTooLarge)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.cfg.MaxRequest))
	if err != nil {
		return nil, bodyProblem(err)
	}
	return body, nil
}

func bodyProblem(err error) *goal.Problem {
	var (
		tooLarge *http.MaxBytesError
		syntax   *goal.SyntaxError
	)
	switch {
	case errors.Is(err, errTooLarge), errors.As(err, &tooLarge):
		return goal.NewProblem(goal.PayloadTooLarge, "")
	case errors.As(err, &syntax):
		p := goal.NewProblem(goal.MalformedJSON, "The body cannot be compared with a later one.")
		p.Errors = []goal.FieldError{{Pointer: syntax.Pointer, Detail: syntax.Detail}}
		return p
	}
	return goal.NewProblem(goal.MalformedJSON, "The body is not whole, or is not what its Content-Encoding says.")
}

// derived recomputes the key from the three fields that name its slot.
func (g *Guard) derived(r *http.Request, c *call, payload []byte) (slot, *goal.Problem) {
	session, step, tool := r.Header.Get(HeaderSession), r.Header.Get(HeaderStep), r.Header.Get(HeaderTool)
	if session == "" && step == "" && tool == "" && !g.cfg.RequireDerivedKey {
		return slot{}, nil
	}
	mismatch := func(detail string) (slot, *goal.Problem) {
		return slot{}, goal.NewProblem(goal.KeyMismatch, detail)
	}
	if session == "" || step == "" || tool == "" {
		return mismatch("Goalkeeper-Session, Goalkeeper-Step and Goalkeeper-Tool go together.")
	}
	n, err := strconv.Atoi(step)
	if err != nil || n < 0 || strconv.Itoa(n) != step {
		return mismatch("Goalkeeper-Step is not a decimal number without leading zeros.")
	}
	if len(c.body) == 0 {
		payload = []byte("{}") // a tool called without arguments
	}
	if payload == nil {
		return mismatch("The key cannot be recomputed: the body is not JSON.")
	}
	want, err := goal.ToolCallKey(session, n, tool, payload)
	if err != nil {
		return mismatch("The key cannot be recomputed: session and tool are 1 to 128 characters of A-Z a-z 0-9 . _ ~ -")
	}
	if want != c.key {
		return mismatch("The key is not the one that session, step, tool and payload give.")
	}
	return slot{session, tool, n}, nil
}

// takeSlot makes the slot the key's, or finds that it is. Another key means
// that the step was planned anew and would have a second effect.
func (g *Guard) takeSlot(ctx context.Context, c *call) (mine bool, err error) {
	id := slotID(c.tenant, c.slot.session, strconv.Itoa(c.slot.step), c.slot.tool)
	rev := uint64(0)
	for range rounds {
		if rev == 0 {
			_, err = g.cfg.Store.Create(ctx, id, []byte(c.id), g.cfg.ResultTTL)
		} else {
			_, err = g.cfg.Store.Update(ctx, id, []byte(c.id), rev, g.cfg.ResultTTL)
		}
		if !raced(err) {
			return err == nil, err
		}
		var owner []byte
		owner, rev, err = g.cfg.Store.Get(ctx, id)
		if err == nil {
			return string(owner) == c.id, nil
		}
		if !errors.Is(err, goal.ErrNotFound) {
			return false, err
		}
	}
	return false, goal.ErrUnavailable
}

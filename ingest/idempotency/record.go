package idempotency

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// State is where a call's record stands. The machine is drawn in ledger.go.
type State string

// The states of a record.
const (
	InProgress State = "IN_PROGRESS" // a holder runs the call
	Held       State = "HELD"        // the call may have taken effect; nobody runs it
	Completed  State = "COMPLETED"   // the answer is final
	Released   State = "RELEASED"    // the call failed in a way that may be repeated
)

// States lists every state.
func States() []State { return []State{InProgress, Held, Completed, Released} }

// Record is what the store keeps of one key.
type Record struct {
	Version     int    `json:"v"`
	State       State  `json:"state"`
	Fingerprint string `json:"fp"`
	// Owner is a nonce of the attempt that wrote the record last, "operator:"
	// and a name when a person did.
	Owner   string `json:"owner"`
	Attempt int    `json:"attempt"`

	// For people; nothing is decided by them.
	Tenant  string `json:"tenant"`
	KeyHint string `json:"key_hint"` // the key's first characters
	Method  string `json:"method"`
	Path    string `json:"path"`
	Reason  string `json:"reason,omitempty"`
	// Started is when the attempt began and LeaseUntil until when its holder
	// has the lease, both by the holder's clock. Only the store's clock ends it.
	Started    time.Time `json:"started"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`

	Answer *Answer `json:"answer,omitempty"` // when COMPLETED
}

// Answer is the response of a completed call.
type Answer struct {
	Status  int         `json:"status"`
	Header  http.Header `json:"header,omitempty"`
	Trailer http.Header `json:"trailer,omitempty"`
	Size    int         `json:"size"`            // of the body, bytes
	Parts   int         `json:"parts,omitempty"` // records that hold the body; 0 when it is inline
	// Dropped is true when the body is not kept: too large, or still being streamed.
	Dropped bool      `json:"dropped,omitempty"`
	At      time.Time `json:"at"` // when it was made
	Body    []byte    `json:"-"`
}

const (
	recordVersion = 1
	keyHintSize   = 8
	// NATS refuses payloads beyond 1 MiB by default, so larger bodies go into
	// parts; small ones stay inline, one write.
	inlineBody = 256 << 10
	bodyPart   = 512 << 10
	// maxMeta bounds the status and header fields of a stored answer.
	maxMeta = 256 << 10
)

var errRecord = errors.New("not a record of a call")

// encode writes the record as one line of JSON, followed by an inline body as
// it is, so that no byte of an answer is re-coded.
func (r *Record) encode() ([]byte, error) {
	r.Version = recordVersion
	line, err := goal.Marshal(r)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	if r.Answer != nil && r.Answer.Parts == 0 {
		line = append(line, r.Answer.Body...)
	}
	return line, nil
}

func decodeRecord(data []byte) (*Record, error) {
	line, body, _ := bytes.Cut(data, []byte{'\n'})
	var r Record
	if err := goal.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if r.Version != recordVersion || r.State == "" || (r.State == Completed) != (r.Answer != nil) {
		return nil, fmt.Errorf("%w: version %d, state %q", errRecord, r.Version, r.State)
	}
	if a := r.Answer; a != nil && a.Parts == 0 && !a.Dropped {
		if len(body) != a.Size {
			return nil, fmt.Errorf("%w: %d bytes of body, want %d", errRecord, len(body), a.Size)
		}
		a.Body = body
	}
	return &r, nil
}

// partKey names one part of an answer's body. The owner is in it, so no two
// attempts ever share a part.
func partKey(id, owner string, n int) string {
	return id + "." + owner + "." + strconv.Itoa(n)
}

func newOwner() string { return rand.Text() }

// recordID is the store key of a call: a digest, since an Idempotency-Key may
// hold characters and lengths that the store must not meet.
func recordID(tenant, key string) string { return goal.Digest("gk1", "call", tenant, key) }

// slotID is the store key of a slot (session, step, tool) of a tenant.
func slotID(tenant, session, step, tool string) string { // told from a call by its second token
	return goal.Digest("gk1", "slot", tenant, session, step, tool) + ".slot"
}

func hint(key string) string { return key[:min(len(key), keyHintSize)] }

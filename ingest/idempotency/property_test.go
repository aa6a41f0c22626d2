package idempotency

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// holder is one attempt at a call in the property test.
type holder struct {
	c     *claim
	until time.Time // the end of its lease, by the store's clock
	over  bool      // it has completed, released or held, or was told that it lost
}

// machine interleaves holders of one key in virtual time.
type machine struct {
	t       *rapid.T
	now     time.Time
	store   *memStore
	l       ledger
	holders []*holder
	answer  string // the owner of the answer, while it is kept
	answers time.Time
	attempt int
}

const propertyLease = 30 * time.Second

// TestInterleavings: whatever several holders do in whatever order, with lost
// acknowledgements, never two of them have a live lease, never does a stale one
// change another's record, never does an answer change before its time.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, now: time.Unix(0, 0), store: newMemStore()}
		m.store.now = func() time.Time { return m.now }
		lossy := rapid.IntRange(0, 5).Draw(t, "lossy")
		m.store.after = func(op, _ string) error {
			if lossy > 0 && op != "get" && rapid.IntRange(0, lossy).Draw(t, "lose") == 0 {
				return errors.New("acknowledgement lost")
			}
			return nil
		}
		m.l = ledger{m.store}
		t.Repeat(map[string]func(*rapid.T){
			"claim":    m.claim,
			"renew":    m.renew,
			"complete": m.complete,
			"release":  m.release,
			"hold":     m.hold,
			"wait":     m.wait,
			"":         m.check,
		})
	})
}

func (m *machine) claim(t *rapid.T) {
	if len(m.holders) > 6 {
		t.Skip("enough")
	}
	owner := "owner" + strconv.Itoa(len(m.holders))
	c, cur, err := m.l.claim(t.Context(), "id", Record{Owner: owner, Fingerprint: "f"}, propertyLease, rapid.Bool().Draw(t, "known"))
	switch {
	case err != nil: // maybe written: nobody runs it, and it expires
		m.holders = append(m.holders, &holder{c: &claim{}, over: true})
	case c == nil && cur.State == Released:
		t.Fatal("a released call was not claimed")
	case c != nil:
		if m.kept() {
			t.Fatalf("claimed by %s although the answer of %s is kept", owner, m.answer)
		}
		m.holders = append(m.holders, &holder{c: c, until: m.now.Add(propertyLease)})
	}
}

func (m *machine) kept() bool { return m.answer != "" && m.now.Before(m.answers) }

// pick draws a holder that still acts, be it stale.
func (m *machine) pick(t *rapid.T) *holder {
	var acting []*holder
	for _, h := range m.holders {
		if !h.over {
			acting = append(acting, h)
		}
	}
	if len(acting) == 0 {
		t.Skip("nobody holds")
	}
	return rapid.SampledFrom(acting).Draw(t, "holder")
}

func (m *machine) renew(t *rapid.T) {
	h := m.pick(t)
	err := m.l.renew(t.Context(), h.c, m.now, propertyLease)
	switch {
	case err == nil:
		h.until = m.now.Add(propertyLease)
	case errors.Is(err, errLost):
		h.over = true
		m.mustBeStale(t, h)
	}
	// Another error may have extended the lease; the holder does not count on it.
}

func (m *machine) complete(t *rapid.T) {
	h := m.pick(t)
	stale := m.heir(h)
	err := m.l.complete(t.Context(), h.c, Answer{Status: http.StatusOK}, time.Hour)
	switch {
	case err == nil:
		if stale {
			t.Fatalf("%s completed although another attempt has the call", h.c.rec.Owner)
		}
		m.answer, m.answers = h.c.rec.Owner, m.now.Add(time.Hour)
		h.over = true
	case errors.Is(err, errLost):
		h.over = true
	default:
		// The acknowledgement was lost. It tries again later, or gives up.
		if cur, err := m.l.read(t.Context(), "id"); err == nil && cur.State == Completed && cur.Owner == h.c.rec.Owner {
			m.answer, m.answers = h.c.rec.Owner, m.now.Add(time.Hour)
		}
	}
}

func (m *machine) release(t *rapid.T) {
	m.end(t, func(h *holder) error { return m.l.release(t.Context(), h.c, "") })
}

func (m *machine) hold(t *rapid.T) {
	m.end(t, func(h *holder) error { return m.l.hold(t.Context(), h.c, "", propertyLease) })
}

func (m *machine) end(t *rapid.T, do func(*holder) error) {
	h := m.pick(t)
	stale := m.heir(h)
	if err := do(h); err == nil && stale {
		t.Fatalf("%s changed the record although another attempt has the call", h.c.rec.Owner)
	}
	h.over = true // also after an error: nobody runs the call any more
}

// heir reports whether the record is another attempt's by now.
func (m *machine) heir(h *holder) bool {
	cur, err := m.l.read(m.t.Context(), "id")
	return err == nil && cur.Owner != h.c.rec.Owner
}

func (m *machine) mustBeStale(t *rapid.T, h *holder) {
	if m.now.Before(h.until) && m.answer != h.c.rec.Owner {
		t.Fatalf("%s lost its lease %s before its end", h.c.rec.Owner, h.until.Sub(m.now))
	}
}

func (m *machine) wait(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 45).Draw(t, "seconds")) * time.Second)
}

func (m *machine) check(t *rapid.T) {
	var live []string
	for _, h := range m.holders {
		if !h.over && m.now.Before(h.until) && m.answer != h.c.rec.Owner {
			live = append(live, h.c.rec.Owner)
		}
	}
	if len(live) > 1 {
		t.Fatalf("two live leases: %v", live)
	}
	cur, err := m.l.read(t.Context(), "id")
	if m.kept() && (err != nil || cur.State != Completed || cur.Owner != m.answer) {
		t.Fatalf("the answer of %s is gone before its time: %+v, %v", m.answer, cur.Record, err)
	}
	if err == nil && cur.State != Released {
		if cur.Attempt < m.attempt && !m.kept() && cur.Attempt < 2 {
			t.Fatalf("attempt %d after attempt %d", cur.Attempt, m.attempt)
		}
	}
	if err == nil {
		m.attempt = cur.Attempt
	} else {
		m.attempt = min(m.attempt, 2)
	}
}

package ingest

import "github.com/goalkeeper-dev/goalkeeper/kv/goal"

// Verdict is what a preflight comes to.
type Verdict string

// The verdicts.
const (
	AlreadySatisfied Verdict = "already_satisfied" // the target holds now
	Ready            Verdict = "ready"
	Blocked          Verdict = "blocked" // a submission would be refused
	Unknown          Verdict = "unknown" // something did not answer
)

// Report is what a preflight found.
type Report struct {
	Verdict Verdict `json:"verdict"`
	Checks  []Check `json:"checks"`
	// Refusal is what a submission is refused with; nil when it is not.
	Refusal *goal.Problem `json:"problem,omitempty"`
}

// Check is the result of one check.
type Check struct {
	Name        string            `json:"name"`
	OK          bool              `json:"ok"`
	Detail      string            `json:"detail,omitempty"`
	Differences []goal.Difference `json:"differences,omitempty"`
}

// Problem is what a submission is refused with, or nil.
func (r Report) Problem() *goal.Problem { return r.Refusal }

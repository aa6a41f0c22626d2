package goal_test

import (
	"testing"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Clients publish to and watch these subjects, and streams are provisioned
// with them: they are part of the public contract, section 2.2.
func TestSubjects(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		goal.GoalsStream("acme"):                                     "GOALS_acme",
		goal.IntakeStream("acme"):                                    "INTAKE_acme",
		goal.QueueSubject("acme", "tsk_1"):                           "goals.queue.acme.tsk_1",
		goal.SubmitSubject("acme"):                                   "goals.submit.acme",
		goal.RequestSubject("acme"):                                  "goals.request.acme",
		goal.LogSubject("acme", "tsk_1"):                             "goals.events.acme.tsk_1.log",
		goal.EndSubject("acme", "tsk_1"):                             "goals.events.acme.tsk_1.end",
		goal.EventsFilter("acme", "tsk_1"):                           "goals.events.acme.tsk_1.>",
		goal.NoteSubject("acme", "tsk_1"):                            "goals.notes.acme.tsk_1",
		goal.CancelSubject("acme", "tsk_1"):                          "goals.cancel.acme.tsk_1",
		goal.EndSubject("*", "*"):                                    goal.EndFilter,
		goal.LinksOf("tsk_1").Self:                                   "/v1/tasks/tsk_1",
		goal.LinksOf("tsk_1").Trace:                                  "/v1/tasks/tsk_1/trace",
		goal.LinksOf("tsk_1").Events:                                 "/v1/tasks/tsk_1/events",
		(&goal.LockedError{Holder: "w1", Left: time.Second}).Error(): "locked by w1 for at most 1s",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Only a read leaves the state alone; everything else is guarded as a mutation.
func TestReplayClasses(t *testing.T) {
	t.Parallel()
	for _, r := range goal.Replays() {
		if r.Mutates() != (r != goal.ReplayRead) {
			t.Errorf("%s.Mutates() = %t", r, r.Mutates())
		}
	}
	if !(goal.Outcome{Kind: goal.CallOK}).OK() || (goal.Outcome{Kind: goal.CallTimeout}).OK() {
		t.Error("a timeout is taken for success, or success is not")
	}
	if got := (goal.Guardrails{TimeoutSeconds: 90}).Timeout(); got != 90*time.Second {
		t.Errorf("Timeout() = %s", got)
	}
}

package goal

// Streams and buckets. A tenant name is [A-Za-z0-9_-]{1,64}, so that it is one
// subject token and part of a stream name.
const (
	EventsStream     = "EVENTS"
	DeliveriesStream = "DELIVERIES"
	LocksBucket      = "LOCKS"
	ResultsBucket    = "RESULTS"
	CancelsBucket    = "CANCELS"
	CallsBucket      = "CALLS"
	StateBucket      = "STATE"
	BalancesBucket   = "BALANCES"
	ObjectsBucket    = "OBJECTS"
)

// GoalsStream is the queue of a tenant.
func GoalsStream(tenant string) string { return "GOALS_" + tenant }

// IntakeStream captures a tenant's direct submissions.
func IntakeStream(tenant string) string { return "INTAKE_" + tenant }

// QueueSubject is where an accepted goal lies.
func QueueSubject(tenant, task string) string { return "goals.queue." + tenant + "." + task }

// SubmitSubject is where a tenant publishes goals directly.
func SubmitSubject(tenant string) string { return "goals.submit." + tenant }

// DeadStream keeps direct submissions that no task can be made of, under
// DeadSubject of their tenant, with the reason.
const DeadStream = "INTAKE_DEAD"

// DeadSubject is where such a submission of a tenant lies.
func DeadSubject(tenant string) string { return "goals.dead." + tenant }

// RequestSubject answers a core NATS request like an HTTP submission.
func RequestSubject(tenant string) string { return "goals.request." + tenant }

// LogSubject holds a task's journal, EndSubject its one terminal batch, and
// EventsFilter both; appends are fenced on EventsFilter.
func LogSubject(tenant, task string) string { return "goals.events." + tenant + "." + task + ".log" }

// EndSubject holds a task's terminal batch.
func EndSubject(tenant, task string) string { return "goals.events." + tenant + "." + task + ".end" }

// NoteSubject holds what others than the worker record about a task. It lies
// outside EventsFilter, so that a note never breaks the worker's fence.
func NoteSubject(tenant, task string) string { return "goals.notes." + tenant + "." + task }

// EventsFilter matches every event of a task.
func EventsFilter(tenant, task string) string { return "goals.events." + tenant + "." + task + ".>" }

// EndFilter matches the terminal batch of every task of every tenant.
const EndFilter = "goals.events.*.*.end"

// CancelSubject carries the core message that tells a running worker to look
// at the cancel marker.
func CancelSubject(tenant, task string) string { return "goals.cancel." + tenant + "." + task }

// ValidTenant reports whether name can be a tenant.
func ValidTenant(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

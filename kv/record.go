package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Record is a stored message.
type Record struct {
	Subject string
	Data    []byte
	Seq     uint64 // revision, for a bucket
	Time    time.Time
	Header  nats.Header
}

// Headers of our own.
const (
	// nonceHeader names the logical write, so that a writer knows its own.
	nonceHeader = "Goalkeeper-Write"
	// goalHeader is the sequence of the goal that a record of a task belongs
	// to. The id of a goal whose retention ended may be used again.
	goalHeader = "Goalkeeper-Goal"
	// operationHeader marks a removed key (NATS key-value protocol).
	operationHeader = "KV-Operation"
	markerHeader    = "Nats-Marker-Reason"
)

// removed reports whether the record only marks that its key is gone.
func (r Record) removed() bool {
	return r.Header.Get(operationHeader) != "" || r.Header.Get(markerHeader) != ""
}

// digestKey is a fixed-length name for parts of any length and content: a key
// goes into a subject, whose length the server limits by closing the connection.
func digestKey(parts ...string) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// bucketSubject is the subject of a key in a bucket.
func bucketSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// bucketStream is the stream behind a bucket.
func bucketStream(bucket string) string { return "KV_" + bucket }

// streamOf is the stream that stores a subject.
func streamOf(subject string) (string, error) {
	token := strings.Split(subject, ".")
	switch {
	case len(token) >= 3 && token[0] == "$KV":
		return bucketStream(token[1]), nil
	case len(token) >= 2 && token[0] == "deliveries":
		return goal.DeliveriesStream, nil
	case len(token) < 3 || token[0] != "goals":
	case token[1] == "events", token[1] == "notes":
		return goal.EventsStream, nil
	case token[1] == "queue":
		return goal.GoalsStream(token[2]), nil
	case token[1] == "submit":
		return goal.IntakeStream(token[2]), nil
	}
	return "", fmt.Errorf("kv: no stream stores %q", subject)
}

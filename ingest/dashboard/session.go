package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	maxSessions    = 1000
	maxSessionsKey = 20 // of one API key
	sessionLife    = 12 * time.Hour
)

// sessions are the log-ins. A session holds the API key it was opened with, in
// memory only: every request is authenticated with it anew, so that a key that
// is removed from the configuration ends its sessions at once.
type sessions struct {
	mu   sync.Mutex
	byID map[[sha256.Size]byte]session // by the digest of the cookie; guarded by mu
}

type session struct {
	key    string
	opened time.Time
}

func newSessions() *sessions { return &sessions{byID: map[[sha256.Size]byte]session{}} }

// open makes a session and returns its cookie's value. The oldest sessions of
// the key, and of all, give way.
func (s *sessions) open(key string) string {
	id, now := rand.Text(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for sum, old := range s.byID {
		if now.Sub(old.opened) >= sessionLife {
			delete(s.byID, sum)
		}
	}
	s.makeRoom(maxSessionsKey, func(o session) bool { return o.key == key })
	s.makeRoom(maxSessions, func(session) bool { return true })
	s.byID[sha256.Sum256([]byte(id))] = session{key: key, opened: now}
	return id
}

// makeRoom ends the oldest of the sessions that count until one more fits.
func (s *sessions) makeRoom(most int, counts func(session) bool) {
	for {
		n := 0
		var oldest [sha256.Size]byte
		var when time.Time
		for sum, o := range s.byID {
			if !counts(o) {
				continue
			}
			if n++; n == 1 || o.opened.Before(when) {
				oldest, when = sum, o.opened
			}
		}
		if n < most {
			return
		}
		delete(s.byID, oldest)
	}
}

// key is the API key of a session that has not ended.
func (s *sessions) key(id string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byID[sha256.Sum256([]byte(id))]
	return found.key, ok && time.Since(found.opened) < sessionLife
}

// end ends a session. It may be repeated.
func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, sha256.Sum256([]byte(id)))
}

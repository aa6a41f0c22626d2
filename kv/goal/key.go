package goal

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Limits of keys, in bytes.
const (
	MaxKey      = 255 // of an Idempotency-Key, decoded
	MaxKeyToken = 128 // of a session or tool in a derived key
)

// Digest is the lower-case hex SHA-256 over the parts, each preceded by its
// length as eight bytes, big-endian, so that no two lists of parts collide.
func Digest(parts ...string) string {
	h := sha256.New()
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TaskID is the id of the task that a tenant's key stands for: "tsk_" and the
// first 32 characters (128 bits) of Digest(tenant, key). Anyone who knows both
// can compute it:
//
//	SHA-256( uint64be(len(tenant)) tenant uint64be(len(key)) key )
func TaskID(tenant, key string) string { return "tsk_" + Digest(tenant, key)[:32] }

// ToolCallKey derives the Idempotency-Key of one tool call (public contract
// section 3): lower-case hex of
//
//	SHA-256( session ":" step ":" tool ":" Canonical(payload) )
//
// session and tool must be [A-Za-z0-9._~-]{1,128}, without which two different
// calls could have one key; step must not be negative. A payload that is not
// strict JSON is a [*SyntaxError].
func ToolCallKey(session string, step int, tool string, payload []byte) (string, error) {
	switch {
	case !keyToken(session):
		return "", fmt.Errorf("session %q is not [A-Za-z0-9._~-]{1,%d}", session, MaxKeyToken)
	case !keyToken(tool):
		return "", fmt.Errorf("tool %q is not [A-Za-z0-9._~-]{1,%d}", tool, MaxKeyToken)
	case step < 0:
		return "", fmt.Errorf("step %d is negative", step)
	}
	return joinedKey(session, step, tool, payload)
}

func joinedKey(session string, step int, tool string, payload []byte) (string, error) {
	arguments, err := Canonical(payload)
	if err != nil {
		return "", err
	}
	preimage := append([]byte(session+":"+strconv.Itoa(step)+":"+tool+":"), arguments...)
	sum := sha256.Sum256(preimage)
	return hex.EncodeToString(sum[:]), nil
}

func keyToken(s string) bool {
	if s == "" || len(s) > MaxKeyToken {
		return false
	}
	for i := range len(s) {
		if !alphanumeric(s[i]) && strings.IndexByte("._~-", s[i]) < 0 {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// ParseKey reads the Idempotency-Key from all its field lines. There must be
// one, holding a quoted RFC 9651 string, whose parameters are ignored, or bare
// characters 0x21-0x7E without `" , ; \`. The decoded key has 1 to [MaxKey]
// bytes; case matters; the quoted and the bare spelling of one value are the
// same key. The problem is KeyMissing or KeyMalformed and never repeats the
// value, which may be a secret pasted by mistake.
func ParseKey(lines []string) (string, *Problem) {
	if len(lines) == 0 {
		return "", NewProblem(KeyMissing, "Send one Idempotency-Key header that names this request.")
	}
	if len(lines) > 1 {
		return "", NewProblem(KeyMalformed, "There is more than one Idempotency-Key header.")
	}
	line := strings.Trim(lines[0], " \t")
	if line == "" {
		return "", NewProblem(KeyMissing, "The Idempotency-Key header is empty.")
	}
	key, fault := line, ""
	if line[0] == '"' {
		key, fault = quotedKey(line)
	} else if !bareKey(line) {
		fault = `A key that is not a quoted string holds visible ASCII characters without " , ; and \.`
	}
	switch {
	case fault != "":
		return "", NewProblem(KeyMalformed, fault)
	case key == "" || len(key) > MaxKey:
		return "", NewProblem(KeyMalformed, fmt.Sprintf("A key has 1 to %d bytes.", MaxKey))
	}
	return key, nil
}

func bareKey(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7E || strings.IndexByte("\",;\\", s[i]) >= 0 {
			return false
		}
	}
	return true
}

func quotedKey(line string) (key, fault string) {
	key, rest, ok := cutQuoted(line)
	if !ok {
		return "", "The quoted key is not an RFC 9651 string."
	}
	for rest != "" {
		if rest, ok = cutParameter(rest); !ok {
			return "", "The quoted key is followed by something that is not a parameter."
		}
	}
	return key, ""
}

// cutQuoted reads the sf-string at the start of s (RFC 9651 section 4.2.5).
func cutQuoted(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return out.String(), s[i+1:], true
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			out.WriteByte(s[i])
		case c < 0x20 || c > 0x7E:
			return "", "", false
		default:
			out.WriteByte(c)
		}
	}
	return "", "", false
}

// cutParameter reads one `;name` or `;name=value` (RFC 9651 section 4.2.3.2).
// A value is ignored, so it need only be delimited as a bare item is.
func cutParameter(s string) (rest string, ok bool) {
	s, ok = strings.CutPrefix(s, ";")
	if !ok {
		return "", false
	}
	s = strings.TrimLeft(s, " ")
	n := parameterName(s)
	if n == 0 {
		return "", false
	}
	if s, ok = strings.CutPrefix(s[n:], "="); !ok {
		return s, true
	}
	if quoted := strings.TrimPrefix(s, "%"); strings.HasPrefix(quoted, `"`) {
		_, rest, ok = cutQuoted(quoted)
		return rest, ok
	}
	end := strings.IndexByte(s, ';')
	if end < 0 {
		end = len(s)
	}
	return s[end:], end > 0 && bareKey(s[:end])
}

// parameterName is the length of the parameter name at the start of s.
func parameterName(s string) int {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c == '*':
		case i > 0 && (c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'):
		default:
			return i
		}
	}
	return len(s)
}

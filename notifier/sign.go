package notifier

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks 1.0.0.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// Prefixes of serialised keys.
const (
	secretPrefix  = "whsec_" // symmetric, HMAC-SHA256, signatures "v1"
	privatePrefix = "whsk_"  // ed25519 seed (32 bytes) or private key (64), signatures "v1a"
	publicPrefix  = "whpk_"  // ed25519 public key
)

// Sizes of a symmetric secret in bytes, from the specification. A receiver may
// have been given a shorter one by another sender (Svix has made 18).
const (
	minSecret   = 24
	maxSecret   = 64
	minReceived = 16
)

// Grace is how long a secret stays valid after it was rotated out.
const Grace = 24 * time.Hour

// maxSignatures of one kind are sent: the current secret's and the last one's.
const maxSignatures = 2

// ErrBadSecret says that a secret cannot be used. It never holds the secret.
var ErrBadSecret = errors.New("unusable webhook secret")

// Secret is one signing key of a tenant.
type Secret struct {
	Key   string    // "whsec_…", or "whsk_…" for ed25519
	Until time.Time // no longer used from then on; zero: current
}

// String hides the key.
func (s Secret) String() string { return "webhook secret (hidden)" }

// GoString hides the key.
func (s Secret) GoString() string { return s.String() }

// NewSecret generates a symmetric secret of 32 random bytes.
func NewSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return secretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

// NewKeyPair generates an ed25519 key pair: "whsk_…" for us, "whpk_…" for
// receivers.
func NewKeyPair() (private, public string, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("generate ed25519 key: %w", err)
	}
	return privatePrefix + base64.StdEncoding.EncodeToString(priv.Seed()),
		publicPrefix + base64.StdEncoding.EncodeToString(pub), nil
}

// Rotate makes next the current secret and keeps the one that was current for
// grace (Grace when zero). What had ended by now is dropped.
func Rotate(secrets []Secret, next string, now time.Time, grace time.Duration) []Secret {
	if grace == 0 {
		grace = Grace
	}
	out := []Secret{{Key: next}}
	for _, s := range secrets {
		if s.Until.IsZero() {
			s.Until = now.Add(grace)
		}
		if s.Key != next && now.Before(s.Until) {
			out = append(out, s)
		}
	}
	return out
}

// CheckSecret reports whether key is a usable "whsec_…" or "whsk_…" key.
func CheckSecret(key string) error {
	_, err := parseKey(key, minSecret)
	return err
}

// signer makes, or checks, the signature of signed content.
type signer struct {
	version string
	mac     []byte             // v1
	private ed25519.PrivateKey // v1a, to sign
	public  ed25519.PublicKey  // v1a, to verify
}

// parseKey reads a serialised key. Base64 is the standard alphabet; padding may
// be left out. A symmetric secret must have at least least bytes.
func parseKey(key string, least int) (signer, error) {
	prefix, text, ok := strings.Cut(key, "_")
	if !ok {
		return signer{}, fmt.Errorf("%w: must start with %s", ErrBadSecret, secretPrefix)
	}
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return signer{}, fmt.Errorf("%w: not standard base64", ErrBadSecret)
	}
	switch prefix + "_" {
	case secretPrefix:
		if len(raw) < least || len(raw) > maxSecret {
			return signer{}, fmt.Errorf("%w: %d bytes, must be %d to %d", ErrBadSecret, len(raw), least, maxSecret)
		}
		return signer{version: "v1", mac: raw}, nil
	case privatePrefix:
		return parsePrivate(raw)
	case publicPrefix:
		if len(raw) != ed25519.PublicKeySize {
			return signer{}, fmt.Errorf("%w: a public key has %d bytes", ErrBadSecret, ed25519.PublicKeySize)
		}
		return signer{version: "v1a", public: raw}, nil
	default:
		return signer{}, fmt.Errorf("%w: must start with %s", ErrBadSecret, secretPrefix)
	}
}

// parsePrivate takes both forms in use: the 32-byte seed, and the 64-byte key
// (seed and public key) that Svix stores.
func parsePrivate(raw []byte) (signer, error) {
	var k ed25519.PrivateKey
	switch len(raw) {
	case ed25519.SeedSize:
		k = ed25519.NewKeyFromSeed(raw)
	case ed25519.PrivateKeySize:
		k = raw
		if !slices.Equal(ed25519.NewKeyFromSeed(k.Seed()), k) {
			return signer{}, fmt.Errorf("%w: the two halves of the private key do not belong together", ErrBadSecret)
		}
	default:
		return signer{}, fmt.Errorf("%w: a private key has %d or %d bytes", ErrBadSecret, ed25519.SeedSize, ed25519.PrivateKeySize)
	}
	pub, _ := k.Public().(ed25519.PublicKey)
	return signer{version: "v1a", private: k, public: pub}, nil
}

// signedContent is what every signature covers.
func signedContent(id, timestamp string, body []byte) []byte {
	b := make([]byte, 0, len(id)+len(timestamp)+len(body)+2)
	b = append(append(b, id...), '.')
	b = append(append(b, timestamp...), '.')
	return append(b, body...)
}

func (s signer) sum(content []byte) []byte {
	if s.private != nil {
		return ed25519.Sign(s.private, content)
	}
	h := hmac.New(sha256.New, s.mac)
	h.Write(content)
	return h.Sum(nil)
}

func (s signer) verify(content, signature []byte) bool {
	if s.public != nil {
		return len(signature) == ed25519.SignatureSize && ed25519.Verify(s.public, content, signature)
	}
	return hmac.Equal(s.sum(content), signature)
}

// Sign makes the value of the webhook-signature header: one signature for each
// secret that is valid at the time of the attempt, the current one first, at
// most two of a kind. All stand in one line, since libraries read only the
// first.
func Sign(secrets []Secret, id string, at time.Time, body []byte) (string, error) {
	valid := slices.DeleteFunc(slices.Clone(secrets), func(s Secret) bool { return !s.Until.IsZero() && !at.Before(s.Until) })
	// The current one first, then the one that stays valid for longest.
	slices.SortStableFunc(valid, func(a, b Secret) int {
		switch {
		case a.Until.Equal(b.Until):
			return 0
		case a.Until.IsZero():
			return -1
		case b.Until.IsZero():
			return 1
		}
		return b.Until.Compare(a.Until)
	})
	content := signedContent(id, strconv.FormatInt(at.Unix(), 10), body)
	made := map[string]int{}
	var out []string
	for _, secret := range valid {
		s, err := parseKey(secret.Key, minSecret)
		if err != nil {
			return "", err
		}
		if s.version == "v1a" && s.private == nil {
			return "", fmt.Errorf("%w: a public key cannot sign", ErrBadSecret)
		}
		if made[s.version]++; made[s.version] <= maxSignatures {
			out = append(out, s.version+","+base64.StdEncoding.EncodeToString(s.sum(content)))
		}
	}
	if len(out) == 0 {
		return "", fmt.Errorf("%w: none is valid", ErrBadSecret)
	}
	return strings.Join(out, " "), nil
}

// The reasons why a webhook does not verify. Verify wraps them with what was
// found.
var (
	ErrHeaderMissing = errors.New("header is missing")
	ErrTimestamp     = errors.New("timestamp is not acceptable")
	ErrNoSignature   = errors.New("no signature of a known kind")
	ErrWrongKey      = errors.New("signature does not match: it was made with another secret, or the body was changed (parsed and written again, re-encoded, cut)")
)

// Tolerance is how far a webhook's timestamp may be from the receiver's clock
// in the reference libraries.
const Tolerance = 5 * time.Minute

// Verify checks a received webhook with secret ("whsec_…", or "whpk_…" for
// ed25519): body must be the raw bytes of the request. The error explains why
// it does not verify and holds no secret. A tolerance below zero leaves the
// timestamp unchecked; zero means Tolerance.
func Verify(secret string, headers http.Header, body []byte, now time.Time, tolerance time.Duration) error {
	key, err := parseKey(secret, minReceived)
	if err != nil {
		return err
	}
	id, stamp, list := headers.Get(HeaderID), headers.Get(HeaderTimestamp), headers.Values(HeaderSignature)
	for _, h := range []struct{ name, value string }{{HeaderID, id}, {HeaderTimestamp, stamp}, {HeaderSignature, strings.Join(list, " ")}} {
		if h.value == "" {
			return fmt.Errorf("%w: %s", ErrHeaderMissing, strings.ToLower(h.name))
		}
	}
	if err := checkTimestamp(stamp, now, tolerance); err != nil {
		return err
	}
	return matchSignature(key, signedContent(id, stamp, body), strings.Join(list, " "))
}

// matchSignature looks for one signature that the key made.
func matchSignature(key signer, content []byte, list string) error {
	tried := 0
	kinds := []string{}
	for entry := range strings.FieldsSeq(list) {
		version, text, _ := strings.Cut(entry, ",")
		if version != key.version {
			kinds = append(kinds, version)
			continue
		}
		tried++
		sig, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		if err == nil && key.verify(content, sig) {
			return nil
		}
	}
	if tried == 0 {
		return fmt.Errorf("%w: the secret makes %s, the header has %s", ErrNoSignature, key.version, strings.Join(kinds, ", "))
	}
	return fmt.Errorf("%w; %d tried", ErrWrongKey, tried)
}

func checkTimestamp(stamp string, now time.Time, tolerance time.Duration) error {
	n, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: not whole seconds", ErrTimestamp)
	}
	if tolerance < 0 {
		return nil
	}
	if tolerance == 0 {
		tolerance = Tolerance
	}
	// Compared without a difference, which could overflow.
	oldest, newest := now.Add(-tolerance).Unix(), now.Add(tolerance).Unix()
	switch {
	case n < oldest:
		return fmt.Errorf("%w: %s is too old, at most %s is accepted (a replay, or a clock that is off)", ErrTimestamp, stamp, tolerance)
	case n > newest:
		return fmt.Errorf("%w: %s is in the future, at most %s is accepted (a clock is off)", ErrTimestamp, stamp, tolerance)
	}
	return nil
}

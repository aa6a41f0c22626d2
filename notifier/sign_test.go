package notifier_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// secret2 is bytes 32 to 63.
const secret2 = "whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=" //nolint:gosec // a test vector

const (
	ownID   = "msg_2b0e6f5a9c1d4e7f8a3b"
	refID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	refTime = 1614265330
	refBody = `{"test": 2432232314}`
)

func TestSignVectors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, secret, id string
		at               int64
		body, want       string
	}{
		{"reference libraries", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", refID, refTime, refBody, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		{"ed25519, 64-byte key", "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==", refID, refTime, refBody, "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="},
		{"ed25519, 32-byte seed", "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=", refID, refTime, refBody, "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="},
		{"ascii, first", secret, ownID, 1764525600, `{"type":"goal.target_reached"}`, "v1,3dxSww5yB1lmdRyqkLga7/qOy4CluNXYZtFCg/PpZD0="},
		{"ascii, second", secret2, ownID, 1764525600, `{"type":"goal.target_reached"}`, "v1,GiOEGlDiS5rIYwhD0CtZnnZ3qLqwAn0ZfbZO9BYteoo="},
		{"raw UTF-8, first", secret, ownID, 1764525600, "{\"s\":\"h\u00e9llo \u2028 \U0001F600 <b>&\"}", "v1,Pw+ShcM2RcISEqZfYS90c/gKVqSP1PZPHQMIQC0LR7Q="},
		{"raw UTF-8, second", secret2, ownID, 1764525600, "{\"s\":\"h\u00e9llo \u2028 \U0001F600 <b>&\"}", "v1,P8Cvv9sdZTRFmufux9UwxISzn67QSmxkKHOazdVbyc4="},
		{"escaped, first", secret, ownID, 1764525600, `{"s":"h\u00e9llo \u2028 \ud83d\ude00 \u003cb\u003e\u0026"}`, "v1,wXCkOBg+gyqDNIQnVxVqYv5bkNUBTBdZeyI1i+tGVQQ="},
		{"escaped, second", secret2, ownID, 1764525600, `{"s":"h\u00e9llo \u2028 \ud83d\ude00 \u003cb\u003e\u0026"}`, "v1,l0UGVhWprVhRZS2YaOX7zp5AdATzu8wXVlaJ4RC39A0="},
		{"empty body, first", secret, ownID, 1764525600, "", "v1,QzuzTo9GicUHy6Ws1k5/UTNxTjUPFta7UNmgYo5ROrY="},
		{"empty body, second", secret2, ownID, 1764525600, "", "v1,4vz+QL7ZrUscr/nsRIER5XzeTr8g5ccGbd1pIKC84uE="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := notifier.Sign([]notifier.Secret{{Key: tt.secret}}, tt.id, time.Unix(tt.at, 0), []byte(tt.body))
			if err != nil || got != tt.want {
				t.Errorf("Sign = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// The secret of Svix's documentation is shorter than the specification wants:
// it verifies, but nobody signs with it here.
func TestVerifyShorterSecret(t *testing.T) {
	t.Parallel()
	const short = "whsec_plJ3nmyCDGBKInavdOK15jsl"
	h := signedHeaders("msg_loFOjxBNrRLzqYUf", 1731705121, "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=")
	body := []byte(`{"event_type":"ping","data":{"success":true}}`)
	if err := notifier.Verify(short, h, body, time.Unix(1731705121, 0), 0); err != nil {
		t.Errorf("Verify = %v", err)
	}
	if _, err := notifier.Sign([]notifier.Secret{{Key: short}}, ownID, time.Now(), body); !errors.Is(err, notifier.ErrBadSecret) {
		t.Errorf("Sign = %v, want ErrBadSecret", err)
	}
}

func TestVerifyPublicKey(t *testing.T) {
	t.Parallel()
	h := signedHeaders(refID, refTime, "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==")
	if err := notifier.Verify("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", h, []byte(refBody), time.Unix(refTime, 0), 0); err != nil {
		t.Errorf("Verify = %v", err)
	}
	private, public, err := notifier.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := notifier.Sign([]notifier.Secret{{Key: private}, {Key: secret}}, ownID, time.Unix(refTime, 0), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{public, private, secret} {
		if err := notifier.Verify(key, signedHeaders(ownID, refTime, sig), []byte("x"), time.Unix(refTime, 0), 0); err != nil {
			t.Errorf("Verify with %s… = %v", key[:5], err)
		}
	}
}

func signedHeaders(id string, at int64, signature string) http.Header {
	h := http.Header{}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", strconv.FormatInt(at, 10))
	h.Set("Webhook-Signature", signature)
	return h
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	raw := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, tt := range []struct {
		name, key string
		ok        bool
	}{
		{"24 bytes", "whsec_" + raw(24), true},
		{"64 bytes", "whsec_" + raw(64), true},
		{"without padding", "whsec_" + strings.TrimRight(raw(32), "="), true},
		{"23 bytes", "whsec_" + raw(23), false},
		{"65 bytes", "whsec_" + raw(65), false},
		{"empty", "", false},
		{"prefix only", "whsec_", false},
		{"no prefix", raw(32), false},
		{"URL-safe base64", "whsec_" + strings.Repeat("-_", 16), false},
		{"not base64", "whsec_!!!!", false},
		{"ed25519 seed", "whsk_" + raw(32), true},
		{"ed25519 halves that differ", "whsk_" + raw(64), false},
		{"ed25519 of 33 bytes", "whsk_" + raw(33), false},
		{"public key of 31 bytes", "whpk_" + raw(31), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := notifier.CheckSecret(tt.key)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, notifier.ErrBadSecret) {
				t.Errorf("CheckSecret = %v, want ok %v", err, tt.ok)
			}
		})
	}
	a, b := notifier.NewSecret(), notifier.NewSecret()
	if a == b || notifier.CheckSecret(a) != nil {
		t.Errorf("NewSecret made %q and %q", a, b)
	}
	if s := (notifier.Secret{Key: secret}); strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, s), secret[6:]) {
		t.Error("a printed secret shows its key")
	}
	if _, err := notifier.Sign(nil, "id", time.Now(), nil); !errors.Is(err, notifier.ErrBadSecret) {
		t.Errorf("Sign without a secret = %v, want ErrBadSecret", err)
	}
	if _, err := notifier.Sign([]notifier.Secret{{Key: "whpk_" + raw(32)}}, "id", time.Now(), nil); !errors.Is(err, notifier.ErrBadSecret) {
		t.Errorf("Sign with a public key = %v, want ErrBadSecret", err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	now := time.Unix(1764525600, 0)
	sign := func(s []notifier.Secret, at time.Time) []string {
		t.Helper()
		text, err := notifier.Sign(s, ownID, at, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(text, " ")
	}
	only := func(key string, at time.Time) string { return sign([]notifier.Secret{{Key: key}}, at)[0] }

	first := notifier.Rotate(nil, secret, now, 0)
	both := notifier.Rotate(first, secret2, now, 0)
	if got := sign(both, now); len(got) != 2 || got[0] != only(secret2, now) || got[1] != only(secret, now) {
		t.Errorf("during the rotation: %q, want the new one's signature, then the old one's", got)
	}
	end := now.Add(notifier.Grace)
	if got := sign(both, end.Add(-time.Second)); len(got) != 2 {
		t.Errorf("a second before the end: %d signatures, want 2", len(got))
	}
	if got := sign(both, end); len(got) != 1 || got[0] != only(secret2, end) {
		t.Errorf("after the rotation: %q, want the new one's alone", got)
	}
	third := notifier.NewSecret()
	three := notifier.Rotate(both, third, now.Add(time.Hour), 0)
	if got := sign(three, now.Add(time.Hour)); len(got) != 2 || got[0] != only(third, now.Add(time.Hour)) || got[1] != only(secret2, now.Add(time.Hour)) {
		t.Errorf("two rotations within a day: %q, want the two newest", got)
	}
	if got := notifier.Rotate(three, third, now.Add(100*time.Hour), 0); len(got) != 1 {
		t.Errorf("rotated to the same secret: %d secrets, want 1", len(got))
	}
}

func TestVerifyExplains(t *testing.T) {
	t.Parallel()
	now := time.Unix(1764525600, 0)
	body := []byte(`{"a":1}`)
	sig, err := notifier.Sign([]notifier.Secret{{Key: secret}}, ownID, now, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		change    func(http.Header)
		secret    string
		body      string
		at        time.Time
		tolerance time.Duration
		want      error
	}{
		{"as sent", nil, secret, `{"a":1}`, now, 0, nil},
		{"one of two", func(h http.Header) { h.Set("Webhook-Signature", "v1,AAAA "+sig) }, secret, `{"a":1}`, now, 0, nil},
		{"unknown kind beside it", func(h http.Header) { h.Set("Webhook-Signature", "v9,AAAA "+sig) }, secret, `{"a":1}`, now, 0, nil},
		{"at the tolerance", nil, secret, `{"a":1}`, now.Add(5 * time.Minute), 0, nil},
		{"old, unchecked", nil, secret, `{"a":1}`, now.Add(24 * time.Hour), -1, nil},
		{"other secret", nil, secret2, `{"a":1}`, now, 0, notifier.ErrWrongKey},
		{"body written anew", nil, secret, `{"a": 1}`, now, 0, notifier.ErrWrongKey},
		{"too old", nil, secret, `{"a":1}`, now.Add(301 * time.Second), 0, notifier.ErrTimestamp},
		{"from the future", nil, secret, `{"a":1}`, now.Add(-301 * time.Second), 0, notifier.ErrTimestamp},
		{"not a number", func(h http.Header) { h.Set("Webhook-Timestamp", "now") }, secret, `{"a":1}`, now, 0, notifier.ErrTimestamp},
		{"smallest number", func(h http.Header) { h.Set("Webhook-Timestamp", "-9223372036854775808") }, secret, `{"a":1}`, now, 0, notifier.ErrTimestamp},
		{"largest number", func(h http.Header) { h.Set("Webhook-Timestamp", "9223372036854775807") }, secret, `{"a":1}`, now, 0, notifier.ErrTimestamp},
		{"no id", func(h http.Header) { h.Del("Webhook-Id") }, secret, `{"a":1}`, now, 0, notifier.ErrHeaderMissing},
		{"no signature", func(h http.Header) { h.Del("Webhook-Signature") }, secret, `{"a":1}`, now, 0, notifier.ErrHeaderMissing},
		{"other kinds only", func(h http.Header) { h.Set("Webhook-Signature", "v1a,AAAA") }, secret, `{"a":1}`, now, 0, notifier.ErrNoSignature},
		{"empty signature", func(h http.Header) { h.Set("Webhook-Signature", "v1,") }, secret, `{"a":1}`, now, 0, notifier.ErrWrongKey},
		{"empty secret", nil, "whsec_", `{"a":1}`, now, 0, notifier.ErrBadSecret},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := signedHeaders(ownID, now.Unix(), sig)
			if tt.change != nil {
				tt.change(h)
			}
			err := notifier.Verify(tt.secret, h, []byte(tt.body), tt.at, tt.tolerance)
			if !errors.Is(err, tt.want) {
				t.Errorf("Verify = %v, want %v", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), secret[6:]) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// What we sign the reference library verifies, and the other way round.
func TestSignAgreesWithReferenceLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 24, 64).Draw(t, "key")
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		id := rapid.StringMatching(`msg_[a-z2-7]{26}`).Draw(t, "id")
		now := time.Now()
		text := "whsec_" + base64.StdEncoding.EncodeToString(key)
		ref, err := standardwebhooks.NewWebhook(text)
		if err != nil {
			t.Fatal(err)
		}
		want, err := ref.Sign(id, now, body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := notifier.Sign([]notifier.Secret{{Key: text}}, id, now, body)
		if err != nil || got != want {
			t.Fatalf("Sign = %q, %v, want %q", got, err, want)
		}
		if err := notifier.Verify(text, signedHeaders(id, now.Unix(), want), body, now, 0); err != nil {
			t.Fatalf("Verify = %v", err)
		}
		if len(body) > 0 {
			i := rapid.IntRange(0, len(body)-1).Draw(t, "changed")
			other := bytes.Clone(body)
			other[i]++
			if notifier.Verify(text, signedHeaders(id, now.Unix(), want), other, now, 0) == nil {
				t.Fatal("a changed body verifies")
			}
		}
	})
}

// verifyScript checks every case on stdin with the npm packages that receivers
// use, and prints what does not verify.
const verifyScript = `
const { Webhook } = require("standardwebhooks");
const { Webhook: Svix } = require("svix");
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const c of cases) {
  const body = Buffer.from(c.body, "base64").toString("utf8");
  for (const [name, W] of [["standardwebhooks", Webhook], ["svix", Svix]]) {
    try { new W(c.secret).verify(body, c.headers); if (!c.ok) console.log(c.name, name, "verifies"); }
    catch (e) { if (c.ok) console.log(c.name, name, String(e)); }
  }
}`

func TestNodeLibrariesVerify(t *testing.T) {
	t.Parallel()
	modules := os.Getenv("GOALKEEPER_NODE_MODULES")
	if modules == "" {
		t.Skip("GOALKEEPER_NODE_MODULES names no folder with the npm packages standardwebhooks and svix")
	}
	type nodeCase struct {
		Name    string            `json:"name"`
		Secret  string            `json:"secret"`
		Body    []byte            `json:"body"`
		Headers map[string]string `json:"headers"`
		OK      bool              `json:"ok"`
	}
	now := time.Now()
	rotated := []notifier.Secret{{Key: secret2}, {Key: secret, Until: now.Add(time.Hour)}}
	var cases []nodeCase
	for name, body := range map[string]string{
		"plain": `{"type":"goal.failed"}`, "unicode": "{\"s\":\"h\u00e9llo \u2028 \U0001F600 <b>&\"}", "number": `{"n":9007199254740993}`,
	} {
		sig, err := notifier.Sign(rotated, ownID, now, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		headers := map[string]string{"webhook-id": ownID, "webhook-timestamp": strconv.FormatInt(now.Unix(), 10), "webhook-signature": sig}
		cases = append(cases,
			nodeCase{name + ", new secret", secret2, []byte(body), headers, true},
			nodeCase{name + ", old secret", secret, []byte(body), headers, true},
			nodeCase{name + ", third secret", notifier.NewSecret(), []byte(body), headers, false},
			nodeCase{name + ", changed", secret, []byte(body[:len(body)-1] + " }"), headers, false})
	}
	input, err := json.Marshal(cases) //nolint:gosec // secrets made for this test
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "-e", verifyScript)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("node: %v\n%s", err, out)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(secret, ownID, "1764525600", "v1,AAAA v1a,BBBB", []byte("{}"))
	f.Add("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", "", "-1", ",", []byte(nil))
	f.Fuzz(func(t *testing.T, key, id, stamp, sig string, body []byte) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {sig}}
		if notifier.Verify(key, h, body, time.Unix(1764525600, 0), 0) == nil && !strings.Contains(sig, ",") {
			t.Errorf("verified with signature %q", sig)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 4<<10)
	secrets := []notifier.Secret{{Key: secret}}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := notifier.Sign(secrets, ownID, now, body); err != nil {
			b.Fatal(err)
		}
	}
}

package goal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// fingerprintDomain keeps a fingerprint apart from every other SHA-256.
const fingerprintDomain = "goalkeeper fingerprint v1\x00"

// Canonical is the RFC 8785 (JSON Canonicalization Scheme) form of a strict
// JSON text: no white space, members sorted by UTF-16 code units, strings with
// the fewest escapes, numbers as ECMAScript prints the nearest float64. What
// [Decode] refuses is refused.
func Canonical(raw []byte) ([]byte, error) {
	tree, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	return appendTree(make([]byte, 0, len(raw)), tree, appendECMANumber)
}

// Exact is like [Canonical], except that a number keeps its exact value, in the
// form of [NormalNumber]. Two texts have the same exact form if and only if
// they say the same.
func Exact(raw []byte) ([]byte, error) {
	tree, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	return appendTree(make([]byte, 0, len(raw)), tree, appendExactNumber)
}

// Fingerprint is the identity of a payload: lower-case hex of the SHA-256 of
// "goalkeeper fingerprint v1", a zero byte and the [Exact] form. Order of
// members, white space and the spelling of numbers and strings do not matter.
func Fingerprint(raw []byte) (string, error) {
	tree, err := Decode(raw)
	if err != nil {
		return "", err
	}
	return fingerprint(tree, len(raw))
}

func fingerprint(tree any, size int) (string, error) {
	form := append(make([]byte, 0, len(fingerprintDomain)+size), fingerprintDomain...)
	form, err := appendTree(form, tree, appendExactNumber)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(form)
	return hex.EncodeToString(sum[:]), nil
}

// appendNumber appends one spelling of a number.
type appendNumber func(dst []byte, n json.Number) ([]byte, error)

func appendExactNumber(dst []byte, n json.Number) ([]byte, error) {
	text, ok := NormalNumber(n)
	if !ok {
		return nil, fmt.Errorf("%q is not a JSON number", string(n))
	}
	return append(dst, text...), nil
}

func appendECMANumber(dst []byte, n json.Number) ([]byte, error) {
	if len(n) <= 15 && plainInteger(string(n)) {
		return append(dst, n...), nil // a float64 holds it exactly
	}
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		return nil, fmt.Errorf("number out of range: %w", err)
	}
	if f == 0 {
		return append(dst, '0'), nil // also for -0 (RFC 8785 section 3.2.2.3)
	}
	return jsontext.AppendFloat(dst, f, 64), nil
}

// appendTree appends a tree as [Decode] makes it, members sorted.
func appendTree(dst []byte, v any, number appendNumber) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case json.Number:
		return number(dst, v)
	case string:
		return jsontext.AppendQuote(dst, v)
	case []any:
		return appendArray(dst, v, number)
	case map[string]any:
		return appendObject(dst, v, number)
	default:
		return nil, fmt.Errorf("%T is not part of a JSON tree", v)
	}
}

func appendArray(dst []byte, list []any, number appendNumber) ([]byte, error) {
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendTree(dst, v, number); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendObject(dst []byte, members map[string]any, number appendNumber) ([]byte, error) {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.SortFunc(names, compareUTF16)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = jsontext.AppendQuote(dst, name); err != nil {
			return nil, err
		}
		if dst, err = appendTree(append(dst, ':'), members[name], number); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// compareUTF16 orders UTF-8 by UTF-16 code units, as RFC 8785 section 3.2.3
// wants: the order of bytes, except that a character beyond U+FFFF, whose
// surrogates begin at D800, comes before U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return unitRank(a[i]) - unitRank(b[i])
		}
	}
	return len(a) - len(b)
}

// unitRank moves the first bytes of U+E000 to U+FFFF behind those of the
// characters beyond U+FFFF. No other byte of UTF-8 has these values.
func unitRank(c byte) int {
	if c == 0xEE || c == 0xEF {
		return int(c) + 0x10
	}
	return int(c)
}

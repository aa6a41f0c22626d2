package goal

import (
	"encoding/json"
	"strconv"
	"strings"
)

// decimal is a JSON number taken apart: ±digits·10^exp, where digits has
// neither leading nor trailing zeros. Zero has no digits.
type decimal struct {
	negative bool
	digits   string
	exp      string // decimal integer without leading zeros: any length
}

// parseDecimal takes a number that follows the JSON grammar apart. It never
// expands the exponent, so that its cost is the length of the text, however
// large the number is.
func parseDecimal(n string) (decimal, bool) {
	var d decimal
	rest, negative := strings.CutPrefix(n, "-")
	mantissa, exp := rest, ""
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, exp = rest[:i], rest[i+1:]
		unsigned, plus := strings.CutPrefix(exp, "+")
		if plus {
			exp = unsigned
		}
		if !digitsOnly(strings.TrimPrefix(unsigned, "-")) || plus && unsigned[0] == '-' {
			return d, false
		}
	}
	whole, fraction, dotted := strings.Cut(mantissa, ".")
	if !digitsOnly(whole) || dotted && !digitsOnly(fraction) || len(whole) > 1 && whole[0] == '0' {
		return d, false
	}
	digits := strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return d, true // -0, 0.0 and 0e9 are all the one zero
	}
	shift := len(digits) - len(short) - len(fraction)
	return decimal{negative: negative, digits: short, exp: addToExponent(exp, int64(shift))}, true
}

// addToExponent is exp+n for a decimal integer exp of any length, and an n
// that is no longer than a payload.
func addToExponent(exp string, n int64) string {
	negative := strings.HasPrefix(exp, "-")
	digits := strings.TrimLeft(strings.TrimPrefix(exp, "-"), "0")
	if len(digits) <= 18 {
		v, _ := strconv.ParseInt(digits, 10, 64) // empty: 0
		if negative {
			v = -v
		}
		return strconv.FormatInt(v+n, 10)
	}
	// Longer than n can ever be: the sign stays, digits are carried by hand.
	if negative {
		n = -n
	}
	sum := []byte(digits)
	for i := len(sum) - 1; i >= 0 && n != 0; i-- {
		v := int64(sum[i]-'0') + n
		rest := v % 10
		if rest < 0 {
			rest += 10
		}
		sum[i], n = byte('0'+rest), (v-rest)/10
	}
	out := strings.TrimLeft(string(sum), "0")
	if n > 0 {
		out = strconv.FormatInt(n, 10) + string(sum)
	}
	if negative {
		return "-" + out
	}
	return out
}

func digitsOnly(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// text is the one spelling of the value: "0", "-12", "12e2", "3e-1".
func (d decimal) text() string {
	if d.digits == "" {
		return "0"
	}
	out := d.digits
	if d.negative {
		out = "-" + out
	}
	if d.exp != "0" {
		out += "e" + d.exp
	}
	return out
}

// NormalNumber is the exact normal form of a JSON number: two numbers have the
// same form if and only if they have the same value. It is an integer without
// trailing zeros and, unless that is 0, an exponent: 1200 and 1.2e3 are 12e2,
// 0.30 is 3e-1, -0 is 0. It reports false for text that is no JSON number.
func NormalNumber(n json.Number) (string, bool) {
	s := string(n)
	if plainInteger(s) {
		return s, true
	}
	d, ok := parseDecimal(s)
	return d.text(), ok
}

// plainInteger reports whether s is its own normal form at first sight, which
// most numbers are.
func plainInteger(s string) bool {
	if s == "0" {
		return true
	}
	s = strings.TrimPrefix(s, "-")
	return digitsOnly(s) && s[0] != '0' && s[len(s)-1] != '0'
}

// EqualNumber reports whether two JSON numbers have the same value: 12, 12.0
// and 1.2e1 do, 9007199254740993 and 9007199254740992 do not. Nothing is
// rounded. Text that is no JSON number equals nothing.
func EqualNumber(a, b json.Number) bool {
	left, ok := NormalNumber(a)
	if !ok {
		return false
	}
	right, ok := NormalNumber(b)
	return ok && left == right
}

// Integer is the value of a JSON number that is a whole number within int64,
// in whatever spelling: 12, 12.0 and 1.2e1 are all 12.
func Integer(n json.Number) (int64, bool) {
	digits, ok := wholeNumber(string(n))
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	return v, err == nil
}

// wholeNumber spells out a JSON number that is an integer of at most 20 digits.
func wholeNumber(n string) (string, bool) {
	d, ok := parseDecimal(n)
	if !ok || d.digits == "" {
		return "0", ok
	}
	exp, err := strconv.Atoi(d.exp)
	if err != nil || exp < 0 || exp > 20 || exp+len(d.digits) > 20 {
		return "", false
	}
	digits := d.digits + strings.Repeat("0", exp)
	if d.negative {
		digits = "-" + digits
	}
	return digits, true
}

// overflows reports whether the nearest float64 of a JSON number is infinite.
func overflows(n string) bool {
	if len(n) <= 300 && !strings.ContainsAny(n, "eE") {
		return false // below 1e300
	}
	_, err := strconv.ParseFloat(n, 64)
	return err != nil
}

package goal_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

func TestNormalNumber(t *testing.T) {
	t.Parallel()
	nines := strings.Repeat("9", 30)
	for _, c := range []struct{ name, in, want string }{
		{"zero", "0", "0"},
		{"minus zero", "-0", "0"},
		{"zero with a fraction", "0.000", "0"},
		{"zero with a huge exponent", "0e" + nines, "0"},
		{"integer", "12", "12"},
		{"integer with zeros", "1200", "12e2"},
		{"the same with an exponent", "1.2e3", "12e2"},
		{"fraction", "0.30", "3e-1"},
		{"negative", "-0.0120", "-12e-3"},
		{"one as an exponent", "10E-1", "1"},
		{"plus sign", "1e+2", "1e2"},
		{"zeros before the exponent", "1e-0007", "1e-7"},
		{"above 2^53", "9007199254740993", "9007199254740993"},
		{"underflow", "1e-400", "1e-400"},
		{"exponent beyond int64", "1e-" + nines, "1e-" + nines},
		{"borrow", "10e-1" + strings.Repeat("0", 30), "1e-" + nines},
		{"carry", "0.1e-" + nines, "1e-1" + strings.Repeat("0", 30)},
		{"positive carry", "10e" + nines, "1e1" + strings.Repeat("0", 30)},
		{"positive borrow", "0.1e1" + strings.Repeat("0", 30), "1e" + nines},
		{"borrow changes the length to 18", "100e-1" + strings.Repeat("0", 18), "1e-" + strings.Repeat("9", 17) + "8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := goal.NormalNumber(json.Number(c.in)); !ok || got != c.want {
				t.Errorf("NormalNumber(%s) = %s, %t, want %s", c.in, got, ok, c.want)
			}
		})
	}
}

func TestNormalNumberRefusesOtherText(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "-", "+1", "01", "-01", ".5", "1.", "1e", "1e+", "1e-", "1e+-1", "0x10", "1_000", "NaN", "Infinity", " 1", "1 ", "--1", "1.2.3", "1e2e3", "१"} {
		if got, ok := goal.NormalNumber(json.Number(in)); ok {
			t.Errorf("NormalNumber(%q) = %s, want a refusal", in, got)
		}
		if goal.EqualNumber(json.Number(in), json.Number(in)) {
			t.Errorf("EqualNumber(%q, itself) = true", in)
		}
	}
}

func TestEqualNumber(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b json.Number
		want bool
	}{
		{"12", "12.0", true},
		{"12", "1.2e1", true},
		{"-0", "0e5", true},
		{"0.3", "0.30000000000000004", false},
		{"9007199254740993", "9007199254740992", false},
		{"9007199254740993", "9007199254740993.0", true},
		{"1", "-1", false},
		{"1e-400", "0", false},
		{"1e-99999999999999999999", "10e-100000000000000000000", true},
	} {
		if got := goal.EqualNumber(c.a, c.b); got != c.want {
			t.Errorf("EqualNumber(%s, %s) = %t, want %t", c.a, c.b, got, c.want)
		}
	}
}

func TestInteger(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   json.Number
		want int64
		ok   bool
	}{
		{"12", 12, true},
		{"12.0", 12, true},
		{"1e1", 10, true},
		{"-0.0", 0, true},
		{"9223372036854775807", 9223372036854775807, true},
		{"-9223372036854775808", -9223372036854775808, true},
		{"9223372036854775808", 0, false},
		{"1e19", 0, false},
		{"0.5", 0, false},
		{"1e-400", 0, false},
		{"1e99999999999999999999", 0, false},
		{"x", 0, false},
	} {
		if got, ok := goal.Integer(c.in); ok != c.ok || ok && got != c.want {
			t.Errorf("Integer(%s) = %d, %t, want %d, %t", c.in, got, ok, c.want, c.ok)
		}
	}
}

// Two numbers have one normal form if and only if they are equal as rationals.
func TestNormalNumberIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Custom(func(t *rapid.T) json.Number {
			return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "n"))
		})
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		if rapid.Bool().Draw(t, "same") {
			normal, _ := goal.NormalNumber(a)
			b = json.Number(spellNumber(t, normal))
		}
		x, _ := new(big.Rat).SetString(string(a))
		y, _ := new(big.Rat).SetString(string(b))
		if got, want := goal.EqualNumber(a, b), x.Cmp(y) == 0; got != want {
			t.Fatalf("EqualNumber(%s, %s) = %t, want %t", a, b, got, want)
		}
		normal, _ := goal.NormalNumber(a)
		if again, ok := goal.NormalNumber(json.Number(normal)); !ok || again != normal {
			t.Fatalf("NormalNumber(%s) = %s, of which it is %s", a, normal, again)
		}
	})
}

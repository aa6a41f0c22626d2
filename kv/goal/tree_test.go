package goal_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// anyTree draws a JSON tree of at most that depth.
func anyTree(t *rapid.T, depth int) any {
	kinds := 5
	if depth > 0 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2, 3:
		return anyNumber(t)
	case 4:
		return rapid.String().Draw(t, "string")
	case 5:
		list := make([]any, rapid.IntRange(0, 4).Draw(t, "len"))
		for i := range list {
			list[i] = anyTree(t, depth-1)
		}
		return list
	default:
		return anyObject(t, depth)
	}
}

func anyObject(t *rapid.T, depth int) map[string]any {
	members := map[string]any{}
	for _, name := range rapid.SliceOfN(rapid.String(), 0, 5).Draw(t, "names") {
		members[name] = anyTree(t, depth-1)
	}
	return members
}

// anyNumber draws a number below 1e308 in its normal form.
func anyNumber(t *rapid.T) json.Number {
	if rapid.IntRange(0, 9).Draw(t, "zero") == 0 {
		return "0"
	}
	digits := rapid.StringMatching(`-?[1-9]([0-9]{0,25}[1-9])?`).Draw(t, "digits")
	exp := rapid.IntRange(-400, 280).Draw(t, "exp")
	if exp == 0 || rapid.Bool().Draw(t, "integer") {
		return json.Number(digits)
	}
	return json.Number(digits + "e" + strconv.Itoa(exp))
}

// spell writes a tree in one of its many spellings: white space, order of
// members, numbers and escapes are drawn.
func spell(t *rapid.T, b *strings.Builder, v any) {
	space := func() { b.WriteString(rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r\n  "}).Draw(t, "space")) }
	space()
	defer space()
	switch v := v.(type) {
	case json.Number:
		b.WriteString(spellNumber(t, string(v)))
	case string:
		spellString(t, b, v)
	case []any:
		b.WriteByte('[')
		for i, w := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			spell(t, b, w)
		}
		space()
		b.WriteByte(']')
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b.WriteByte('{')
		for i, name := range rapid.Permutation(names).Draw(t, "order") {
			if i > 0 {
				b.WriteByte(',')
			}
			space()
			spellString(t, b, name)
			space()
			b.WriteByte(':')
			spell(t, b, v[name])
		}
		space()
		b.WriteByte('}')
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v)
	}
}

// spellNumber moves the point and adds zeros.
func spellNumber(t *rapid.T, normal string) string {
	digits, exponent, _ := strings.Cut(normal, "e")
	exp, _ := strconv.Atoi(exponent)
	digits, negative := strings.CutPrefix(digits, "-")
	zeros := rapid.IntRange(0, 3).Draw(t, "zeros")
	out := digits
	if digits != "0" {
		out, exp = digits+strings.Repeat("0", zeros), exp-zeros
	}
	if at := rapid.IntRange(1, len(out)).Draw(t, "point"); at < len(out) {
		exp += len(out) - at
		out = out[:at] + "." + out[at:]
	} else if rapid.Bool().Draw(t, "fraction") {
		out += ".0"
	}
	if exp != 0 || rapid.Bool().Draw(t, "exponent") {
		sign := ""
		if exp >= 0 && rapid.Bool().Draw(t, "plus") {
			sign = "+"
		}
		if exp < 0 {
			sign, exp = "-", -exp
		}
		out += rapid.SampledFrom([]string{"e", "E"}).Draw(t, "e") + sign + rapid.SampledFrom([]string{"", "00"}).Draw(t, "lead") + strconv.Itoa(exp)
	}
	if negative || out == "0" && rapid.Bool().Draw(t, "minus zero") {
		return "-" + out
	}
	return out
}

func spellString(t *rapid.T, b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r < 0x20 || r == '"' || r == '\\' || rapid.IntRange(0, 3).Draw(t, "escape") == 0:
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(b, `\u%04x`, unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

func spelling(t *rapid.T, v any) []byte {
	var b strings.Builder
	spell(t, &b, v)
	return []byte(b.String())
}

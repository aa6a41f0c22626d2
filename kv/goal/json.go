package goal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// SyntaxError says why a payload is not the JSON we take, and where.
type SyntaxError struct {
	Pointer string // RFC 6901, of the innermost value that is known
	Detail  string // for the client: no names of ours
	Offset  int64  // byte at or after which it is wrong
}

// Error implements error.
func (e *SyntaxError) Error() string {
	if e.Pointer == "" {
		return fmt.Sprintf("%s (byte %d)", e.Detail, e.Offset)
	}
	return fmt.Sprintf("%s at %s (byte %d)", e.Detail, e.Pointer, e.Offset)
}

// Decode parses one strict JSON text (RFC 8259 with the limits of RFC 7493)
// into a tree of map[string]any, []any, string, json.Number, bool and nil.
// Refused with a [*SyntaxError]: duplicate member names, also when they are
// spelled with escapes; invalid UTF-8; lone or reversed surrogates; a byte
// order mark; anything after the value; nesting beyond [MaxDepth]; numbers that
// overflow a float64. A number that underflows is kept as it is, like every
// other number. The size of raw is for the caller to limit.
func Decode(raw []byte) (any, error) { return decode(raw, nil) }

// keepFunc is shown the raw bytes of the members of the root (parent is "")
// and of the root's members (parent is their name).
type keepFunc func(parent, name string, raw []byte)

// decoders are used again for the sake of their stacks.
var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

var nothing = strings.NewReader("")

func decode(raw []byte, keep keepFunc) (any, error) {
	in := decoders.Get().(*jsontext.Decoder)
	in.Reset(bytes.NewBuffer(raw)) // which it reads in place and never writes to
	defer func() {
		in.Reset(nothing) // lets go of raw
		decoders.Put(in)
	}()
	t := treeDecoder{in: in, raw: raw, keep: keep}
	v, err := t.value()
	if err == nil {
		err = t.end()
	}
	if err != nil {
		return nil, t.syntaxError(err)
	}
	return v, nil
}

// treeDecoder builds the tree of one payload.
type treeDecoder struct {
	in     *jsontext.Decoder
	raw    []byte
	keep   keepFunc
	parent string // name of the root's member that is being read
}

func (t *treeDecoder) value() (any, error) {
	token, err := t.in.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case jsontext.KindBeginObject:
		return t.object()
	case jsontext.KindBeginArray:
		return t.array()
	case jsontext.KindString:
		return token.String(), nil
	case jsontext.KindNumber:
		n := token.String()
		if overflows(n) {
			return nil, t.refuse("the number is too large for a double-precision float")
		}
		return json.Number(n), nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return token.Bool(), nil
	case jsontext.KindNull:
		return nil, nil //nolint:nilnil // null is a value
	case jsontext.KindInvalid, jsontext.KindEndObject, jsontext.KindEndArray:
	}
	return nil, t.refuse("there is no value")
}

func (t *treeDecoder) object() (any, error) {
	if err := t.checkDepth(); err != nil {
		return nil, err
	}
	out := map[string]any{}
	depth := t.in.StackDepth()
	for t.in.PeekKind() != jsontext.KindEndObject {
		token, err := t.in.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String()
		if depth == 1 {
			t.parent = name
		}
		start := t.in.InputOffset()
		if out[name], err = t.value(); err != nil {
			return nil, err
		}
		if t.keep != nil && depth <= 2 {
			t.kept(depth, name, start)
		}
	}
	_, err := t.in.ReadToken()
	return out, err
}

// kept shows the member that was just read; its bytes begin after the colon.
func (t *treeDecoder) kept(depth int, name string, start int64) {
	raw := bytes.TrimLeft(t.raw[start:t.in.InputOffset()], ": \t\r\n")
	if depth == 1 {
		t.keep("", name, raw)
	} else {
		t.keep(t.parent, name, raw)
	}
}

func (t *treeDecoder) array() (any, error) {
	if err := t.checkDepth(); err != nil {
		return nil, err
	}
	out := []any{}
	for t.in.PeekKind() != jsontext.KindEndArray {
		v, err := t.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := t.in.ReadToken()
	return out, err
}

func (t *treeDecoder) checkDepth() error {
	if t.in.StackDepth() > MaxDepth {
		return t.refuse("arrays and objects are nested more than " + strconv.Itoa(MaxDepth) + " deep")
	}
	return nil
}

// end refuses anything but white space after the value.
func (t *treeDecoder) end() error {
	offset := t.in.InputOffset()
	if _, err := t.in.ReadToken(); !errors.Is(err, io.EOF) {
		return &SyntaxError{Detail: "there is more after the value", Offset: offset}
	}
	return nil
}

// refuse is an error at the value that was read last.
func (t *treeDecoder) refuse(detail string) error {
	return &SyntaxError{Pointer: string(t.in.StackPointer()), Detail: detail, Offset: t.in.InputOffset()}
}

// syntaxError turns the decoder's errors into ours.
func (t *treeDecoder) syntaxError(err error) error {
	if own, ok := errors.AsType[*SyntaxError](err); ok {
		return own
	}
	out := &SyntaxError{Detail: "the text is not JSON", Offset: t.in.InputOffset()}
	if at, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		out.Pointer, out.Offset = string(at.JSONPointer), at.ByteOffset
		if at.Err != nil {
			out.Detail = strings.TrimPrefix(at.Err.Error(), "jsontext: ")
		}
	}
	switch {
	case bytes.HasPrefix(t.raw, []byte("\xEF\xBB\xBF")):
		out.Detail = "the text begins with a byte order mark"
	case errors.Is(err, jsontext.ErrDuplicateName):
		out.Detail = "the member name is given twice"
	case strings.HasPrefix(out.Detail, "invalid surrogate pair"):
		out.Detail = "a string has half of a surrogate pair" // without its text: it may be cut anywhere
	case errors.Is(err, io.ErrUnexpectedEOF):
		out.Detail = "the text ends before the value does"
	case errors.Is(err, io.EOF):
		out.Detail = "the text is empty"
	}
	return out
}

// Equal reports whether two trees as [Decode] makes them are equal: numbers by
// value and exact, arrays in order, objects without regard to order.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && equalObjects(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && equalArrays(a, b)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && EqualNumber(a, b)
	default:
		switch b.(type) {
		case map[string]any, []any, json.Number:
			return false
		}
		return a == b
	}
}

func equalObjects(a, b map[string]any) bool {
	if len(a) != len(b) {
		return false
	}
	for name, v := range a {
		w, ok := b[name]
		if !ok || !Equal(v, w) {
			return false
		}
	}
	return true
}

func equalArrays(a, b []any) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

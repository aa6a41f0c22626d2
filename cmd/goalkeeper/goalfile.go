package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// maxInput is how many bytes are read of a file, and how large a YAML document
// may become as JSON: more than any server takes.
const maxInput = 4 << 20

// readGoal reads a goal as JSON. A file named .yaml or .yml, and stdin ("-")
// that does not begin with "{", is YAML; JSON goes through byte for byte, so
// that the server judges what was written.
func readGoal(path string, stdin io.Reader) ([]byte, error) {
	raw, err := readInput(path, stdin)
	if err != nil {
		return nil, err
	}
	isYAML := false
	switch ext := strings.ToLower(filepath.Ext(path)); {
	case ext == ".yaml" || ext == ".yml":
		isYAML = true
	case path == "-":
		isYAML = !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{"))
	}
	if !isYAML {
		return raw, nil
	}
	out, err := yamlToJSON(raw)
	if err != nil {
		return nil, usageError("%s: %w", path, err)
	}
	return out, nil
}

// readInput reads a file, or stdin for "-".
func readInput(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(raw) > maxInput {
		return nil, usageError("%s is larger than %d bytes", path, maxInput)
	}
	return raw, nil
}

// yamlToJSON turns one YAML document into JSON. Numbers keep the digits they
// are written with, which decoding into Go values would lose.
func yamlToJSON(raw []byte) ([]byte, error) {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, errors.New("want one YAML document")
	}
	w := yamlWriter{anchors: map[string][]byte{}}
	if err := w.node(file.Docs[0].Body); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// yamlWriter writes YAML nodes as JSON.
type yamlWriter struct {
	out     bytes.Buffer
	anchors map[string][]byte // the JSON of what an anchor names
}

func (w *yamlWriter) node(n ast.Node) error {
	if w.out.Len() > maxInput {
		return fmt.Errorf("the document is larger than %d bytes with its aliases", maxInput)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return w.mapping(n.Values)
	case *ast.MappingValueNode:
		return w.mapping([]*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		return w.sequence(n.Values)
	case *ast.AnchorNode:
		return w.anchor(n)
	case *ast.AliasNode:
		known, ok := w.anchors[n.Value.GetToken().Value]
		if !ok {
			return w.wrong(n, "alias *%s has no anchor before it", n.Value.GetToken().Value)
		}
		w.out.Write(known)
		return nil
	case *ast.TagNode:
		return w.wrong(n, "tags such as %s have no meaning in JSON", n.Start.Value)
	default:
		return w.scalar(n)
	}
}

func (w *yamlWriter) scalar(n ast.Node) error {
	switch n := n.(type) {
	case *ast.NullNode:
		w.out.WriteString("null")
		return nil
	case *ast.BoolNode:
		return w.text(n.Value)
	case *ast.StringNode:
		if n.Token.Type == token.StringType && jsonNumber(n.Value) { // plain, but too long for the parser's integers
			w.out.WriteString(n.Value)
			return nil
		}
		return w.text(n.Value)
	case *ast.LiteralNode:
		return w.text(n.Value.Value)
	case *ast.IntegerNode:
		return w.number(n, n.Value)
	case *ast.FloatNode:
		return w.number(n, n.Value)
	default:
		return w.wrong(n, "%s has no meaning in JSON", n.Type())
	}
}

// number keeps the digits where they are a JSON number already; hexadecimal and
// the like are written as the value that the parser read.
func (w *yamlWriter) number(n ast.Node, parsed any) error {
	if digits := n.GetToken().Value; jsonNumber(digits) {
		w.out.WriteString(digits)
		return nil
	}
	return w.text(parsed)
}

func jsonNumber(s string) bool {
	_, ok := goal.NormalNumber(json.Number(s))
	return ok
}

func (w *yamlWriter) text(v any) error {
	b, err := goal.Marshal(v)
	if err != nil {
		return err
	}
	w.out.Write(b)
	return nil
}

func (w *yamlWriter) mapping(members []*ast.MappingValueNode) error {
	w.out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if m.Key.IsMergeKey() {
			return w.wrong(m, "merge keys (<<) are not supported")
		}
		if err := w.text(m.Key.GetToken().Value); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.node(m.Value); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

func (w *yamlWriter) sequence(values []ast.Node) error {
	w.out.WriteByte('[')
	for i, v := range values {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.node(v); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}

func (w *yamlWriter) anchor(n *ast.AnchorNode) error {
	start := w.out.Len()
	if err := w.node(n.Value); err != nil {
		return err
	}
	w.anchors[n.Name.GetToken().Value] = bytes.Clone(w.out.Bytes()[start:])
	return nil
}

func (w *yamlWriter) wrong(n ast.Node, format string, args ...any) error {
	at := n.GetToken().Position
	return fmt.Errorf("line %d, column %d: %s", at.Line, at.Column, fmt.Sprintf(format, args...))
}

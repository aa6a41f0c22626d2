package goal

import (
	"bytes"
	"encoding/json"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Marshal is json.Marshal without HTML escaping and without a final newline,
// so that a client's text survives as it was written.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// Unmarshal decodes a stored record. It takes less than half the time of
// json.Unmarshal, wants the names as they are written, and does not look into
// raw members more than that one does.
func Unmarshal(data []byte, v any) error {
	//nolint:wrapcheck // the caller knows what it is
	return jsonv2.Unmarshal(data, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

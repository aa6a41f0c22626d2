package tool_test

import (
	"encoding/json"
	"testing"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/worker/tool"
)

// The test cases of RFC 7386, appendix A.
func TestMergePatchRFC(t *testing.T) {
	t.Parallel()
	for _, row := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		got, err := tool.MergePatch(json.RawMessage(row[0]), json.RawMessage(row[1]))
		if err != nil {
			t.Errorf("%s with %s: %v", row[0], row[1], err)
			continue
		}
		have, err1 := goal.Decode(got)
		want, err2 := goal.Decode([]byte(row[2]))
		if err1 != nil || err2 != nil || !goal.Equal(have, want) {
			t.Errorf("%s with %s is %s, want %s", row[0], row[1], got, row[2])
		}
	}
}

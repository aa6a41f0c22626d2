package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// preview is how many bytes of a result that is too large the planner sees.
const preview = 8 << 10

// results attaches answers to outcomes.
type results struct {
	objects Objects
	log     *slog.Logger
}

// attach puts an answer into the outcome: JSON as it is, everything else as a
// JSON string. One over goal.MaxInline is cut to a preview; the whole goes to
// the object store under its digest. One over limit was not read to its end.
func (r results) attach(ctx context.Context, out *goal.Outcome, data []byte, limit int64) {
	if len(data) == 0 {
		return
	}
	if int64(len(data)) > limit {
		out.Result = text(data[:min(preview, limit)])
		out.Size = int(limit)
		out.Message = strings.TrimPrefix(out.Message+"; the answer is larger than the limit and was cut", "; ")
		return
	}
	if inline := encode(data); len(inline) <= goal.MaxInline {
		out.Result = inline
		return
	}
	sum := sha256.Sum256(data)
	out.Result, out.Size, out.Digest = text(data[:min(preview, len(data))]), len(data), "sha256:"+hex.EncodeToString(sum[:])
	if r.objects == nil {
		return
	}
	name, err := r.objects.PutObject(ctx, data)
	if err != nil {
		// The effect took place: the outcome stands, with its preview and digest.
		r.log.WarnContext(ctx, "large result was not stored", "size", len(data), "error", err)
		return
	}
	out.Object = name
}

// encode is an answer as JSON. JSON that is not strict stays text: it must not
// break the journal.
func encode(data []byte) json.RawMessage {
	if _, err := goal.Decode(data); err == nil {
		return json.RawMessage(strings.TrimSpace(string(data)))
	}
	return text(data)
}

// text is bytes as a JSON string.
func text(data []byte) json.RawMessage {
	b, err := goal.Marshal(strings.ToValidUTF8(string(data), "\uFFFD"))
	if err != nil {
		return nil // a string always encodes
	}
	return b
}

package kv

import (
	"regexp"
	"testing"
)

// A document's key is reversible, and safe as one token of a subject.
func FuzzDocumentName(f *testing.F) {
	for _, s := range []string{"", "W1", "#W1", "a.b", "*", "é", "=", "=41", "\x00\xff"} {
		f.Add(s)
	}
	token := regexp.MustCompile(`^[A-Za-z0-9_=-]{1,255}$`)
	f.Fuzz(func(t *testing.T, name string) {
		part, err := documentPart("id", name)
		if err != nil {
			t.Skip("too long")
		}
		if !token.MatchString(part) {
			t.Fatalf("%q is written %q", name, part)
		}
		if back, err := documentName(part); err != nil || back != name {
			t.Fatalf("%q is written %q and read %q, %v", name, part, back, err)
		}
	})
}

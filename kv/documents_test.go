package kv_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func TestDocuments(t *testing.T) {
	t.Parallel()
	for name, nodes := range map[string]int{"R1": 1, "R3": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := kvtest.Store(t, kvtest.Options{Nodes: nodes})
			for name, test := range map[string]func(*kv.Documents) func(*testing.T){
				"write and read":    documentsWriteAndRead,
				"revisions fence":   documentsFence,
				"key is remembered": documentsRemember,
				"removed and there": documentsPresent,
				"hostile names":     documentsNames,
				"limits":            documentsLimits,
				"concurrent edits":  documentsConcurrent,
			} {
				t.Run(name, test(store.Documents()))
			}
		})
	}
}

// set is an edit that writes a value whatever is there.
func set(value string) func(json.RawMessage, uint64) (json.RawMessage, error) {
	return func(json.RawMessage, uint64) (json.RawMessage, error) { return json.RawMessage(value), nil }
}

func documentsWriteAndRead(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		ns := t.Name()
		for _, value := range []string{`{"n":9007199254740993,"f":1.10,"s":"<&>\u2028"}`, `null`, `"x"`, `[null]`, `0`} {
			rev, _, err := d.Edit(ctx, ns, "c", "id", "", set(value))
			if err != nil {
				t.Fatal(err)
			}
			got, at, err := d.Get(ctx, ns, "c", "id")
			if err != nil || at != rev {
				t.Fatalf("get: revision %d, %v; want %d", at, err, rev)
			}
			if want, _ := goal.Exact([]byte(value)); string(mustExact(t, got)) != string(want) {
				t.Errorf("got %s, want %s", got, value)
			}
		}
		if _, _, err := d.Get(ctx, ns, "c", ""); !errors.Is(err, goal.ErrNotFound) {
			t.Errorf("the whole collection is another document: %v", err)
		}
		if _, _, err := d.Get(ctx, "other", "c", "id"); !errors.Is(err, goal.ErrNotFound) {
			t.Errorf("another namespace sees it: %v", err)
		}
	}
}

func mustExact(t *testing.T, raw []byte) []byte {
	t.Helper()
	out, err := goal.Exact(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return out
}

func documentsFence(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		ns := t.Name()
		rev, err := d.Put(ctx, ns, "c", "a", json.RawMessage(`1`), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Put(ctx, ns, "c", "a", json.RawMessage(`2`), 0); !errors.Is(err, goal.ErrFenced) {
			t.Errorf("second create: %v", err)
		}
		next, err := d.Put(ctx, ns, "c", "a", json.RawMessage(`2`), rev)
		if err != nil || next <= rev {
			t.Fatalf("revision %d after %d: %v", next, rev, err)
		}
		if err := d.Delete(ctx, ns, "c", "a", rev); !errors.Is(err, goal.ErrFenced) {
			t.Errorf("removal at an old revision: %v", err)
		}
		if err := d.Delete(ctx, ns, "c", "a", next); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Put(ctx, ns, "c", "a", json.RawMessage(`3`), 0); err != nil {
			t.Errorf("create after a removal: %v", err)
		}
	}
}

func documentsRemember(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		ns := t.Name()
		edit := func(key, value string) (uint64, bool) {
			t.Helper()
			f := set(value)
			if value == "" {
				f = func(json.RawMessage, uint64) (json.RawMessage, error) { return nil, nil }
			}
			rev, replayed, err := d.Edit(ctx, ns, "c", "a", key, f)
			if err != nil {
				t.Fatal(err)
			}
			return rev, replayed
		}
		first, _ := edit("k0", `0`)
		if rev, replayed := edit("k0", `"other"`); rev != first || !replayed {
			t.Errorf("repeat: %d %t, want %d true", rev, replayed, first)
		}
		for i := 1; i < 8; i++ {
			edit("k"+strconv.Itoa(i), strconv.Itoa(i))
		}
		if rev, replayed := edit("k0", `"other"`); rev != first || !replayed {
			t.Errorf("repeat after seven writes: %d %t, want %d true", rev, replayed, first)
		}
		if raw, _, err := d.Get(ctx, ns, "c", "a"); err != nil || string(raw) != `7` {
			t.Errorf("value %s, %v", raw, err)
		}
		if _, replayed := edit("gone", ""); replayed {
			t.Error("first removal is called a replay")
		}
		edit("back", `8`)
		if rev, replayed := edit("gone", ""); rev != 0 || !replayed {
			t.Errorf("repeated removal: %d %t, want 0 true", rev, replayed)
		}
		if _, _, err := d.Get(ctx, ns, "c", "a"); err != nil {
			t.Errorf("a repeated removal removed what came after it: %v", err)
		}
		if _, replayed := edit("k0", `"again"`); replayed {
			t.Error("the ninth key back is still remembered")
		}
	}
}

func documentsPresent(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		ns := t.Name()
		check := func(when string, want bool, ids ...string) {
			t.Helper()
			_, _, there, err := d.Collection(ctx, ns, "c")
			if err != nil || there != want {
				t.Errorf("%s: present %t, %v; want %t", when, there, err, want)
			}
			got, err := d.List(ctx, ns, "c", 10)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, ids) {
				t.Errorf("%s: list %q, %v; want %q", when, got, err, ids)
			}
		}
		must := func(_ uint64, _ bool, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		remove := func(json.RawMessage, uint64) (json.RawMessage, error) { return nil, nil }
		check("nothing", false)
		must(d.Edit(ctx, ns, "c", "a", "", set(`1`)))
		must(d.Edit(ctx, ns, "c", "b", "", set(`1`)))
		must(d.Edit(ctx, ns, "cc", "x", "", set(`1`)))
		check("two entities", true, "a", "b")
		must(d.Edit(ctx, ns, "c", "a", "", remove))
		must(d.Edit(ctx, ns, "c", "b", "", remove))
		check("emptied", true)
		must(d.Edit(ctx, ns, "c", "", "", remove))
		check("removed whole", false)
		must(d.Edit(ctx, ns, "c", "", "", set(`{}`)))
		check("whole document", true)
		if got, err := d.List(ctx, ns, "cc", 1); err != nil || len(got) != 1 {
			t.Errorf("limited list: %q, %v", got, err)
		}
	}
}

func documentsNames(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		names := []string{"#W1", "a.b", "*", ">", " ", "é", "=41", "\x00", "a/b", "a b", "AÄ"}
		for i, name := range names {
			if _, _, err := d.Edit(ctx, t.Name(), name, name, "", set(strconv.Itoa(i))); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		for i, name := range names {
			raw, _, err := d.Get(ctx, t.Name(), name, name)
			if err != nil || string(raw) != strconv.Itoa(i) {
				t.Errorf("%q: %s, %v; want %d", name, raw, err, i)
			}
			ids, err := d.List(ctx, t.Name(), name, 9)
			if err != nil || !slices.Equal(ids, []string{name}) {
				t.Errorf("%q: list %q, %v", name, ids, err)
			}
		}
	}
}

func documentsLimits(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		ctx := t.Context()
		long := "too-long-" + strings.Repeat("x", 300)
		_, _, err := d.Get(ctx, t.Name(), "c", long)
		if !errors.Is(err, goal.ErrTooLarge) || !strings.Contains(err.Error(), "too-long-") {
			t.Errorf("long id: %v", err)
		}
		big := `"` + strings.Repeat("x", kv.MaxDocument) + `"`
		if _, _, err := d.Edit(ctx, t.Name(), "c", "a", "", set(big)); !errors.Is(err, goal.ErrTooLarge) {
			t.Errorf("large value: %v", err)
		}
		fits := `"` + strings.Repeat("<", kv.MaxDocument-2) + `"`
		if _, _, err := d.Edit(ctx, t.Name(), "c", "a", "", set(fits)); err != nil {
			t.Errorf("value at the limit: %v", err)
		}
		own := errors.New("own")
		_, _, err = d.Edit(ctx, t.Name(), "c", "b", "k", func(json.RawMessage, uint64) (json.RawMessage, error) { return nil, own })
		if !errors.Is(err, own) {
			t.Errorf("the edit's own error: %v", err)
		}
	}
}

// Every writer adds one under a key of its own and repeats it: the sum counts
// keys, not calls.
func documentsConcurrent(d *kv.Documents) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		const writers = 24
		var g errgroup.Group
		for i := range writers {
			g.Go(func() error {
				for range 2 {
					_, _, err := d.Edit(t.Context(), t.Name(), "c", fmt.Sprint("n", i%4), fmt.Sprint("key", i), addOne)
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			raw, _, err := d.Get(t.Context(), t.Name(), "c", fmt.Sprint("n", i))
			if err != nil || string(raw) != strconv.Itoa(writers/4) {
				t.Errorf("counter %d is %s, %v; want %d", i, raw, err, writers/4)
			}
		}
	}
}

func addOne(current json.RawMessage, _ uint64) (json.RawMessage, error) {
	n := 0
	if current != nil {
		var err error
		if n, err = strconv.Atoi(string(current)); err != nil {
			return nil, err
		}
	}
	return json.RawMessage(strconv.Itoa(n + 1)), nil
}

// A document under random edits is what a variable would be, and a repeated
// key among the last eight changes nothing.
func TestDocumentsModel(t *testing.T) {
	t.Parallel()
	d := kvtest.Store(t, kvtest.Options{}).Documents()
	world := 0
	rapid.Check(t, func(t *rapid.T) {
		world++
		ns := fmt.Sprint("w", world)
		var (
			model *int
			keys  []string
			revs  = map[string]uint64{}
		)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				key, v := fmt.Sprint("k", len(keys)), rapid.IntRange(0, 9).Draw(t, "value")
				var next json.RawMessage
				model = nil
				if v > 2 {
					next, model = json.RawMessage(strconv.Itoa(v)), &v
				}
				rev, replayed, err := d.Edit(context.Background(), ns, "c", "a", key,
					func(json.RawMessage, uint64) (json.RawMessage, error) { return next, nil })
				if err != nil || replayed {
					t.Fatalf("write %s: %t, %v", key, replayed, err)
				}
				keys, revs[key] = append(keys, key), rev
			},
			"repeat": func(t *rapid.T) {
				if len(keys) == 0 {
					t.Skip("nothing to repeat")
				}
				key := rapid.SampledFrom(keys[max(0, len(keys)-8):]).Draw(t, "key")
				rev, replayed, err := d.Edit(context.Background(), ns, "c", "a", key, set(`"repeated"`))
				if err != nil || !replayed || rev != revs[key] {
					t.Fatalf("repeat %s: %d %t, %v; want %d true", key, rev, replayed, err, revs[key])
				}
			},
			"": func(t *rapid.T) {
				raw, _, err := d.Get(context.Background(), ns, "c", "a")
				switch {
				case model == nil && !errors.Is(err, goal.ErrNotFound):
					t.Fatalf("removed, but got %s, %v", raw, err)
				case model != nil && string(raw) != strconv.Itoa(*model):
					t.Fatalf("got %s, %v; want %d", raw, err, *model)
				}
			},
		})
	})
}

func BenchmarkDocumentsEdit(b *testing.B) {
	d := kvtest.Store(b, kvtest.Options{}).Documents()
	n := 0
	for b.Loop() {
		n++
		if _, _, err := d.Edit(b.Context(), "ns", "c", "a", "k"+strconv.Itoa(n), set(`{"status":"refunded"}`)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDocumentsGet(b *testing.B) {
	d := kvtest.Store(b, kvtest.Options{}).Documents()
	if _, err := d.Put(b.Context(), "ns", "c", "a", json.RawMessage(`{"status":"paid"}`), 0); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := d.Get(b.Context(), "ns", "c", "a"); err != nil {
			b.Fatal(err)
		}
	}
}

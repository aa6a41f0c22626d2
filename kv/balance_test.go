package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/kv/kvtest"
)

func left(t interface{ Fatalf(string, ...any) }, b *kv.Balances, tenant string) int64 {
	n, err := b.Left(context.Background(), tenant)
	if err != nil {
		t.Fatalf("left: %v", err)
	}
	return n
}

func TestBalance(t *testing.T) {
	t.Parallel()
	b := kvtest.Store(t, kvtest.Options{}).Balances()
	ctx := t.Context()
	do := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}
	check := func(when string, want int64) {
		t.Helper()
		if got := left(t, b, "acme"); got != want {
			t.Fatalf("%s: %d left, want %d", when, got, want)
		}
	}
	do("reserve without a balance", b.Reserve(ctx, "acme", "r0", 1<<40), nil)
	do("settle without a balance", b.Settle(ctx, "acme", "r0", 1<<40), nil)
	check("never granted", kv.Unlimited)
	do("grant", b.Grant(ctx, "acme", "g1", 100), nil)
	do("grant again", b.Grant(ctx, "acme", "g1", 100), nil)
	check("granted", 100)
	do("reserve", b.Reserve(ctx, "acme", "r1", 60), nil)
	do("reserve again", b.Reserve(ctx, "acme", "r1", 60), nil)
	check("reserved", 40)
	do("reserve too much", b.Reserve(ctx, "acme", "r2", 41), goal.ErrBalance)
	do("settle", b.Settle(ctx, "acme", "r1", 25), nil)
	do("settle again", b.Settle(ctx, "acme", "r1", 25), nil)
	check("settled", 75)
	do("reserve the rest", b.Reserve(ctx, "acme", "r3", 75), nil)
	do("reserve of nothing", b.Reserve(ctx, "acme", "r4", 0), goal.ErrBalance)
	do("overspend", b.Settle(ctx, "acme", "r3", 1000), nil)
	check("overspent", 0)
	do("used up", b.Reserve(ctx, "acme", "r5", 1), goal.ErrBalance)
	do("grant more", b.Grant(ctx, "acme", "g2", 5), nil)
	check("granted more", 5)
	if left(t, b, "other") != kv.Unlimited {
		t.Error("another tenant is limited")
	}
	if err := b.Reserve(ctx, "a.b", "r", 1); err == nil {
		t.Error("a tenant with a dot: no error")
	}
	if err := b.Grant(ctx, "acme", "g3", -1); err == nil {
		t.Error("a negative grant: no error")
	}
}

// However many reserve at once, no more is reserved than there is.
func TestBalanceIsNeverOverdrawn(t *testing.T) {
	t.Parallel()
	for name, nodes := range map[string]int{"R1": 1, "R3": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kvtest.Store(t, kvtest.Options{Nodes: nodes}).Balances()
			if err := b.Grant(t.Context(), "acme", "g", 100); err != nil {
				t.Fatal(err)
			}
			var (
				wg       sync.WaitGroup
				reserved atomic.Int64
			)
			for i := range 16 {
				wg.Go(func() {
					switch err := b.Reserve(t.Context(), "acme", strconv.Itoa(i), 15); {
					case err == nil:
						reserved.Add(1)
					case !errors.Is(err, goal.ErrBalance):
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if reserved.Load() != 6 || left(t, b, "acme") != 10 {
				t.Errorf("%d reservations of 15, %d left of 100", reserved.Load(), left(t, b, "acme"))
			}
		})
	}
}

// What is left, held and spent always adds up to what was granted, as long as
// nobody spends more than is left.
func TestBalanceAddsUp(t *testing.T) {
	t.Parallel()
	b := kvtest.Store(t, kvtest.Options{}).Balances()
	world := 0
	rapid.Check(t, func(t *rapid.T) {
		world++
		tenant := fmt.Sprint("t", world)
		const granted = 50
		if err := b.Grant(context.Background(), tenant, "g", granted); err != nil {
			t.Fatal(err)
		}
		held, spent := map[string]int64{}, int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")
			n := rapid.Int64Range(0, 30).Draw(t, "tokens")
			if h, ok := held[id]; ok && rapid.Bool().Draw(t, "settle") {
				n = min(n, h)
				for range 2 {
					if err := b.Settle(context.Background(), tenant, id, n); err != nil {
						t.Fatal(err)
					}
				}
				spent += n
				delete(held, id)
			} else {
				err := b.Reserve(context.Background(), tenant, id, n)
				if _, ok := held[id]; err == nil && !ok {
					held[id] = n
				}
				if err != nil && !errors.Is(err, goal.ErrBalance) {
					t.Fatal(err)
				}
			}
			sum := left(t, b, tenant) + spent
			for _, h := range held {
				sum += h
			}
			if sum != granted {
				t.Fatalf("left, held and spent are %d, granted were %d", sum, granted)
			}
		}
	})
}

func BenchmarkBalance(b *testing.B) {
	balances := kvtest.Store(b, kvtest.Options{}).Balances()
	if err := balances.Grant(b.Context(), "acme", "g", 1<<40); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		id := strconv.Itoa(n)
		if err := balances.Reserve(b.Context(), "acme", id, 100); err != nil {
			b.Fatal(err)
		}
		if err := balances.Settle(b.Context(), "acme", id, 50); err != nil {
			b.Fatal(err)
		}
	}
}

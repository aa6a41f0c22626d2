package kv

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestMajorityContact(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		leader string
		heard  []time.Duration // of each replica; 0: never
		want   time.Duration
		ok     bool
	}{
		{"alone", "a", nil, 0, true},
		{"no leader", "", []time.Duration{1, 1}, 0, false},
		{"of three, one", "a", []time.Duration{0, time.Second}, time.Second, true},
		{"of three, both", "a", []time.Duration{9 * time.Second, time.Second}, time.Second, true},
		{"of three, none since it leads", "a", []time.Duration{0, 0}, 0, false},
		{"of five, one", "a", []time.Duration{0, time.Second, 0, 0}, 0, false},
		{"of five, three", "a", []time.Duration{3, 0, 1, 2}, 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &jetstream.ClusterInfo{Leader: tc.leader}
			for _, d := range tc.heard {
				c.Replicas = append(c.Replicas, &jetstream.PeerInfo{Active: d})
			}
			if got, ok := majorityContact(c); got != tc.want || ok != tc.ok {
				t.Errorf("majorityContact = %s, %v, want %s, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestTerms(t *testing.T) {
	t.Parallel()
	var (
		all terms
		now = time.Now()
		ago = func(d time.Duration) time.Time { return now.Add(-d) }
	)
	all.note("s", term{"a", ago(2 * time.Second), now.Add(time.Hour)})
	all.note("old", term{"a", ago(2 * time.Second), ago(time.Second)})
	for _, tc := range []struct {
		name, stream, server string
		began                time.Time
		want                 bool
	}{
		{"in it", "s", "a", ago(time.Second), true},
		{"began before it", "s", "a", ago(3 * time.Second), false},
		{"over another server", "s", "b", ago(time.Second), false},
		{"of another stream", "t", "a", ago(time.Second), false},
		{"ended after it", "old", "a", ago(2 * time.Second), false},
	} {
		if got := all.cover(tc.stream, tc.server, tc.began); got != tc.want {
			t.Errorf("%s: cover = %v", tc.name, got)
		}
	}
	all.note("s", term{"a", now, now.Add(2 * time.Hour)}) // goes on
	if !all.cover("s", "a", ago(time.Second)) {
		t.Error("a term that goes on has lost its beginning")
	}
	all.note("s", term{"b", now, now.Add(2 * time.Hour)}) // over another server
	if all.cover("s", "b", ago(time.Second)) {
		t.Error("a term began before it was asked for")
	}
}

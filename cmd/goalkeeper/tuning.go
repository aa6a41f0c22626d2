package main

import (
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
)

// spareProcessors lets Go run two threads more than there are CPUs, once and
// unless GOMAXPROCS is set. A system call keeps its share of the CPUs for as long
// as the scheduler takes to notice that it blocks, and the group commit is always
// in one: with two CPUs, a third of the rate was lost to that.
var spareProcessors = sync.OnceFunc(func() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
})

// headroom is how many bytes may be allocated between two collections while the
// live heap is smaller than that.
const headroom = 64 << 20

// keepHeadroom keeps the garbage collector from running all the time over a heap
// of some MiB, once and unless GOGC is set: it took a tenth of the CPU. From
// headroom on the default holds, a collection for every doubling.
var keepHeadroom = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		afterCollection(&collection{})
	}
})

// collection is garbage as soon as it is made, so that its cleanup runs once
// after the next collection.
type collection struct{ _ [16]byte }

func afterCollection(c *collection) {
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	debug.SetGCPercent(gcPercent(live[0].Value.Uint64()))
	runtime.AddCleanup(c, func(struct{}) { afterCollection(&collection{}) }, struct{}{})
}

// gcPercent is the GOGC for a live heap of that many bytes.
func gcPercent(live uint64) int {
	return int(max(100, min(1600, 100*headroom/max(live, 1))))
}

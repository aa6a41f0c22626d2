package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// profile starts the CPU profile of this process; end writes it and that of the
// allocations to dir. An empty dir means none.
func profile(dir string) (end func() error, err error) {
	if dir == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(filepath.Join(dir, "allocs.pprof"))
		if err != nil {
			return errors.Join(fmt.Errorf("profile: %w", err), cpu.Close())
		}
		return errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close(), cpu.Close())
	}, nil
}

// syncs is how many syncs syncTime measures.
const syncs = 200

// syncTime is the median time, in milliseconds, that the file system of dir
// takes to make one small write durable, the way the store does it.
func syncTime(ctx context.Context, dir string) (_ float64, err error) {
	dir, err = os.MkdirTemp(dir, "goalkeeper-sync-")
	if err != nil {
		return 0, fmt.Errorf("temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		return 0, fmt.Errorf("measure a sync: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	barrier, err := kv.NewGroupCommit(dir)
	if err != nil {
		return 0, fmt.Errorf("measure a sync: %w", err)
	}
	defer func() { err = errors.Join(err, barrier.Close()) }()
	took := make([]time.Duration, 0, syncs)
	for range syncs {
		began := time.Now()
		if _, err := f.Write(make([]byte, 512)); err != nil {
			return 0, fmt.Errorf("measure a sync: %w", err)
		}
		if err := barrier.Wait(ctx); err != nil {
			return 0, fmt.Errorf("measure a sync: %w", err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return rounded(float64(took[len(took)/2].Microseconds()) / 1000), nil
}

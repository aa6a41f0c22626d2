package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
)

// Barrier turns "acknowledged" into "durable". Wait may be called concurrently.
type Barrier interface {
	// Wait returns nil when everything that was acknowledged before the call
	// is durable. It ends with ctx.
	Wait(ctx context.Context) error
}

// errClosed: the barrier was closed while somebody waited.
var errClosed = errors.New("group commit is closed")

// GroupCommit is the Barrier of an embedded server that does not sync every
// message: one goroutine syncs the whole file system of the store, and each
// sync releases everybody who waited before it began.
//
// The server's own SyncInterval must be 10 s or less: a record that is older is
// taken for durable when it is read (see DESIGN.md).
//
// A failed sync is final: the kernel may have dropped the pages, so that a
// later success would say nothing about them. Every later Wait returns the
// error until the process starts again and the server reads back what is there.
type GroupCommit struct {
	dir  *os.File // held: its finalizer closes the descriptor
	sync func() error

	mu     sync.Mutex
	next   *commit // those who wait for the sync that has not begun
	failed error   // the first failed sync, or errClosed

	kick chan struct{} // holds a token when next may have waiters
	quit chan struct{}
	done chan struct{}
}

// commit is one sync and those who wait for it. err is set before done closes.
type commit struct {
	waiters int // guarded by GroupCommit.mu
	done    chan struct{}
	err     error
}

// NewGroupCommit starts the group commit of the file system that holds dir.
// Only Linux can sync one file system as a whole; elsewhere it is an error.
func NewGroupCommit(dir string) (*GroupCommit, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("group commit: %w", err)
	}
	if err := syncFileSystem(f.Fd()); err != nil {
		_ = f.Close() // the sync's error is the one to tell
		return nil, fmt.Errorf("group commit: sync %s: %w", dir, err)
	}
	return startGroupCommit(f, func() error { return syncFileSystem(f.Fd()) }), nil
}

func startGroupCommit(dir *os.File, sync func() error) *GroupCommit {
	g := &GroupCommit{
		dir: dir, sync: sync, next: &commit{done: make(chan struct{})},
		kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go g.run()
	return g
}

// Wait implements Barrier.
func (g *GroupCommit) Wait(ctx context.Context) error {
	g.mu.Lock()
	c, err := g.next, g.failed
	c.waiters++
	g.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case g.kick <- struct{}{}:
	default: // the token is there: the sync that takes c has not begun
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Err is the failed sync that ended the group commit, or nil.
func (g *GroupCommit) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(g.failed, errClosed) {
		return nil
	}
	return g.failed
}

// Close waits for the sync that runs, serves those who wait with a last one,
// and releases the directory. It may be called once.
func (g *GroupCommit) Close() error {
	close(g.quit)
	<-g.done
	if err := g.dir.Close(); err != nil {
		return fmt.Errorf("group commit: %w", err)
	}
	return nil
}

func (g *GroupCommit) run() {
	defer close(g.done)
	for {
		select {
		case <-g.kick:
			// Who can run now goes first, and may join: under load one sync then
			// serves more of them. It costs nothing where nobody else can run.
			runtime.Gosched()
			g.commit(false)
		case <-g.quit:
			g.commit(true)
			return
		}
	}
}

// commit takes those who wait by now, syncs, and releases them.
func (g *GroupCommit) commit(closing bool) {
	g.mu.Lock()
	c, err := g.next, g.failed
	g.next = &commit{done: make(chan struct{})}
	if closing && err == nil {
		g.failed = errClosed
	}
	g.mu.Unlock()
	if c.waiters == 0 {
		return
	}
	if err == nil {
		err = g.sync()
	}
	if err != nil {
		g.mu.Lock()
		g.failed = err
		g.mu.Unlock()
	}
	c.err = err
	close(c.done)
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nftproxy/nftproxy/ctsync"
)

// fake is a conntrack table in memory, with faults on demand. Its methods take as long as took.
type fake struct {
	mu       sync.Mutex
	flows    []ctsync.Flow
	took     time.Duration
	dumpErr  func(n int) error // by number of the dump, from 1
	failures int               // deletions to refuse
	dumps    []ctsync.Query
	during   func() // called in each dump, after the entries were shown
	closed   bool
}

func (f *fake) dump(q ctsync.Query, show func([]ctsync.Flow) error) (int, error) {
	time.Sleep(f.took)
	f.mu.Lock()
	f.dumps = append(f.dumps, q)
	n, shown := len(f.dumps), slices.Clone(f.flows)
	f.mu.Unlock()
	if f.dumpErr != nil {
		if err := f.dumpErr(n); err != nil {
			return 0, err
		}
	}
	for part := range slices.Chunk(shown, batch) {
		if err := show(part); err != nil {
			return 0, err
		}
	}
	if f.during != nil {
		f.during()
	}
	return len(shown), nil
}

func (f *fake) remove(flows []ctsync.Flow) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := min(f.failures, len(flows))
	f.failures -= failed
	for _, gone := range flows[failed:] {
		f.flows = slices.DeleteFunc(f.flows, func(o ctsync.Flow) bool { return o == gone })
	}
	if failed > 0 {
		return failed, syscall.ENOMEM
	}
	return 0, nil
}

func (f *fake) entries() (int, error) { return len(f.flows), nil }
func (f *fake) close()                { f.closed = true }

// add puts entries into the table.
func (f *fake) add(flows ...ctsync.Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = append(f.flows, flows...)
}

// rig is a Syncer over a fake, in a bubble of fake time.
type rig struct {
	*Syncer
	t      *testing.T
	kernel *fake
	start  time.Time
	mu     sync.Mutex
	passes []Pass
}

// inBubble runs f with a Syncer that runs.
func inBubble(t *testing.T, scope ctsync.Scope, f func(b *rig)) {
	synctest.Test(t, func(t *testing.T) {
		b := &rig{t: t, kernel: &fake{}, start: time.Now()}
		b.Syncer = newSyncer(Options{Scope: scope, OnPass: func(p Pass) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.passes = append(b.passes, p)
		}}, b.kernel, ctsync.Caps{Tuple: true, Status: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		f(b)
		cancel()
		if err := <-done; err != nil || !b.kernel.closed {
			t.Errorf("Run: %v, closed %v", err, b.kernel.closed)
		}
	})
}

// finish waits until nothing is left to check, and returns the passes made since the last call.
func (b *rig) finish() []Pass {
	b.t.Helper()
	for synctest.Wait(); !b.idle(); synctest.Wait() {
		time.Sleep(time.Millisecond)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.passes
	b.passes = nil
	return p
}

// idle reports whether nothing is left to check.
func (b *rig) idle() bool {
	b.Syncer.mu.Lock()
	defer b.Syncer.mu.Unlock()
	return b.state.Idle()
}

// ready makes the first full pass and forgets it.
func (b *rig) ready(changes ...ctsync.Change) {
	b.t.Helper()
	b.Update(changes)
	b.Resync()
	b.finish()
	b.start = time.Now()
	b.kernel.dumps = nil
}

// times are the starts of passes, relative to b.start.
func (b *rig) times(passes []Pass) string {
	var all []time.Duration
	for _, p := range passes {
		all = append(all, p.Start.Sub(b.start))
	}
	return fmt.Sprint(all)
}

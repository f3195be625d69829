// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a conntrack table in memory, with faults on demand. Its methods take the time that took says.
type fake struct {
	mu       sync.Mutex
	flows    []Flow
	took     time.Duration
	dumpErr  func(n int) error // by number of the dump, from 1
	failures int               // deletions to refuse
	dumps    []query
	during   func() // called in each dump, after the entries were shown
	closed   bool
}

func (f *fake) dump(q *query, show func([]Flow) error) (int, error) {
	time.Sleep(f.took)
	f.mu.Lock()
	f.dumps = append(f.dumps, *q)
	n, shown := len(f.dumps), slices.Clone(f.flows)
	f.mu.Unlock()
	if f.dumpErr != nil {
		if err := f.dumpErr(n); err != nil {
			return 0, err
		}
	}
	for part := range slices.Chunk(shown, 170) {
		if err := show(part); err != nil {
			return 0, err
		}
	}
	if f.during != nil {
		f.during()
	}
	return len(shown), nil
}

func (f *fake) remove(flows []Flow) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := min(f.failures, len(flows))
	f.failures -= failed
	for _, gone := range flows[failed:] {
		f.flows = slices.DeleteFunc(f.flows, func(o Flow) bool { return o == gone })
	}
	if failed > 0 {
		return failed, syscall.ENOMEM
	}
	return 0, nil
}

func (f *fake) entries() (int, error) { return len(f.flows), nil }
func (f *fake) close()                { f.closed = true }

// add puts entries into the table.
func (f *fake) add(flows ...Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = append(f.flows, flows...)
}

// bench is a Syncer over a fake, in a bubble of fake time.
type bench struct {
	*Syncer
	t      *testing.T
	kernel *fake
	start  time.Time
	mu     sync.Mutex
	passes []Pass
}

// inBubble runs f with a Syncer that runs.
func inBubble(t *testing.T, scope Scope, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, kernel: &fake{}, start: time.Now()}
		b.Syncer = newSyncer(Options{Scope: scope, OnPass: func(p Pass) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.passes = append(b.passes, p)
		}}, b.kernel, Caps{Tuple: true, Status: true})
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

// settle waits until nothing is left to look at, and returns the passes made since the last call.
func (b *bench) settle() []Pass {
	b.t.Helper()
	synctest.Wait()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Hour)
	defer cancel()
	if err := b.Wait(ctx); err != nil {
		b.t.Fatal("never at rest")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.passes
	b.passes = nil
	return p
}

// ready makes the first full look and forgets it.
func (b *bench) ready(changes ...Change) {
	b.t.Helper()
	b.Update(changes)
	b.Resync()
	b.settle()
	b.start = time.Now()
	b.kernel.dumps = nil
}

// times are the starts of passes, relative to b.start.
func (b *bench) times(passes []Pass) string {
	var all []time.Duration
	for _, p := range passes {
		all = append(all, p.Start.Sub(b.start))
	}
	return fmt.Sprint(all)
}

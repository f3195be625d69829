// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"

	. "github.com/nftproxy/nftproxy/routing"
	. "github.com/nftproxy/nftproxy/routing/kernel"
)

// fake is a System in memory. It holds each slot once, as the kernel does, refuses what the kernel would refuse, tells
// of changes, and fails on a schedule: before it did anything, or after it had done it.
type fake struct {
	mu       sync.Mutex
	state    State
	entries  Set
	foreign  map[any]bool // slots held by others
	rng      *rand.Rand
	failRate float64
	denied   bool // no privilege
	readErr  error
	reads    int
	writes   []Op
	trigger  func()
	interest func() Interest
	broken   chan error // what Run of a subscription returns
	subs     int
}

// newFake seeds the fake's own random source from rng: the Manager's goroutine draws from it.
func newFake(rng *rand.Rand) *fake {
	return &fake{
		state: worker(), entries: Set{}, foreign: map[any]bool{}, broken: make(chan error),
		rng: rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())),
	}
}

// Read implements System.
func (f *fake) Read(context.Context, Config) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.readErr != nil {
		return State{}, f.readErr
	}
	s := f.state
	s.Links = append([]Link(nil), s.Links...)
	s.Ours = Set{}
	for e := range f.entries {
		if l, ok := e.(LooseRPF); ok {
			for i := range s.Links {
				if s.Links[i].Index == l.Index {
					s.Links[i].RPFilter = RPLoose
				}
			}
			continue
		}
		s.Ours[e] = struct{}{}
	}
	return s, nil
}

// Apply implements System.
func (f *fake) Apply(_ context.Context, have Set, ops []Op, name func(int) string) (Set, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := have.Clone()
	var failed []error
	for _, op := range ops {
		err := f.carryOut(op)
		if err != nil {
			failed = append(failed, &OpError{Op: op, Text: op.Verb.String() + " " + op.Entry.Text(name), Err: err})
			continue
		}
		if op.Verb == Remove {
			delete(now, op.Entry)
			continue
		}
		delete(now, op.Old)
		now[op.Entry] = struct{}{}
	}
	if len(failed) == 0 {
		return now, nil
	}
	return now, fmt.Errorf("%d of %d: %w", len(failed), len(ops), errors.Join(failed...))
}

func (f *fake) carryOut(op Op) error {
	f.writes = append(f.writes, op)
	switch {
	case f.denied:
		return syscall.EPERM
	case f.foreign[op.Entry.Slot()] && op.Verb != Remove:
		return syscall.EEXIST
	case f.rng.Float64() < f.failRate/2:
		return syscall.ENOBUFS
	}
	if op.Verb == Remove {
		delete(f.entries, op.Entry)
	} else {
		for e := range f.entries {
			if e.Slot() == op.Entry.Slot() {
				delete(f.entries, e)
			}
		}
		f.entries[op.Entry] = struct{}{}
	}
	if f.rng.Float64() < f.failRate/2 {
		return syscall.ETIMEDOUT // done, but reported as failed
	}
	return nil
}

// Watch implements System.
func (f *fake) Watch() (Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs++
	return f, nil
}

// Run implements Subscription.
func (f *fake) Run(ctx context.Context, interest func() Interest, trigger func()) error {
	f.mu.Lock()
	f.trigger, f.interest = trigger, interest
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.broken:
		return err
	}
}

// behindItsBack changes the state and tells of it.
func (f *fake) behindItsBack(change func()) {
	f.mu.Lock()
	change()
	trigger := f.trigger
	f.mu.Unlock()
	trigger()
}

// holds returns the entries that are there.
func (f *fake) holds() Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries.Clone()
}

// written returns the number of operations since the last call.
func (f *fake) written() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.writes)
	f.writes = nil
	return n
}

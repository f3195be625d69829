// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/nftproxy/nftproxy/routing"
	. "github.com/nftproxy/nftproxy/routing/kernel"
)

// managed runs a Manager over a fake inside a synctest bubble. stop ends it and returns what Run returned.
func managed(t *testing.T, f *fake, c Config) (m *Manager, stop func() error) {
	t.Helper()
	m, err := New(f, c, testLog())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return m, func() error { cancel(); return <-done }
}

// settle lets fake time pass until nothing of interest is under way.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func planned(t *testing.T, c Config, f *fake) Set {
	t.Helper()
	s := must(f.Read(context.Background(), Config{}))
	return Plan(must(c.Normalize()), s, nil).Want
}

func same(t *testing.T, what string, want, got Set) {
	t.Helper()
	if d := cmp.Diff(lines(want, worker().Name), lines(got, worker().Name)); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// TestManagerRandomWalk drives a Manager through configurations, in order and then 5 x N at random, while one operation
// in five fails, half of those after they were carried out, and entries vanish behind its back. Each step must end in
// exactly what a fresh plan wants.
func TestManagerRandomWalk(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFake(rng)
		f.failRate = 0.2
		configs := walkConfigs()
		m, stop := managed(t, f, configs[0])
		step := func(i int) {
			if err := m.Update(configs[i]); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
				f.behindItsBack(func() {
					for e := range f.entries {
						if rng.IntN(3) == 0 {
							delete(f.entries, e)
						}
					}
				})
			}
			settle(3 * time.Minute) // retries are at most 10 s apart
			same(t, fmt.Sprintf("configuration %d", i), planned(t, configs[i], f), owned(f.holds(), planned(t, configs[i], f)))
		}
		for i := range configs {
			step(i)
		}
		for range 5 * len(configs) {
			step(rng.IntN(len(configs)))
		}
		if s := m.Stats(); s.Failed == 0 || s.Repaired[KindRoute] == 0 {
			t.Errorf("the walk provoked nothing: %+v", s)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerCost: nothing is written when nothing changed, one operation for one entry, one round for many triggers.
func TestManagerCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		m, stop := managed(t, f, allConfig())
		settle(time.Second)
		f.written()
		rounds := m.Stats().Rounds
		for range 1000 {
			m.Trigger()
		}
		settle(time.Second)
		if got := m.Stats().Rounds - rounds; got > 2 {
			t.Errorf("%d rounds for 1000 triggers at once", got)
		}
		settle(time.Hour)
		if n := f.written(); n != 0 {
			t.Errorf("%d operations although nothing changed", n)
		}
		for e := range f.holds() {
			f.behindItsBack(func() { delete(f.entries, e) })
			settle(100 * time.Millisecond)
			if n := f.written(); n != 1 || !f.holds().Has(e) {
				t.Errorf("%d operations to repair %v", n, e)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerCounts: what was put back is counted by kind; what is added for a new configuration is no repair, nor is
// what comes back with its device.
func TestManagerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		m, stop := managed(t, f, reachConfig())
		settle(time.Second)
		for i := range 20 {
			c := allConfig()
			c.ServiceCIDRs = prefixes(fmt.Sprintf("10.%d.0.0/16", i), "fd00:10:96::/112")
			if err := m.Update(c); err != nil {
				t.Fatal(err)
			}
			settle(time.Second)
		}
		if err := m.Update(allConfig()); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		f.behindItsBack(func() { f.state.Links = worker().Links[:2] })
		settle(time.Second)
		f.behindItsBack(func() { f.state = worker() })
		settle(time.Second)
		if s := m.Stats(); len(s.Repaired) != 0 || s.Removed == 0 {
			t.Errorf("before anything was removed by others: repaired %v, removed %d", s.Repaired, s.Removed)
		}
		want := Set{}
		for e := range f.holds() {
			if e.Kind() == KindRule || e.Kind() == KindAddress {
				want[e] = struct{}{}
			}
		}
		f.behindItsBack(func() {
			for e := range want {
				delete(f.entries, e)
			}
		})
		settle(time.Second)
		s := m.Stats()
		if d := cmp.Diff(map[Kind]uint64{KindRule: 2, KindAddress: 2}, s.Repaired); d != "" {
			t.Errorf("repaired (-want +got):\n%s", d)
		}
		if d := cmp.Diff(s.Wanted, s.Entries); d != "" || s.Entries[KindRoute] != 12 {
			t.Errorf("%d routes; (-wanted +there):\n%s", s.Entries[KindRoute], d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		same(t, "after the end everything stays", planned(t, allConfig(), f), f.holds())
	})
}

// TestManagerHolds: a restart that does not know the service CIDRs yet adds but neither changes nor removes anything
// until it does; then what is not wanted goes.
func TestManagerHolds(t *testing.T) {
	full := allConfig()
	full.NodeAddrs = addrs("172.18.0.3", "fd00:18::3")
	early := full
	early.ServiceCIDRs = nil
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		f.entries = planned(t, full, f)
		before := f.holds()
		m, stop := managed(t, f, early)
		settle(time.Minute)
		for e := range before {
			if !f.holds().Has(e) {
				t.Errorf("%s is gone before the service CIDRs are known", e.Text(IndexName))
			}
		}
		for _, c := range []Config{full, early} {
			if err := m.Update(c); err != nil {
				t.Fatal(err)
			}
			settle(time.Minute)
			same(t, "after an update", planned(t, c, f), f.holds())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerReportsRefusedUpdate: a configuration that is wrong in itself leaves the old one in force and stays a
// problem until there is a right one.
func TestManagerReportsRefusedUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		m, stop := managed(t, f, allConfig())
		settle(time.Second)
		var reported []string
		m.OnProblems = func(ps []Problem) { reported = append(reported, problemLines(ps)) }
		bad := allConfig()
		bad.NodeAddrs = addrs("::ffff:172.18.0.3")
		if err := m.Update(bad); err == nil {
			t.Error("accepted")
		}
		settle(2 * time.Minute)
		same(t, "while refused", planned(t, allConfig(), f), f.holds())
		want := "conflict: new configuration not in force: nodeAddrs: \"::ffff:172.18.0.3\" is neither an IPv4 nor an IPv6 address: write it plainly\n"
		if got := problemLines(m.Stats().Problems); got != want {
			t.Errorf("problems: %s\nwant %s", got, want)
		}
		if err := m.Update(allConfig()); err != nil {
			t.Error(err)
		}
		settle(time.Second)
		if got := problemLines(m.Stats().Problems); got != "" {
			t.Errorf("problems: %s", got)
		}
		if d := cmp.Diff([]string{want, ""}, reported); d != "" {
			t.Errorf("reported (-want +got):\n%s", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerUnreadable: while the kernel cannot be read nothing is written, and what comes back later is no repair,
// because nobody knows who did what in between.
func TestManagerUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		m, stop := managed(t, f, reachConfig())
		settle(time.Second)
		f.written()
		f.behindItsBack(func() { f.readErr, f.entries = syscall.ENOBUFS, Set{} })
		f.mu.Lock()
		f.reads = 0
		f.mu.Unlock()
		settle(time.Minute)
		if n := f.written(); n != 0 {
			t.Errorf("%d operations on an unknown state", n)
		}
		if f.reads < 5 || f.reads > 20 { // 0.1+0.2+...+6.4 s are 7, then one in 10 s
			t.Errorf("%d attempts to read in a minute", f.reads)
		}
		f.behindItsBack(func() { f.readErr = nil })
		settle(time.Second)
		same(t, "when it can be read again", planned(t, reachConfig(), f), f.holds())
		if s := m.Stats(); len(s.Repaired) != 0 {
			t.Errorf("repaired %v", s.Repaired)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerTaken: what others hold is left to them and reported, without attempts at the speed of the loop; when they
// let go it is ours within the promised time.
func TestManagerTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		var route Route
		for e := range planned(t, reachConfig(), f) {
			if r, ok := e.(Route); ok && r.Dst == dualCIDRs()[0] {
				route = r
			}
		}
		f.foreign[route.Slot()] = true
		m, stop := managed(t, f, reachConfig())
		settle(time.Hour)
		if n := f.written(); n > 400 { // every 10 s
			t.Errorf("%d operations in an hour", n)
		}
		if got := problemLines(m.Stats().Problems); !strings.Contains(got, "others hold that place") {
			t.Errorf("problems: %s", got)
		}
		if s := m.Stats(); maps.Equal(s.Entries, s.Wanted) {
			t.Error("in sync although a route is missing")
		}
		f.behindItsBack(func() { delete(f.foreign, route.Slot()) })
		settle(100 * time.Millisecond)
		if !f.holds().Has(route) || len(m.Stats().Problems) != 0 {
			t.Errorf("not taken when it was free: %s", problemLines(m.Stats().Problems))
		}
		if s := m.Stats(); !maps.Equal(s.Entries, s.Wanted) {
			t.Errorf("%v of %v", s.Entries, s.Wanted)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerHearsAgain: a subscription that breaks is made anew, and what was missed meanwhile is repaired.
func TestManagerHearsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		_, stop := managed(t, f, reachConfig())
		settle(time.Second)
		f.broken <- errors.New("broken")
		synctest.Wait()
		f.mu.Lock()
		f.entries = Set{} // nobody hears it
		f.mu.Unlock()
		settle(2 * time.Second)
		same(t, "after a new subscription", planned(t, reachConfig(), f), f.holds())
		if f.subs != 2 {
			t.Errorf("%d subscriptions", f.subs)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerVerifies: a change of which no notification came is found by the round that needs no reason.
func TestManagerVerifies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		_, stop := managed(t, f, reachConfig())
		settle(time.Second)
		f.mu.Lock()
		f.entries = Set{}
		f.mu.Unlock()
		settle(time.Minute)
		same(t, "after a minute", planned(t, reachConfig(), f), f.holds())
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestManagerDenied: without the privilege to write, Run says so at once.
func TestManagerDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		f.denied = true
		_, stop := managed(t, f, reachConfig())
		settle(time.Second)
		if err := stop(); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || !errors.Is(err, syscall.EPERM) {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestManagerUnreadableAtStart: an error of the first read is Run's.
func TestManagerUnreadableAtStart(t *testing.T) {
	f := newFake(seeded(t))
	f.readErr = syscall.EPERM
	m := must(New(f, reachConfig(), nil))
	if err := m.Run(context.Background()); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Run: %v", err)
	}
}

// TestManagerStopsAtOnce: the end of the context ends Run also while it waits or gathers.
func TestManagerStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(seeded(t))
		m, stop := managed(t, f, reachConfig())
		settle(time.Second)
		m.Trigger()
		synctest.Wait()
		start := time.Now()
		if err := stop(); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

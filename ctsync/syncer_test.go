// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	dnsFront = front(UDP, "10.96.0.10:53")
	webFront = front(TCP, "10.96.0.11:80")
	twoEPs   = eps("10.244.0.1:53", "10.244.0.2:53")
	oneEP    = eps("10.244.0.1:53")
	toSecond = flow(UDP, "10.1.0.1:1000", "10.96.0.10:53", "10.244.0.2:53")
)

// TestPasses: a change is looked at at once and twice more, by narrow dumps, and then no more.
func TestPasses(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.add(toSecond)
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		passes := b.settle()
		if got := b.times(passes); got != "[0s 25ms 500ms]" {
			t.Errorf("passes at %s", got)
		}
		if p := passes[0]; p.Stale[EndpointGone] != 1 || p.Deleted() != 1 || p.Err != nil || p.Full || len(b.kernel.flows) != 0 {
			t.Errorf("first pass: %+v", p)
		}
		want := query{family: syscall.AF_INET, proto: UDP, port: 53, dst: dnsFront.Addr}
		for _, q := range b.kernel.dumps {
			if q != want {
				t.Errorf("query %+v, want %+v", q, want)
			}
		}
	})
}

// TestRace: an entry that is born after the pass has read its place goes with the next look.
func TestRace(t *testing.T) {
	for _, after := range []time.Duration{0, 24 * time.Millisecond, 499 * time.Millisecond} {
		inBubble(t, Scope{}, func(b *bench) {
			b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
			b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
			synctest.Wait() // the first pass is over
			time.Sleep(after)
			b.kernel.add(toSecond)
			b.settle()
			if len(b.kernel.flows) != 0 {
				t.Errorf("born %v after the pass: still there", after)
			}
		})
	}
}

// TestNoPass: what makes nothing stale costs nothing.
func TestNoPass(t *testing.T) {
	cluster := netip.MustParsePrefix("10.96.0.0/16")
	for name, c := range map[string]struct {
		scope  Scope
		change Change
		want   int
	}{
		"endpoint added":                   {Scope{}, Change{Frontend: dnsFront, Endpoints: eps("10.244.0.0:53", "10.244.0.1:53", "10.244.0.2:53", "10.244.0.3:53")}, 0},
		"nothing changed":                  {Scope{}, Change{Frontend: dnsFront, Endpoints: twoEPs}, 0},
		"endpoint of TCP removed, TCP off": {Scope{}, Change{Frontend: webFront, Endpoints: oneEP}, 0},
		"TCP Service deleted, TCP off":     {Scope{}, Change{Frontend: webFront, Removed: true}, 0},
		"TCP ClusterIP added, TCP off":     {Scope{}, Change{Frontend: front(TCP, "10.96.0.99:80"), Endpoints: oneEP}, 0},
		"unknown frontend removed":         {Scope{}, Change{Frontend: front(UDP, "10.96.0.99:80"), Removed: true}, 0},
		"endpoint of TCP removed":          {Scope{TCP: true}, Change{Frontend: webFront, Endpoints: oneEP}, 3},
		"TCP external IP added, TCP off":   {Scope{}, Change{Frontend: front(TCP, "192.0.2.1:80"), Endpoints: oneEP}, 3},
		"UDP ClusterIP added":              {Scope{}, Change{Frontend: front(UDP, "10.96.0.99:80"), Endpoints: oneEP}, 3},
		"endpoint exchanged":               {Scope{}, Change{Frontend: dnsFront, Endpoints: eps("10.244.0.1:53", "10.244.0.3:53")}, 3},
		"last endpoint gone":               {Scope{}, Change{Frontend: dnsFront}, 3},
		"steering ends":                    {Scope{}, Change{Frontend: front(UDP, "10.96.0.12:53"), Endpoints: twoEPs}, 3},
		"removed":                          {Scope{}, Change{Frontend: dnsFront, Removed: true}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.scope, func(b *bench) {
				b.SetServiceCIDRs([]netip.Prefix{cluster})
				b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs}, Change{Frontend: webFront, Endpoints: twoEPs},
					Change{Frontend: front(UDP, "10.96.0.12:53"), Endpoints: twoEPs, Untranslated: true})
				b.Update([]Change{c.change})
				if got := len(b.settle()); got != c.want {
					t.Errorf("%d passes, want %d", got, c.want)
				}
			})
		})
	}
}

// TestStart: nothing is judged before the first Resync, which then judges everything.
func TestStart(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.kernel.add(toSecond, flow(UDP, "10.1.0.1:1000", "192.0.2.1:53", ""))
		b.Update([]Change{{Frontend: dnsFront, Endpoints: twoEPs}})
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		b.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
		if p := b.settle(); len(p) != 0 {
			t.Errorf("%d passes before Resync", len(p))
		}
		b.start = time.Now()
		b.Resync()
		passes := b.settle()
		if !passes[0].Full || passes[0].Deleted() != 1 || len(b.kernel.flows) != 1 {
			t.Errorf("%+v, left %+v", passes[0], b.kernel.flows)
		}
		b.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
		if p := b.settle(); len(p) != 0 {
			t.Errorf("%d passes for the same addresses", len(p))
		}
		b.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.2")})
		if p := b.settle(); len(p) == 0 || !p[0].Full {
			t.Errorf("no full pass for a new address")
		}
	})
}

// TestOnePass: many changes share one pass.
func TestOnePass(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		var before, after []Change
		for i := range 100 {
			f := Frontend{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), uint16(1000 + i), UDP}
			before = append(before, Change{Frontend: f, Endpoints: twoEPs})
			after = append(after, Change{Frontend: f, Endpoints: oneEP})
		}
		b.ready(before...)
		b.kernel.took = 5 * time.Millisecond
		for _, c := range after {
			b.Update([]Change{c})
		}
		// The first pass begins with some of the changes, and at most one more is needed for the rest.
		if passes := b.settle(); len(passes) < 3 || len(passes) > 6 {
			t.Errorf("%d passes: %s", len(passes), b.times(passes))
		}
	})
}

// TestChangeWithinPass: what changes while a pass runs gets passes of its own, since that one may have gone by. Here it
// is the last pass of the change before.
func TestChangeWithinPass(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.during = func() {
			if len(b.kernel.dumps) == len(settleTimes) {
				time.Sleep(100 * time.Millisecond)
				b.kernel.add(toSecond)
				b.Update([]Change{{Frontend: dnsFront, Endpoints: eps("10.244.0.3:53")}})
			}
		}
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if got := b.times(b.settle()); got != "[0s 25ms 500ms 600ms 625ms 1.1s]" || len(b.kernel.flows) != 0 {
			t.Errorf("passes at %s, left %d", got, len(b.kernel.flows))
		}
	})
}

// TestFreshRemains: a change within a change does not hide that flows from before the rules may be there.
func TestFreshRemains(t *testing.T) {
	tab := newTable(Scope{})
	tab.started = true
	tab.update([]Change{{Frontend: dnsFront, Endpoints: twoEPs}}, time.Time{})
	tab.update([]Change{{Frontend: dnsFront, Endpoints: oneEP}}, time.Time{})
	if r, _ := tab.take(time.Time{}); !r.fresh() {
		t.Error("untranslated flows would not be seen")
	}
}

// TestFormerForgotten: the endpoints of removed frontends are not kept for ever.
func TestFormerForgotten(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.add(toSecond)
		b.Update([]Change{{Frontend: dnsFront, Removed: true}})
		if p := b.settle(); p[0].Stale[FrontendGone] != 1 {
			t.Errorf("%+v", p[0])
		}
		if n := len(b.table.former) + len(b.table.concerns) + len(b.table.offers); n != 0 {
			t.Errorf("%d things remembered: %+v", n, b.table)
		}
	})
}

// TestFormerBeforeStart: nor are those of frontends that were removed before the first Resync, which judges their flows.
func TestFormerBeforeStart(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.kernel.add(toSecond)
		b.Update([]Change{{Frontend: dnsFront, Endpoints: twoEPs}, {Frontend: dnsFront, Removed: true}})
		b.Resync()
		if p := b.settle(); p[0].Stale[FrontendGone] != 1 {
			t.Errorf("%+v", p[0])
		}
		if n := len(b.table.former); n != 0 {
			t.Errorf("%d frontends remembered: %+v", n, b.table.former)
		}
	})
}

// TestRetry: a failed dump and a failed deletion are tried again, later and later, until they succeed.
func TestRetry(t *testing.T) {
	for name, fault := range map[string]func(*fake){
		"dump":   func(f *fake) { f.dumpErr = failFirst(3, syscall.ENOBUFS) },
		"delete": func(f *fake) { f.failures = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Scope{}, func(b *bench) {
				b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
				b.kernel.add(toSecond)
				fault(b.kernel)
				b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
				passes := b.settle()
				if got := b.times(passes); got != "[0s 50ms 150ms 350ms 500ms]" {
					t.Errorf("passes at %s", got)
				}
				if len(b.kernel.flows) != 0 || passes[3].Deleted() != 1 || passes[2].Err == nil || passes[2].Deleted() != 0 {
					t.Errorf("left %d, passes %+v", len(b.kernel.flows), passes)
				}
			})
		})
	}
}

func failFirst(n int, err error) func(int) error {
	return func(i int) error {
		if i <= n {
			return err
		}
		return nil
	}
}

// TestGiveUp: retries are bounded and counted, and the next change starts anew.
func TestGiveUp(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.dumpErr = func(int) error { return syscall.EPERM }
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		passes := b.settle()
		if n := len(passes); n != maxTries || passes[n-1].GivenUp != 1 || !errors.Is(passes[0].Err, syscall.EPERM) {
			t.Errorf("%d passes, last %+v", n, passes[n-1])
		}
		b.kernel.dumpErr = nil
		b.kernel.add(toSecond)
		b.Resync()
		if p := b.settle(); p[0].Deleted() != 1 {
			t.Errorf("after Resync: %+v", p[0])
		}
	})
}

// TestInterrupted: an interrupted dump is made again within the pass, a bounded number of times.
func TestInterrupted(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.add(toSecond)
		b.kernel.dumpErr = failFirst(maxDumps-1, fmt.Errorf("dump: %w", errInterrupted))
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if p := b.settle(); p[0].Dumps != maxDumps || p[0].Deleted() != 1 || p[0].Err != nil {
			t.Errorf("%+v", p[0])
		}
		b.kernel.dumps, b.kernel.dumpErr = nil, failFirst(maxDumps, errInterrupted)
		b.Update([]Change{{Frontend: dnsFront, Endpoints: twoEPs[1:]}})
		if p := b.settle(); p[0].Dumps != maxDumps || p[0].Err == nil || p[1].Err != nil {
			t.Errorf("%+v", p[:2])
		}
	})
}

// TestManyStale: more stale entries in a datagram than a batch of deletions holds.
func TestManyStale(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		for i := range 1000 {
			b.kernel.add(flow(UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.10:53", "10.244.0.2:53"))
			b.kernel.add(flow(UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.10:53", "10.244.0.1:53"))
		}
		b.Update([]Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if p := b.settle(); p[0].Deleted() != 1000 || len(b.kernel.flows) != 1000 {
			t.Errorf("%+v, left %d", p[0], len(b.kernel.flows))
		}
	})
}

// TestRest: under endless change the passes take a quarter of the time, and changes do not wait for ever.
func TestRest(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		b.ready(Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.took = 100 * time.Millisecond
		for i := range 1000 { // 10 s
			b.Update([]Change{{Frontend: dnsFront, Endpoints: twoEPs[i%2 : i%2+1]}})
			time.Sleep(10 * time.Millisecond)
		}
		passes := b.settle()
		if n := len(passes); n < 24 || n > 28 { // 10 s / 400 ms, and the last looks
			t.Errorf("%d passes in 10 s", n)
		}
	})
}

// TestBurst: a few changes in a row are not kept waiting by the passes of those before.
func TestBurst(t *testing.T) {
	inBubble(t, Scope{}, func(b *bench) {
		fronts := []Change{}
		for i := range 5 {
			fronts = append(fronts, Change{Frontend: front(UDP, fmt.Sprintf("10.96.0.%d:53", 20+i)), Endpoints: twoEPs})
		}
		b.ready(fronts...)
		b.kernel.took = 10 * time.Millisecond
		for _, c := range fronts {
			b.Update([]Change{{Frontend: c.Frontend, Endpoints: oneEP}})
			time.Sleep(11 * time.Millisecond)
		}
		passes := b.settle()
		if fifth := passes[4].Start.Sub(b.start); fifth > 60*time.Millisecond {
			t.Errorf("passes at %s", b.times(passes))
		}
	})
}

// TestStop: Run ends in the middle of a pass.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fake{took: time.Second}
		s := newSyncer(Options{}, k, Caps{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		k.add(toSecond)
		s.Resync()
		time.Sleep(time.Millisecond)
		cancel()
		if err := <-done; err != nil || !k.closed {
			t.Errorf("Run: %v", err)
		}
		if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// TestPlan checks what is asked of the kernel.
func TestPlan(t *testing.T) {
	dns6 := front(UDP, "[fd00:96::1]:53")
	dns2, node := front(UDP, "10.96.0.12:53"), front(UDP, "0.0.0.0:30053")
	all := Caps{true, true}
	for name, c := range map[string]struct {
		fronts  []Frontend
		fresh   bool
		caps    Caps
		entries int
		want    []query
	}{
		"one":              {[]Frontend{dnsFront}, false, all, 1, []query{{family: 2, proto: UDP, port: 53, dst: dnsFront.Addr}}},
		"same port":        {[]Frontend{dnsFront, dns2}, false, all, 1, []query{{family: 2, proto: UDP, port: 53}}},
		"two ports":        {[]Frontend{dnsFront, node}, false, all, 1, []query{{family: 2, proto: UDP}}},
		"NodePort":         {[]Frontend{node}, false, all, 1, []query{{family: 2, proto: UDP, port: 30053}}},
		"two families":     {[]Frontend{dns6, dnsFront}, false, all, 1, []query{{family: 2, proto: UDP, port: 53, dst: dnsFront.Addr}, {family: 10, proto: UDP, port: 53, dst: dns6.Addr}}},
		"many kinds":       {[]Frontend{dns6, dnsFront, webFront}, false, all, 1, []query{{dnat: true}}},
		"many kinds, new":  {[]Frontend{dns6, dnsFront, webFront}, true, all, 1, []query{{}}},
		"large table":      {[]Frontend{dnsFront}, false, all, maxFiltered + 1, []query{{family: 2, dnat: true}}},
		"large table, new": {[]Frontend{dnsFront}, true, all, maxFiltered + 1, []query{{family: 2}}},
		"old kernel":       {[]Frontend{dnsFront}, false, Caps{}, 1, []query{{family: 2}}},
	} {
		r := round{fronts: c.fronts, concerns: []*concern{{fresh: c.fresh}}}
		if got := plan(&r, c.caps, c.entries, &Scope{}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	zone := uint16(5)
	got := plan(&round{full: &concern{}}, all, 1, &Scope{Zone: &zone, Mark: 1, MarkMask: 3})
	if want := []query{{zone: &zone, mark: 1, markMask: 3}}; !slices.Equal(got, want) {
		t.Errorf("full: %+v, want %+v", got, want)
	}
}

// TestUpdateCost: a change costs the change, whatever the number of frontends.
func TestUpdateCost(t *testing.T) {
	tab := newTable(Scope{})
	var all []Change
	for i := range 30_000 {
		all = append(all, Change{Frontend: Frontend{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53, UDP}, Endpoints: twoEPs})
	}
	tab.update(all, time.Time{})
	change := []Change{{Frontend: all[7].Frontend, Endpoints: oneEP}}
	if n := testing.AllocsPerRun(100, func() { tab.update(change, time.Time{}) }); n != 0 {
		t.Errorf("%v allocations per update", n)
	}
	f := toSecond
	if n := testing.AllocsPerRun(100, func() { tab.judge(&f) }); n != 0 {
		t.Errorf("%v allocations per judgement", n)
	}
	b := appendNew(nil, &f, 1)[20:]
	if n := testing.AllocsPerRun(100, func() { f.decode(b) }); n != 0 {
		t.Errorf("%v allocations per decoded entry", n)
	}
}

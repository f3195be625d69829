// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// maxTries is the number of passes after which a check is given up.
const maxTries = 6

var (
	dnsFront = front(ctsync.UDP, "10.96.0.10:53")
	webFront = front(ctsync.TCP, "10.96.0.11:80")
	twoEPs   = eps("10.244.0.1:53", "10.244.0.2:53")
	oneEP    = eps("10.244.0.1:53")
	toSecond = flow(ctsync.UDP, "10.1.0.1:1000", "10.96.0.10:53", "10.244.0.2:53")
)

// TestPasses: a change is looked at at once and twice more, by narrow dumps, and then no more.
func TestPasses(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.add(toSecond)
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		passes := b.finish()
		if got := b.times(passes); got != "[0s 25ms 500ms]" {
			t.Errorf("passes at %s", got)
		}
		if p := passes[0]; p.Stale[ctsync.EndpointGone] != 1 || p.Deleted() != 1 || p.Err != nil || p.Full || len(b.kernel.flows) != 0 {
			t.Errorf("first pass: %+v", p)
		}
		want := ctsync.Query{Family: nl.IPv4, Proto: ctsync.UDP, Port: 53, Dst: dnsFront.Addr}
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
		inBubble(t, ctsync.Scope{}, func(b *rig) {
			b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
			b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
			synctest.Wait() // the first pass is over
			time.Sleep(after)
			b.kernel.add(toSecond)
			b.finish()
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
		scope  ctsync.Scope
		change ctsync.Change
		want   int
	}{
		"endpoint added":                   {ctsync.Scope{}, ctsync.Change{Frontend: dnsFront, Endpoints: eps("10.244.0.0:53", "10.244.0.1:53", "10.244.0.2:53", "10.244.0.3:53")}, 0},
		"nothing changed":                  {ctsync.Scope{}, ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs}, 0},
		"endpoint of TCP removed, TCP off": {ctsync.Scope{}, ctsync.Change{Frontend: webFront, Endpoints: oneEP}, 0},
		"TCP Service deleted, TCP off":     {ctsync.Scope{}, ctsync.Change{Frontend: webFront, Removed: true}, 0},
		"TCP ClusterIP added, TCP off":     {ctsync.Scope{}, ctsync.Change{Frontend: front(ctsync.TCP, "10.96.0.99:80"), Endpoints: oneEP}, 0},
		"unknown frontend removed":         {ctsync.Scope{}, ctsync.Change{Frontend: front(ctsync.UDP, "10.96.0.99:80"), Removed: true}, 0},
		"endpoint of TCP removed":          {ctsync.Scope{TCP: true}, ctsync.Change{Frontend: webFront, Endpoints: oneEP}, 3},
		"TCP external IP added, TCP off":   {ctsync.Scope{}, ctsync.Change{Frontend: front(ctsync.TCP, "192.0.2.1:80"), Endpoints: oneEP}, 3},
		"UDP ClusterIP added":              {ctsync.Scope{}, ctsync.Change{Frontend: front(ctsync.UDP, "10.96.0.99:80"), Endpoints: oneEP}, 3},
		"endpoint exchanged":               {ctsync.Scope{}, ctsync.Change{Frontend: dnsFront, Endpoints: eps("10.244.0.1:53", "10.244.0.3:53")}, 3},
		"last endpoint gone":               {ctsync.Scope{}, ctsync.Change{Frontend: dnsFront}, 3},
		"steering ends":                    {ctsync.Scope{}, ctsync.Change{Frontend: front(ctsync.UDP, "10.96.0.12:53"), Endpoints: twoEPs}, 3},
		"removed":                          {ctsync.Scope{}, ctsync.Change{Frontend: dnsFront, Removed: true}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.scope, func(b *rig) {
				b.SetServiceCIDRs([]netip.Prefix{cluster})
				b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs}, ctsync.Change{Frontend: webFront, Endpoints: twoEPs},
					ctsync.Change{Frontend: front(ctsync.UDP, "10.96.0.12:53"), Endpoints: twoEPs, Untranslated: true})
				b.Update([]ctsync.Change{c.change})
				if got := len(b.finish()); got != c.want {
					t.Errorf("%d passes, want %d", got, c.want)
				}
			})
		})
	}
}

// TestStart: nothing is judged before the first Resync, which then judges everything.
func TestStart(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.kernel.add(toSecond, flow(ctsync.UDP, "10.1.0.1:1000", "192.0.2.1:53", ""))
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: twoEPs}})
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		b.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
		if p := b.finish(); len(p) != 0 {
			t.Errorf("%d passes before Resync", len(p))
		}
		b.start = time.Now()
		b.Resync()
		passes := b.finish()
		if !passes[0].Full || passes[0].Deleted() != 1 || len(b.kernel.flows) != 1 {
			t.Errorf("%+v, left %+v", passes[0], b.kernel.flows)
		}
		b.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
		if p := b.finish(); len(p) != 0 {
			t.Errorf("%d passes for the same addresses", len(p))
		}
		b.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.2")})
		if p := b.finish(); len(p) == 0 || !p[0].Full {
			t.Errorf("no full pass for a new address")
		}
	})
}

// TestOnePass: many changes share one pass.
func TestOnePass(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		var before, after []ctsync.Change
		for i := range 100 {
			f := ctsync.Frontend{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), Port: uint16(1000 + i), Proto: ctsync.UDP}
			before = append(before, ctsync.Change{Frontend: f, Endpoints: twoEPs})
			after = append(after, ctsync.Change{Frontend: f, Endpoints: oneEP})
		}
		b.ready(before...)
		b.kernel.took = 5 * time.Millisecond
		for _, c := range after {
			b.Update([]ctsync.Change{c})
		}
		// The first pass begins with some of the changes, and at most one more is needed for the rest.
		if passes := b.finish(); len(passes) < 3 || len(passes) > 6 {
			t.Errorf("%d passes: %s", len(passes), b.times(passes))
		}
	})
}

// TestChangeWithinPass: what changes while a pass runs gets passes of its own, since that one may have gone by. Here it
// is the last pass of the change before.
func TestChangeWithinPass(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.during = func() {
			if len(b.kernel.dumps) == len(b.state.CheckTimes) {
				time.Sleep(100 * time.Millisecond)
				b.kernel.add(toSecond)
				b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: eps("10.244.0.3:53")}})
			}
		}
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if got := b.times(b.finish()); got != "[0s 25ms 500ms 600ms 625ms 1.1s]" || len(b.kernel.flows) != 0 {
			t.Errorf("passes at %s, left %d", got, len(b.kernel.flows))
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
			inBubble(t, ctsync.Scope{}, func(b *rig) {
				b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
				b.kernel.add(toSecond)
				fault(b.kernel)
				b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
				passes := b.finish()
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
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.dumpErr = func(int) error { return syscall.EPERM }
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		passes := b.finish()
		if n := len(passes); n != maxTries || passes[n-1].GivenUp != 1 || !errors.Is(passes[0].Err, syscall.EPERM) {
			t.Errorf("%d passes, last %+v", n, passes[n-1])
		}
		b.kernel.dumpErr = nil
		b.kernel.add(toSecond)
		b.Resync()
		if p := b.finish(); p[0].Deleted() != 1 {
			t.Errorf("after Resync: %+v", p[0])
		}
	})
}

// TestInterrupted: an interrupted dump is made again within the pass, and a dump that is interrupted always is an error.
func TestInterrupted(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
		b.kernel.add(toSecond)
		b.kernel.dumpErr = failFirst(2, fmt.Errorf("dump: %w", syscall.EINTR))
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if p := b.finish(); p[0].Dumps != 3 || p[0].Deleted() != 1 || p[0].Err != nil {
			t.Errorf("%+v", p[0])
		}
		b.kernel.dumps, b.kernel.dumpErr = nil, func(int) error { return syscall.EINTR }
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: twoEPs[1:]}})
		if p := b.finish(); len(p) != maxTries || !errors.Is(p[0].Err, syscall.EINTR) {
			t.Errorf("%d passes, %+v", len(p), p[0])
		}
	})
}

// TestManyStale: more stale entries in a datagram than a batch of deletions holds.
func TestManyStale(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
		for i := range 1000 {
			b.kernel.add(flow(ctsync.UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.10:53", "10.244.0.2:53"))
			b.kernel.add(flow(ctsync.UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.10:53", "10.244.0.1:53"))
		}
		b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: oneEP}})
		if p := b.finish(); p[0].Deleted() != 1000 || len(b.kernel.flows) != 1000 {
			t.Errorf("%+v, left %d", p[0], len(b.kernel.flows))
		}
	})
}

// TestRest: under endless change the passes take at most a quarter of the time (of a bubble), whatever one takes, and
// every change is followed by a pass.
func TestRest(t *testing.T) {
	for _, took := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 1600 * time.Millisecond, 5 * time.Second} {
		inBubble(t, ctsync.Scope{}, func(b *rig) {
			b.ready(ctsync.Change{Frontend: dnsFront, Endpoints: twoEPs})
			b.kernel.took = took
			for i := 0; time.Since(b.start) < time.Minute; i++ {
				b.Update([]ctsync.Change{{Frontend: dnsFront, Endpoints: twoEPs[i%2 : i%2+1]}})
				time.Sleep(10 * time.Millisecond)
			}
			spent := time.Since(b.start)
			changed := b.start.Add(spent)
			passes := b.finish()
			var busy time.Duration
			for _, p := range passes {
				if p.Start.Before(changed) {
					busy += p.Duration
				}
			}
			if share := float64(busy-burst-took) / float64(spent); share > 0.25 {
				t.Errorf("passes of %v take %.0f%% of the time: %s", took, 100*share, b.times(passes))
			}
			if n := len(passes); n < int(spent/(4*took)/2) || passes[n-1].Start.Before(changed) {
				t.Errorf("%d passes of %v", n, took)
			}
		})
	}
}

// TestBurst: a few changes in a row are not kept waiting by the passes of those before.
func TestBurst(t *testing.T) {
	inBubble(t, ctsync.Scope{}, func(b *rig) {
		fronts := []ctsync.Change{}
		for i := range 5 {
			fronts = append(fronts, ctsync.Change{Frontend: front(ctsync.UDP, fmt.Sprintf("10.96.0.%d:53", 20+i)), Endpoints: twoEPs})
		}
		b.ready(fronts...)
		b.kernel.took = 10 * time.Millisecond
		for _, c := range fronts {
			b.Update([]ctsync.Change{{Frontend: c.Frontend, Endpoints: oneEP}})
			time.Sleep(11 * time.Millisecond)
		}
		passes := b.finish()
		if fifth := passes[4].Start.Sub(b.start); fifth > 60*time.Millisecond {
			t.Errorf("passes at %s", b.times(passes))
		}
	})
}

// TestStop: Run ends in the middle of a pass.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fake{took: time.Second}
		s := newSyncer(Options{}, k, ctsync.Caps{})
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
	})
}

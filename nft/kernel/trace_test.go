// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"golang.org/x/sys/unix"

	. "github.com/nftproxy/nftproxy/nft"
)

// anyTrace watches every first packet of a family.
func anyTrace(f Family) TraceFilter {
	return TraceFilter{Family: f, Rate: 100, Lifetime: time.Minute}
}

// do runs fn on a thread in the namespace.
func (n *namespace) do(t testing.TB, fn func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := netns.Set(n.fd)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// loopback brings lo up, with some addresses more.
func (n *namespace) loopback(t testing.TB, more ...string) {
	t.Helper()
	for _, args := range [][]string{{"link", "set", "lo", "up"}} {
		if out, err := n.run("", "ip", args...); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	for _, a := range more {
		if out, err := n.run("", "ip", "addr", "add", a, "dev", "lo"); err != nil {
			t.Fatalf("ip addr add %s: %v\n%s", a, err, out)
		}
	}
}

// traced collects events until there are enough or 10 s are over.
func traced(t *testing.T, tr *Trace, send func(), enough func([]TraceEvent) bool) (out []TraceEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sent := false
	err := tr.Run(ctx, 10*time.Millisecond, func(e *TraceEvent) {
		if out = append(out, *e); enough(out) {
			cancel()
		}
	}, func() { t.Error("messages were lost") }, func() {
		if !sent {
			sent = true
			send()
		}
	})
	if err != nil {
		t.Error(err)
	}
	if !enough(out) {
		t.Errorf("after 10 s: %+v", out)
	}
	return out
}

// kernelAtLeast tells whether the kernel is of a release or a later one.
func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a > major || a == major && b >= minor
}

// The ruleset is as it was, byte for byte, when a trace ends, and when the process that traced is gone.
func TestTraceLeavesNothing(t *testing.T) {
	n := newNamespace(t)
	n.nft(t, "table ip keep {\n chain c {\n type filter hook input priority 0\n counter\n }\n}\n", "-f", "-")
	before := n.nft(t, "", "-a", "list", "ruleset")
	// The highest flag is one that no kernel knows, as the owner is to those before 5.12.
	flags := map[string]uint32{"closed": TableOwner, "gone": TableOwner, "plain": 0, "left": 1 << 31}
	if !kernelAtLeast(t, 5, 12) {
		delete(flags, "gone") // there it is as "left"
		flags["closed"] = 0
	}
	for _, how := range slices.Sorted(maps.Keys(flags)) {
		filters := []TraceFilter{anyTrace(IPv4), anyTrace(IPv6)}
		filters[0].Targets = []TraceTarget{{Addr: netip.MustParseAddr("10.96.0.1"), Proto: TCP, Port: 443}, {Proto: UDP, Port: 30000}}
		tr, err := openTrace(int(n.fd), filters, flags[how])
		if err != nil {
			t.Fatal(err)
		}
		during := n.nft(t, "", "list", "ruleset")
		if strings.Count(during, TraceTablePrefix) != 2 || strings.Contains(during, "flags owner") != (flags[how] == TableOwner) {
			t.Errorf("%s: the ruleset is\n%s", how, during)
		}
		switch how {
		case "gone", "left": // as when it is killed: its sockets are closed and nothing else happens
			_, _ = tr.events.Close(), tr.owner.Close()
		default:
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
		k := n.open(t)
		if how == "left" {
			removed, err := k.RemoveTraces()
			if err != nil || len(removed.Tables) != 2 {
				t.Errorf("removed %v, %v", removed, err)
			}
		}
		if after := n.nft(t, "", "-a", "list", "ruleset"); after != before {
			t.Errorf("%s: the ruleset is\n%s", how, after)
		}
	}
}

// A trace that runs is not taken for a leftover, and two can run at once.
func TestTraceIsKept(t *testing.T) {
	if !kernelAtLeast(t, 5, 12) {
		t.Log("without owners of tables, a trace that runs cannot be told from a leftover (docs/kernels.md)")
		return
	}
	n := newNamespace(t)
	for range 2 {
		tr, err := OpenTrace(int(n.fd), []TraceFilter{anyTrace(IPv4)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tr.Close() }()
	}
	removed, err := n.open(t).RemoveTraces()
	if err != nil || len(removed.Tables) > 0 || strings.Count(n.nft(t, "", "list", "tables"), TraceTablePrefix) != 2 {
		t.Errorf("removed %v, %v", removed.Tables, err)
	}
}

// The kernel's messages are decoded, in both families, and tell hook by hook what happens.
func TestTraceEvents(t *testing.T) {
	n := newNamespace(t)
	n.loopback(t)
	n.nft(t, `table inet theirs {
 chain x {
  return
 }
 chain out {
  type filter hook output priority 0
  udp dport 7 jump x
  udp dport 7 reject with icmpx admin-prohibited comment "no echo"
 }
}
`, "-f", "-")
	for _, f := range Families() {
		filter := anyTrace(f)
		filter.Proto, filter.Port = UDP, 7
		tr, err := OpenTrace(int(n.fd), []TraceFilter{filter})
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 7)
		if f == IPv6 {
			to = netip.AddrPortFrom(netip.IPv6Loopback(), 7)
		}
		send := func() {
			n.do(t, func() error {
				c, err := net.Dial("udp", to.String())
				if err == nil {
					_, _ = c.Write([]byte("x"))
					err = c.Close()
				}
				return err
			})
		}
		events := traced(t, tr, send, func(all []TraceEvent) bool {
			return len(all) > 0 && all[len(all)-1].Verdict == VerdictDrop
		})
		k := n.open(t)
		var got []string
		for i, e := range events {
			if e.Type == TraceReturn {
				continue // not told by every kernel
			}
			if e.ID != events[0].ID || e.Starts() != (i == 0) {
				t.Errorf("event %d: %+v", i, e)
			}
			what := fmt.Sprint(e.Chain, " ", e.Type, " ", e.Verdict, e.Target)
			if e.Packet != nil {
				what += fmt.Sprint(" to ", e.Packet.Dst, " by ", e.Packet.OIF)
			}
			if e.Type == TraceRule {
				rules, err := k.TracedRules(e.Table, e.Chain)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range rules {
					if r.Handle == e.Handle && e.Table.Name == "theirs" {
						what += fmt.Sprint(" ", r.Rejects, r.Comment)
					}
				}
			}
			got = append(got, what)
		}
		// Linux 5.10 does not report a rule that returns.
		got = slices.DeleteFunc(got, func(what string) bool { return strings.HasPrefix(what, "x 3 -5") })
		want := fmt.Sprintf("watch 3 -1 to %[1]s by 1|output-new 1 1|out 3 -3x to %[1]s by 1 false|out 3 0 trueno echo", to)
		if strings.Join(got, "|") != want {
			t.Errorf("%s:\n%s\nwant\n%s", f, strings.Join(got, "|"), want)
		}
		if matched, traced, err := tr.Counts(); matched != 1 || traced != 1 || err != nil {
			t.Errorf("%d matched, %d traced, %v", matched, traced, err)
		}
		hooks, err := k.TracedChains(TraceTable{Family: 1, Name: "theirs"})
		if len(hooks) != 1 || hooks["out"] != (Hook{Type: "filter", Num: 3}) || err != nil {
			t.Errorf("chains %v, %v", hooks, err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Beyond the rate packets are counted only, and behind its lifetime a trace that nobody removes has no effect.
func TestTraceIsBounded(t *testing.T) {
	n := newNamespace(t)
	n.loopback(t)
	filter := anyTrace(IPv4)
	filter.Rate, filter.Lifetime, filter.All = 1, 700*time.Millisecond, true
	tr, err := openTrace(int(n.fd), []TraceFilter{filter}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tr.Close() }()
	send := func(count int) {
		n.do(t, func() error {
			c, err := net.Dial("udp", "127.0.0.1:7")
			if err != nil {
				return err
			}
			for range count {
				_, _ = c.Write([]byte("x"))
			}
			return c.Close()
		})
	}
	send(20)
	matched, traced, err := tr.Counts()
	// Some of 20 ICMP errors match as well. On a busy machine the packets take some seconds, of which each allows one more.
	if matched < 20 || traced < 2 || traced >= matched || err != nil {
		t.Errorf("%d matched, %d traced, %v", matched, traced, err)
	}
	for { // until the lifetime is over
		before, _, _ := tr.Counts()
		send(5)
		if after, _, _ := tr.Counts(); after == before {
			break
		}
	}
}

// What is no trace is not taken for one, whatever its length.
func FuzzDecodeTrace(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0, 'a', 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := DecodeTrace(b); ok && (e.Table.Name == "" || e.Chain == "") {
			t.Errorf("%+v", e)
		}
	})
}

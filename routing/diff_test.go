// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/nftproxy/nftproxy/routing"
)

// randomSet draws from a small universe, so that two sets share entries and contend for slots.
func randomSet(rng *rand.Rand) Set {
	s := Set{}
	slots := map[any]bool{}
	for range rng.IntN(14) {
		e := randomEntry(rng)
		if !slots[e.Slot()] {
			slots[e.Slot()] = true
			s[e] = struct{}{}
		}
	}
	return s
}

func randomEntry(rng *rand.Rand) Entry {
	index := 2 + rng.IntN(2)
	ip := func(host byte) netip.Addr {
		if rng.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, 0, 0, host})
		}
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: host})
	}
	switch rng.IntN(5) {
	case 0:
		a := ip(byte(1 + rng.IntN(2)))
		return Address{index, netip.PrefixFrom(a, a.BitLen()-3-rng.IntN(2))}
	case 1:
		return Neighbour{index, ip(byte(1 + rng.IntN(2))), MAC{2, 5: byte(rng.IntN(2))}}
	case 2:
		return Rule{[]Family{IPv4, IPv6}[rng.IntN(2)], uint32(30 + rng.IntN(2)), 1, 1, uint32(7 + rng.IntN(2))}
	case 3:
		return LooseRPF{index}
	}
	a := ip(0)
	r := Route{Table: uint32(7 + rng.IntN(2)), Metric: 1024, Index: index}
	r.Dst = netip.PrefixFrom(a, a.BitLen()-8*rng.IntN(3)).Masked()
	if rng.IntN(2) == 0 {
		r.Gateway = r.Dst.Addr().Next()
	}
	return r
}

// carry carries out operations the way the kernel would, and says what the kernel would not do.
func carry(have Set, ops []Op) (Set, error) {
	now := have.Clone()
	held := map[any]Entry{}
	for e := range now {
		held[e.Slot()] = e
	}
	for _, op := range ops {
		at := op.Entry.Slot()
		switch op.Verb {
		case Add:
			if held[at] != nil {
				return nil, fmt.Errorf("add %v: %v is there", op.Entry, held[at])
			}
		case Replace:
			if held[at] != op.Old || op.Old == op.Entry {
				return nil, fmt.Errorf("replace %v by %v: %v is there", op.Old, op.Entry, held[at])
			}
			delete(now, op.Old)
		case Remove:
			if held[at] != op.Entry {
				return nil, fmt.Errorf("remove %v: %v is there", op.Entry, held[at])
			}
			delete(now, op.Entry)
			delete(held, at)
			continue
		}
		now[op.Entry], held[at] = struct{}{}, op.Entry
	}
	return now, nil
}

// TestDiffLaws: what Diff says leads from have to want; nothing is said where nothing changed; the cost is the change;
// additions come first; no loosened filter is removed.
func TestDiffLaws(t *testing.T) {
	rng := seeded(t)
	for range 3000 {
		have, want := randomSet(rng), randomSet(rng)
		ops := Diff(have, want)
		now, err := carry(have, ops)
		if err != nil {
			t.Fatalf("%v\nhave %v\nwant %v", err, have, want)
		}
		expect := want.Clone()
		changed := 0
		for e := range have {
			if e.Kind() == KindSysctl {
				expect[e] = struct{}{}
			} else if !want.Has(e) {
				changed++
			}
		}
		for e := range want {
			if !have.Has(e) {
				changed++
			}
		}
		if !maps.Equal(now, expect) {
			t.Fatalf("(-want +got):\n%s", cmp.Diff(lines(expect, IndexName), lines(now, IndexName)))
		}
		if len(ops) > changed {
			t.Fatalf("%d operations for %d changes", len(ops), changed)
		}
		if again := Diff(now, want); len(again) != 0 {
			t.Fatalf("%d operations although nothing changed: %v", len(again), again)
		}
		checkOrder(t, ops)
	}
}

func checkOrder(t *testing.T, ops []Op) {
	t.Helper()
	for i := range ops[:max(len(ops)-1, 0)] {
		a, b := ops[i], ops[i+1]
		if a.Verb == Remove && b.Verb != Remove {
			t.Fatalf("%v is removed before %v is added", a.Entry, b.Entry)
		}
		if a.Verb == Remove {
			a, b = b, a
		} else if b.Verb == Remove {
			continue
		}
		if a.Entry.Kind() > b.Entry.Kind() {
			t.Fatalf("%v is added before %v", a.Entry, b.Entry)
		}
		x, ok := a.Entry.(Route)
		y, ok2 := b.Entry.(Route)
		if ok && ok2 && (x.Gateway.IsValid() && !y.Gateway.IsValid() ||
			x.Gateway.IsValid() == y.Gateway.IsValid() && x.Dst.Bits() < y.Dst.Bits()) {
			t.Fatalf("%v is added before %v", x, y)
		}
	}
}

// TestDiffOrder shows the order on one example, as it goes to the kernel.
func TestDiffOrder(t *testing.T) {
	s := worker()
	have := Plan(must(antreaConfig().Normalize()), s, nil).Want
	want := Plan(must(steeringConfig().Normalize()), s, nil).Want
	var got string
	for _, op := range Diff(have, want) {
		got += op.Verb.String() + " " + op.Entry.Text(s.Name) + "\n"
	}
	if d := cmp.Diff(trim(`
		add sysctl net.ipv4.conf.mp0.rp_filter=2
		add neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
		add neighbour fd69::4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
		add route fd69::4/128 dev eth0 metric 1
		add route 169.254.169.4/32 dev eth0 metric 1
		add route fd00:10:96::/112 via fd00:10:244:1::1 dev mp0 metric 1024 table 7
		replace route fd00:10:96::/112 via fd69::4 dev eth0 onlink src fd00:18::3 metric 1024
		add route 10.96.0.0/16 via 10.244.1.1 dev mp0 metric 1024 table 7
		replace route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024
		add rule IPv4 priority 30 fwmark 0x1745ec lookup 7
		add rule IPv6 priority 30 fwmark 0x1745ec lookup 7
		remove route 169.254.0.252/32 via 169.254.0.253 dev mp0 onlink metric 1024
		remove route fc01::aabb:ccdd:eefe/128 via fc01::aabb:ccdd:eeff dev mp0 onlink metric 1024
		remove route 169.254.0.253/32 dev mp0 src 172.18.0.3 metric 1024
		remove route fc01::aabb:ccdd:eeff/128 dev mp0 src fd00:18::3 metric 1024
		remove neighbour fc01::aabb:ccdd:eeff lladdr aa:bb:cc:dd:ee:ff dev mp0 permanent
		remove neighbour 169.254.0.253 lladdr aa:bb:cc:dd:ee:ff dev mp0 permanent
	`), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

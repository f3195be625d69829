// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// balanced returns n Services with a load balancer address and k source ranges each.
func balanced(n, k int) []*Service {
	out := cluster(n, 1)
	for i, s := range out {
		var sources []netip.Prefix
		for j := range k {
			x := i*k + j
			sources = append(sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + x>>16), byte(x >> 8), byte(x), 0}), 24+j%3))
		}
		a := s.Frontends[0].Addr.As4()
		s.Frontends = append(s.Frontends, Frontend{Kind: External, Port: 80, Restricted: true, Sources: sources,
			Addr: netip.AddrFrom4([4]byte{203, a[1], a[2], a[3]})})
	}
	return out
}

// narrowed returns a copy of s with another source range in the place of one.
func narrowed(s *Service, salt int) *Service {
	c := *s
	c.Frontends = append([]Frontend(nil), s.Frontends...)
	f := &c.Frontends[1]
	f.Sources = append([]netip.Prefix(nil), f.Sources...)
	f.Sources[0] = netip.PrefixFrom(netip.AddrFrom4([4]byte{19, byte(salt >> 8), byte(salt), 0}), 24)
	return &c
}

// A change of source ranges sends the change, and removal is split: no transaction exceeds ChunkSize.
func TestSourceRangesCostTheChange(t *testing.T) {
	k := newNamespace(t).open(t)
	services := balanced(100, 50)
	table, _ := program(t, k, IPv4, Config{}, services, nil)
	batches, change := table.Plan([]Update{{services[7], narrowed(services[7], 1)}}, nil)
	if change.Len() != 2 || len(batches) != 1 || len(batches[0].Ops) != 2 {
		t.Errorf("%d elements in %d transactions, want 2 in one", change.Len(), len(batches))
	}
	var all []Update
	table.Discard()
	for _, s := range services {
		all = append(all, Update{Prev: s})
	}
	batches, _ = table.Plan(all, nil)
	for _, b := range batches {
		if b.Elements() > ChunkSize {
			t.Errorf("%d elements in one transaction", b.Elements())
		}
	}
	if err := k.CommitAll(batches, nil); err != nil {
		t.Fatal(err)
	}
	if c := read(t, k, IPv4); len(c.Elements) > 0 {
		t.Errorf("%d elements are left", len(c.Elements))
	}
}

// A new prefix length adds its set and one rule; the chain is the same however many ranges there are.
func TestSourceLengthsAreMadeOnDemand(t *testing.T) {
	k := newNamespace(t).open(t)
	services := balanced(3, 1)
	table, _ := program(t, k, IPv4, Config{}, services, nil)
	for i, bits := range []int{24, 9, 32, 9} {
		next := narrowed(services[0], i)
		next.Frontends[1].Sources[0] = netip.PrefixFrom(next.Frontends[1].Sources[0].Addr(), bits).Masked()
		batches, _ := table.Plan([]Update{{services[0], next}}, nil)
		if err := k.CommitAll(batches, nil); err != nil {
			t.Fatal(err)
		}
		table.Committed()
		services[0] = next
		s := snapshot(t, k, IPv4)
		if d := s.Differences(Config{}, services); len(d) > 0 {
			t.Errorf("/%d: %v", bits, d)
		}
		if d := DiffElements(s.Elements, WantedElements(services, nil)); d.Len() > 0 {
			t.Errorf("/%d: %+v", bits, d)
		}
		if b := NewTable(s.Content).Reconcile(s.Content, Config{}, services, nil); len(b) > 0 {
			t.Errorf("/%d: the next comparison is not silent", bits)
		}
	}
}

// One source range replaced beside n others.
func BenchmarkReplaceRange(b *testing.B) {
	for _, n := range []int{100, 10000, 102000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newNamespace(b).open(b)
			services := balanced(n/50, 50)
			table, _ := program(b, k, IPv4, Config{}, services, nil)
			b.ResetTimer()
			prev := services[1]
			for i := 0; b.Loop(); i++ {
				next := narrowed(prev, i)
				batches, _ := table.Plan([]Update{{prev, next}}, nil)
				if err := k.CommitAll(batches, nil); err != nil {
					b.Fatal(err)
				}
				table.Committed()
				prev = next
			}
		})
	}
}

// All n source ranges removed: the time for each, and the longest transaction.
func BenchmarkRemoveRanges(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var longest time.Duration
			for b.Loop() {
				b.StopTimer()
				k := newNamespace(b).open(b)
				services := balanced(n/50, 50)
				table, _ := program(b, k, IPv4, Config{}, services, nil)
				var all []Update
				for _, s := range services {
					all = append(all, Update{Prev: s})
				}
				b.StartTimer()
				batches, _ := table.Plan(all, nil)
				if err := k.CommitAll(batches, func(c kernel.Committed) { longest = max(longest, c.Took) }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/range")
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
		})
	}
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/nftproxy/nftproxy/nft"
)

// cluster returns n Services of one ClusterIP with k endpoints each.
func cluster(n, k int) []*Service {
	out := make([]*Service, n)
	for i := range out {
		s := &Service{
			Name: fmt.Sprintf("ns-%d/service-%d:http", i%100, i), Proto: TCP, Served: true,
			Frontends: []Frontend{{Kind: ClusterIP, Addr: netip.AddrFrom4([4]byte{10, byte(100 + i>>16), byte(i >> 8), byte(i)}), Port: 80}},
		}
		for e := range k {
			x := i*k + e
			s.Cluster = append(s.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(x >> 16), byte(x >> 8), byte(x)}), 8080))
		}
		out[i] = s
	}
	return out
}

// replaced returns a copy of s with its endpoint in slot i replaced.
func replaced(s *Service, i, salt int) *Service {
	c := *s
	c.Cluster = append([]netip.AddrPort(nil), s.Cluster...)
	c.Cluster[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{12, byte(salt >> 16), byte(salt >> 8), byte(salt)}), 8080)
	return &c
}

// From two versions of a Service to the message that changes one into the other, at any number of Services beside it.
func BenchmarkDiffAndEncode(b *testing.B) {
	for _, endpoints := range []int{3, 50, 1000} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			prev := cluster(1, endpoints)[0]
			next := replaced(prev, 1, 1)
			b.ReportAllocs()
			for b.Loop() {
				batch := &Batch{}
				batch.Change(IPv4, Diff(prev, next))
				encode(batch)
			}
		})
	}
}

// All transactions of a first start, encoded but not sent.
func BenchmarkEncodeAll(b *testing.B) {
	for _, n := range []int{1000, 10000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			services := cluster(n, 3)
			b.ReportAllocs()
			for b.Loop() {
				c := &Content{Family: IPv4}
				for _, batch := range NewTable(c).Reconcile(c, Config{}, services, nil) {
					encode(batch)
				}
			}
		})
	}
}

// What a Service of three endpoints and one endpoint replaced put on the wire.
func BenchmarkBytes(b *testing.B) {
	services := cluster(1, 3)
	next := replaced(services[0], 1, 1)
	for name, c := range map[string]Change{"add": Diff(nil, services[0]), "replace": Diff(services[0], next)} {
		b.Run(name, func(b *testing.B) {
			var t *transaction
			for b.Loop() {
				batch := &Batch{}
				batch.Change(IPv4, c)
				t = encode(batch)
			}
			b.ReportMetric(float64(t.elements), "elements")
			b.ReportMetric(float64(t.size), "netlink-B")
		})
	}
}

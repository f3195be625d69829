// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

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

func BenchmarkColdLoad(b *testing.B) {
	for _, n := range []int{1000, 10000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			services := cluster(n, 3)
			for b.Loop() {
				b.StopTimer()
				ns := newNamespace(b)
				k := ns.open(b)
				b.StartTimer()
				program(b, k, IPv4, Config{}, services, nil)
			}
		})
	}
}

func BenchmarkWarmRead(b *testing.B) {
	ns := newNamespace(b)
	k := ns.open(b)
	services := cluster(10000, 3)
	program(b, k, IPv4, Config{}, services, nil)
	b.ResetTimer()
	for b.Loop() {
		if _, n := program(b, k, IPv4, Config{}, services, nil); n != 0 {
			b.Fatal("not silent")
		}
	}
}

// One endpoint replaced, from the two versions of the Service to the kernel's answer.
func BenchmarkReplaceEndpoint(b *testing.B) {
	for _, n := range []int{10, 1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := newNamespace(b)
			k := ns.open(b)
			services := cluster(n, 3)
			program(b, k, IPv4, Config{}, services, nil)
			b.ReportAllocs()
			b.ResetTimer()
			prev := services[n/2]
			for i := 0; b.Loop(); i++ {
				next := replaced(prev, i%3, i)
				batch := &Batch{}
				batch.Change(IPv4, Diff(prev, next))
				if err := k.Commit(batch); err != nil {
					b.Fatal(err)
				}
				prev = next
			}
		})
	}
}

func BenchmarkAddService(b *testing.B) {
	for _, n := range []int{10, 1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := newNamespace(b)
			k := ns.open(b)
			services := cluster(n+1, 3)
			program(b, k, IPv4, Config{}, services[:n], nil)
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				prev, next := (*Service)(nil), services[n]
				if i%2 == 1 {
					prev, next = next, prev
				}
				batch := &Batch{}
				batch.Change(IPv4, Diff(prev, next))
				if err := k.Commit(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

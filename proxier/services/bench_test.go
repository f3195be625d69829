// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// bulk is a Service with many ports or endpoints, in slices of perSlice endpoints, whose addresses are in no order.
func bulk(ports, endpoints, perSlice int) Input {
	s := &kube.Service{
		Name:       kube.Name{Namespace: "default", Name: "bulk"},
		ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")},
	}
	var sps []kube.SlicePort
	for i := range ports {
		name := kube.Intern(fmt.Sprintf("p%d", i))
		s.Ports = append(s.Ports, kube.ServicePort{Name: name, Proto: kube.TCP, Port: uint16(1 + i)})
		sps = append(sps, kube.SlicePort{Name: name, Proto: kube.TCP, Port: uint16(8000 + i)})
	}
	in := Input{Service: s, Node: Node{Name: "node-1", Zone: "a"}}
	order := rand.New(rand.NewPCG(1, 1)).Perm(endpoints)
	for i, n := range order {
		if i%perSlice == 0 {
			in.Slices = append(in.Slices, &kube.EndpointSlice{Service: s.Name, Ports: sps})
		}
		last := in.Slices[len(in.Slices)-1]
		last.Endpoints = append(last.Endpoints, kube.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
			Node: kube.Intern(fmt.Sprintf("node-%d", n%100)), Ready: true, Serving: true,
			Hints: kube.NewHints([]string{string(rune('a' + n%3))}, nil),
		})
	}
	return in
}

func BenchmarkBuild(b *testing.B) {
	for _, size := range []struct{ ports, endpoints int }{{1, 3}, {1, 50}, {3, 50}, {1, 1_000}, {1, 100_000}, {1_000, 50}} {
		in := bulk(size.ports, size.endpoints, 100)
		b.Run(fmt.Sprintf("ports=%d/endpoints=%d", size.ports, size.endpoints), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Build(in)
			}
		})
	}
}

// BenchmarkIndex changes the claims of one Service among many: its cost must not follow their number.
func BenchmarkIndex(b *testing.B) {
	for _, n := range []int{1_000, 30_000} {
		x := NewIndex()
		for i := range n {
			x.Set(numbered(i, 0))
		}
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.Set(numbered(n/2, i&1))
			}
		})
	}
}

// numbered are the arguments of Index.Set for one of many Services with a ClusterIP, a NodePort and an external IP.
func numbered(i, variant int) (kube.Name, int64, []Claim) {
	s := &kube.Service{
		Name:        kube.Name{Namespace: "default", Name: fmt.Sprintf("service-%d", i)},
		Created:     int64(1 + i),
		ClusterIPs:  [2]netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
		Ports:       []kube.ServicePort{{Proto: kube.TCP, Port: uint16(80 + variant), NodePort: uint16(30000 + i)}},
		ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})},
	}
	return s.Name, s.Created, Claims(s)
}

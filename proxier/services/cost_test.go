// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// TestAllocations: what Build allocates is its output, and for large Services two lists to sort.
func TestAllocations(t *testing.T) {
	for _, tt := range []struct {
		ports, endpoints int
		want             float64
	}{
		{1, 0, 4},        // the ports, their frontends, the Service's name, the port's name
		{1, 3, 5},        // and a list of endpoints
		{1, 30, 5},       //
		{1, 1000, 8},     // endpoints by zone are another list; plus the endpoints and slices while they are chosen
		{1, 100_000, 30}, // plus the growth of the list of slices
		{10, 3, 4 + 3*10},
		{1000, 3, 20 + 3*1000},
	} {
		t.Run(fmt.Sprintf("%dx%d", tt.ports, tt.endpoints), func(t *testing.T) {
			in := bulk(tt.ports, tt.endpoints, 100)
			if got := allocations(3, func() { Build(in) }); got > tt.want {
				t.Errorf("%v allocations, want at most %v", got, tt.want)
			}
		})
	}
}

// allocations returns the least number of allocations in a few measurements: each counts those of the whole process,
// the runtime's own among them.
func allocations(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// TestNamesAreShared: the second family costs no strings of its own.
func TestNamesAreShared(t *testing.T) {
	in := bulk(10, 0, 1)
	one := allocations(10, func() { Build(in) })
	in.Service.ClusterIPs[1] = address(nft.IPv6, 96, 1)
	if two := allocations(10, func() { Build(in) }); two > one+1 { // its frontends
		t.Errorf("%v allocations in two families, %v in one", two, one)
	}
}

// TestListsAreShared: where lists of endpoints are equal, they are one.
func TestListsAreShared(t *testing.T) {
	s := service(t, nft.IPv4, bothLocal)
	p := only(t, Build(Input{Service: s, Node: here, Slices: slicesOf(t, "1 here", "2 here")}))
	for name, list := range map[string]int{"cluster": len(p.Cluster), "local": len(p.Local), "hairpin": len(p.Hairpin)} {
		if list != 2 {
			t.Fatalf("%s has %d endpoints, want 2", name, list)
		}
	}
	if &p.Cluster[0] != &p.Serving[0] || &p.Hairpin[0] != &p.Serving[0] || &p.Local[0] != &p.Serving[0] {
		t.Error("a copy was made")
	}
}

// TestThousandsOfPorts: as many as a Service can have.
func TestThousandsOfPorts(t *testing.T) {
	const n = 5000
	out := Build(bulk(n, 2, 1))
	if len(out.Ports) != n {
		t.Fatalf("%d ports, want %d", len(out.Ports), n)
	}
	for i := range out.Ports {
		p := &out.Ports[i]
		if len(p.Frontends) != 1 || p.Frontends[0].Port != uint16(1+i) || len(p.Serving) != 2 || p.Serving[0].Port() != uint16(8000+i) {
			t.Fatalf("port %d: %s to %v", i, frontends(p), p.Serving)
		}
	}
}

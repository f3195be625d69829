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

// The estimate is never less than what a Service becomes.
func TestEstimateIsABound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		in := randomInput(r)
		e := EstimateOf(in.Service, in.Slices)
		out, n := Build(in), 0
		for i := range out.Ports {
			n += len(out.Ports[i].Frontends)
		}
		if claims := len(Claims(in.Service)); n > e.Frontends || claims > e.Frontends {
			t.Fatalf("%d frontends, %d claims, at most %d estimated: %+v", n, claims, e.Frontends, in.Service)
		}
		if size := out.Size(); size < len(out.Ports) || size > e.Elements {
			t.Fatalf("size %d of %d ports, at most %d estimated: %+v", size, len(out.Ports), e.Elements, in.Service)
		}
	}
}

// A Service of 20,000 ports and ten slices of 1,000 endpoints, which the API server accepts, is estimated from counts: what
// it would become does not fit into memory.
func TestEstimateOfAHugeService(t *testing.T) {
	s := &kube.Service{ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	slice := &kube.EndpointSlice{Endpoints: make([]kube.Endpoint, 1000)}
	for i := range 20_000 {
		name := kube.Intern(fmt.Sprint("p", i))
		s.Ports = append(s.Ports, kube.ServicePort{Name: name, Proto: kube.TCP, Port: uint16(i + 1)})
		slice.Ports = append(slice.Ports, kube.SlicePort{Name: name, Proto: kube.TCP, Port: uint16(i + 1)})
	}
	var all []*kube.EndpointSlice
	for range 10 {
		all = append(all, slice)
	}
	var e Estimate
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e = EstimateOf(s, all)
		}
	}).AllocedBytesPerOp()
	if e.Elements < 20_000*10_000 || e.Addresses != 1 || e.Frontends != 20_000 {
		t.Errorf("%+v", e)
	}
	if allocated > 8<<20 { // an index of the ports and a count for each
		t.Errorf("%d bytes allocated", allocated)
	}
}

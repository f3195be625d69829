// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// rounds is how many random Services a law is held against; each takes some 50 us.
const rounds = 2000

// forRandom runs a law on random Services. The seed of a failure is printed.
func forRandom(t *testing.T, law func(t *testing.T, rng *rand.Rand, in Input)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		law(t, rng, randomInput(rng))
		if t.Failed() {
			return
		}
	}
}

// randomInput makes a small Service in which everything that can coincide does so often.
func randomInput(rng *rand.Rand) Input {
	s := &kube.Service{
		Name: named("web"), Created: 1,
		InternalLocal: rng.IntN(2) == 0, ExternalLocal: rng.IntN(2) == 0,
	}
	for i, f := range nft.Families() {
		if rng.IntN(4) > 0 {
			s.ClusterIPs[i] = address(f, 96, 1)
		}
	}
	for i := range rng.IntN(4) {
		p := kube.ServicePort{Name: kube.Intern(fmt.Sprint("p", i)), Proto: kube.TCP, Port: uint16(80 + i)}
		if rng.IntN(2) == 0 {
			p.NodePort = uint16(30080 + i)
		}
		s.Ports = append(s.Ports, p)
	}
	for _, f := range nft.Families() {
		if s.ClusterIP(f == nft.IPv6).IsValid() {
			randomAddresses(rng, f, s)
		}
	}
	if rng.IntN(2) == 0 {
		s.HealthCheckNodePort = 31000
	}
	in := Input{Service: s, Node: here}
	if rng.IntN(8) == 0 {
		in.Node = Node{}
	}
	for range rng.IntN(5) {
		in.Slices = append(in.Slices, randomSlice(rng))
	}
	if rng.IntN(4) == 0 {
		odd := rng.IntN(2) == 0
		in.Lost = func(c Claim) bool { return (c.Port%2 == 1) == odd }
	}
	return in
}

func randomAddresses(rng *rand.Rand, f nft.Family, s *kube.Service) {
	for range rng.IntN(2) {
		s.ExternalIPs = append(s.ExternalIPs, address(f, 2+rng.IntN(2), 1))
	}
	for range rng.IntN(2) {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, address(f, 3, 1))
	}
	for range rng.IntN(3) {
		a := []netip.Addr{address(f, 1, rng.IntN(4)), in0(f)}[rng.IntN(2)]
		p := netip.PrefixFrom(a, []int{0, 8, a.BitLen() - 2, a.BitLen()}[rng.IntN(4)]).Masked()
		s.SourceRanges = append(s.SourceRanges, p)
	}
}

// in0 is the address of the node of the tests.
func in0(f nft.Family) netip.Addr {
	if f == nft.IPv4 {
		return here.Addrs[0]
	}
	return here.Addrs[1]
}

func randomSlice(rng *rand.Rand) *kube.EndpointSlice {
	f := nft.Families()[rng.IntN(2)]
	s := &kube.EndpointSlice{IPv6: f == nft.IPv6}
	for range rng.IntN(4) {
		proto := kube.TCP
		if rng.IntN(8) == 0 {
			proto = kube.UDP
		}
		s.Ports = append(s.Ports, kube.SlicePort{Name: kube.Intern(fmt.Sprint("p", rng.IntN(3))), Proto: proto, Port: uint16(8080 + rng.IntN(2))})
	}
	hinted := rng.IntN(2) == 0 // all or nothing more often than chance would have it
	for range rng.IntN(6) {
		s.Endpoints = append(s.Endpoints, randomEndpoint(rng, f, hinted))
	}
	return s
}

func randomEndpoint(rng *rand.Rand, f nft.Family, hinted bool) kube.Endpoint {
	bit := func() bool { return rng.IntN(2) == 0 }
	names := func(all ...string) []string {
		return slices.DeleteFunc(all, func(string) bool { return !bit() })
	}
	e := kube.Endpoint{
		Addr: address(f, 1, rng.IntN(6)), Node: kube.Intern([]string{"", "here", "there"}[rng.IntN(3)]),
		Ready: bit(), Serving: bit(), Terminating: bit(),
	}
	if hinted {
		e.Hints = kube.NewHints(append(names("a"), "b"), append(names("here"), "there"))
	} else if bit() {
		e.Hints = kube.NewHints(names("a", "b"), names("here", "there"))
	}
	return e
}

// equal compares outputs as values.
func equal(a, b Output) string {
	if reflect.DeepEqual(a, b) {
		return "" // in a tenth of the time
	}
	return cmp.Diff(a, b, cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y }),
		cmp.Comparer(func(x, y netip.Addr) bool { return x == y }))
}

func TestOrderDoesNotMatter(t *testing.T) {
	forRandom(t, func(t *testing.T, rng *rand.Rand, in Input) {
		shuffled := in
		shuffled.Slices = nil
		for _, i := range rng.Perm(len(in.Slices)) {
			s := *in.Slices[i]
			s.Ports, s.Endpoints = slices.Clone(s.Ports), slices.Clone(s.Endpoints)
			rng.Shuffle(len(s.Ports), func(i, j int) { s.Ports[i], s.Ports[j] = s.Ports[j], s.Ports[i] })
			rng.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
			shuffled.Slices = append(shuffled.Slices, &s)
		}
		if d := equal(Build(in), Build(shuffled)); d != "" {
			t.Errorf("(-given +shuffled)\n%s", d)
		}
	})
}

// TestSplitDoesNotMatter: it is all the same whether endpoints are in one slice or in many.
func TestSplitDoesNotMatter(t *testing.T) {
	forRandom(t, func(t *testing.T, rng *rand.Rand, in Input) {
		split := in
		split.Slices = nil
		for _, s := range in.Slices {
			first, second := *s, *s
			n := rng.IntN(len(s.Endpoints) + 1)
			first.Endpoints, second.Endpoints = s.Endpoints[:n], s.Endpoints[n:]
			split.Slices = append(split.Slices, &first, &second)
		}
		if d := equal(Build(in), Build(split)); d != "" {
			t.Errorf("(-given +split)\n%s", d)
		}
	})
}

// TestMorePortsDoNotMatter: what a port gets does not depend on how many others the Service has.
func TestMorePortsDoNotMatter(t *testing.T) {
	forRandom(t, func(t *testing.T, rng *rand.Rand, in Input) {
		if rng.IntN(10) > 0 { // these take ten times as long
			return
		}
		more := in
		s := *in.Service
		s.Ports = slices.Clone(s.Ports)
		for i := range 2 * fewPorts {
			s.Ports = append(s.Ports, kube.ServicePort{Name: kube.Intern(fmt.Sprint("more", i)), Proto: kube.TCP, Port: uint16(1000 + 2*i)})
		}
		more.Service = &s
		got := Build(more)
		got.Ports = slices.DeleteFunc(got.Ports, func(p Port) bool { return strings.HasPrefix(p.Name, "ns/web:more") })
		if d := equal(Build(in), got); d != "" {
			t.Errorf("(-few +many)\n%s", d)
		}
	})
}

// TestRemovalIsLocal: as long as there is another endpoint like it, removing one takes out that one and nothing else.
func TestRemovalIsLocal(t *testing.T) {
	forRandom(t, func(t *testing.T, rng *rand.Rand, in Input) {
		if len(in.Slices) == 0 {
			return
		}
		s := *in.Slices[0]
		extra := []kube.Endpoint{{Ready: true, Serving: true, Hints: kube.NewHints([]string{"a"}, []string{"here"})}}
		if rng.IntN(2) == 0 {
			extra[0].Node = kube.Intern("here")
		}
		extra = append(extra, extra[0])
		for i := range extra {
			extra[i].Addr = address(familyOf(&s), 1, 100+i)
		}
		s.Endpoints = append(slices.Clone(s.Endpoints), extra...)
		with := in
		with.Slices = append([]*kube.EndpointSlice{&s}, in.Slices[1:]...)
		before := Build(with)

		less := s
		less.Endpoints = s.Endpoints[:len(s.Endpoints)-1]
		with.Slices = append([]*kube.EndpointSlice{&less}, in.Slices[1:]...)
		after := Build(with)

		gone := extra[1].Addr
		for i := range before.Ports {
			p := &before.Ports[i]
			for _, list := range []*[]netip.AddrPort{&p.Cluster, &p.Local, &p.Hairpin, &p.Serving} {
				*list = slices.DeleteFunc(slices.Clone(*list), func(e netip.AddrPort) bool { return e.Addr() == gone })
				if len(*list) == 0 {
					*list = nil
				}
			}
		}
		before.LocalReady = after.LocalReady // counts the one that is gone
		if d := equal(before, after); d != "" {
			t.Errorf("(-before +after)\n%s", d)
		}
	})
}

func familyOf(s *kube.EndpointSlice) nft.Family {
	if s.IPv6 {
		return nft.IPv6
	}
	return nft.IPv4
}

// TestBuildLeavesItsInputAlone: sources share their objects with others.
func TestBuildLeavesItsInputAlone(t *testing.T) {
	forRandom(t, func(t *testing.T, _ *rand.Rand, in Input) {
		text := fmt.Sprintf("%+v %+v", *in.Service, in.Slices)
		for _, s := range in.Slices {
			text += fmt.Sprintf("%+v", *s)
		}
		Build(in)
		after := fmt.Sprintf("%+v %+v", *in.Service, in.Slices)
		for _, s := range in.Slices {
			after += fmt.Sprintf("%+v", *s)
		}
		if text != after {
			t.Errorf("before %s\nafter  %s", text, after)
		}
	})
}

// TestInvariants holds on random Services what FuzzBuild holds on fuzzed ones.
func TestInvariants(t *testing.T) {
	forRandom(t, func(t *testing.T, _ *rand.Rand, in Input) { checkInvariants(t, in, Build(in)) })
}

// checkInvariants holds what is true of every output.
func checkInvariants(t *testing.T, in Input, out Output) {
	t.Helper()
	for i := range out.Ports {
		p := &out.Ports[i]
		for name, list := range map[string][]netip.AddrPort{"cluster": p.Cluster, "local": p.Local, "hairpin": p.Hairpin, "serving": p.Serving} {
			if !slices.IsSortedFunc(list, netip.AddrPort.Compare) || len(slices.Compact(slices.Clone(list))) != len(list) {
				t.Errorf("%s %s is not sorted, or not unique: %v", p.Name, name, list)
			}
			for _, e := range list {
				if _, ok := slices.BinarySearchFunc(p.Serving, e, netip.AddrPort.Compare); !ok {
					t.Errorf("%s %s has %s, which does not serve", p.Name, name, e)
				}
				if nft.FamilyOf(e.Addr()) != p.Family || e.Port() == 0 {
					t.Errorf("%s %s has %s", p.Name, name, e)
				}
			}
		}
		if !p.Served && len(p.Cluster)+len(p.Local)+len(p.Hairpin) > 0 {
			t.Errorf("%s has endpoints, and has none", p.Name)
		}
		for _, e := range p.Local {
			if !slices.Contains(p.Hairpin, e) {
				t.Errorf("%s: %s is local, but no hairpin", p.Name, e)
			}
		}
		checkFrontends(t, in, p)
	}
}

func checkFrontends(t *testing.T, in Input, p *Port) {
	t.Helper()
	seen := map[Claim]bool{}
	for _, f := range p.Frontends {
		c := Claim{Family: p.Family, Addr: f.Addr, Proto: p.Proto, Port: f.Port}
		if seen[c] || in.Lost != nil && in.Lost(c) {
			t.Errorf("%s: frontend %s is another's or there twice", p.Name, c)
		}
		seen[c] = true
		if f.Addr.IsValid() != (f.Kind != nft.NodePort) || f.Addr.IsValid() && nft.FamilyOf(f.Addr) != p.Family {
			t.Errorf("%s: frontend %+v", p.Name, f)
		}
		// Who can be reached by nobody must be so for a reason: an empty view is never one that others fill.
		if !f.Local && p.Served && len(p.Cluster) == 0 {
			t.Errorf("%s: %s has no endpoint, but the Service has", p.Name, c)
		}
		for i := 1; i < len(f.Sources); i++ {
			if f.Sources[i-1].Overlaps(f.Sources[i]) || f.Sources[i].Masked() != f.Sources[i] {
				t.Errorf("%s: sources overlap: %v", p.Name, f.Sources)
			}
		}
		if !f.Restricted && f.Sources != nil {
			t.Errorf("%s: %s is not restricted, but has sources", p.Name, c)
		}
	}
}

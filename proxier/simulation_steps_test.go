// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// simServices is how many Services a run has at most: few, so that they collide.
const simServices = 5

// step does what a step is about. All that it draws comes from r.
func (s *simulation) step(kind stepKind, r *rand.Rand) {
	sink := s.proxy.Sink()
	i := r.IntN(simServices)
	switch kind {
	case stepService:
		svc := randomService(r, i)
		s.services[i] = svc
		sink.Set(svc)
		if r.IntN(2) == 0 {
			s.setSlices(r, i)
		}
	case stepSlice:
		s.setSlices(r, i)
	case stepGone:
		if svc := s.services[i]; svc != nil && r.IntN(2) == 0 {
			delete(s.services, i)
			sink.Delete(svc.Ref())
			return
		}
		for f := range 2 {
			if slice := s.slices[[2]int{i, f}]; slice != nil {
				delete(s.slices, [2]int{i, f})
				sink.Delete(slice.Ref())
			}
		}
	case stepRepeat:
		// As after a relist: everything once more, in any order.
		for _, i := range slices.Sorted(maps.Keys(s.services)) {
			sink.Set(s.services[i])
		}
		for key, slice := range s.slices {
			if key[0]%2 == i%2 {
				sink.Set(slice)
			}
		}
	case stepNode:
		if s.node != nil && r.IntN(2) == 0 {
			sink.Delete(s.node.Ref())
			s.node = nil
			return
		}
		s.setNode(byte(2 + r.IntN(2)))
	case stepCIDR:
		n := r.IntN(2)
		if c := s.cidrs[n]; c != nil && r.IntN(2) == 0 {
			delete(s.cidrs, n)
			sink.Delete(c.Ref())
			return
		}
		all := []string{"10.96.0.0/16", "fd00:10:96::/112", "0.0.0.0/0", "10.97.0.0/24", "172.18.0.0/16"}
		c := &kube.ServiceCIDR{Name: kube.Name{Name: fmt.Sprint("cidr-", n)}, Prefixes: []netip.Prefix{netip.MustParsePrefix(all[r.IntN(len(all))])}}
		s.cidrs[n] = c
		sink.Set(c)
	case stepEdit:
		s.edit(r)
	case stepFlush:
		s.total.edits++
		s.disturbed, s.stale = true, [2]bool{true, true}
		s.kernel.Flush()
		s.other()
		if r.IntN(2) == 0 {
			s.drift()
			return
		}
		// A change is committed before the notification arrives.
		s.setSlices(r, i)
		s.proxy.round(context.Background())
		s.drift()
	case stepRestart:
		s.total.restarts++
		s.proxy = New(s.options()) // what changes now, no proxy sees happen
		switch r.IntN(3) {
		case 0:
			delete(s.services, i)
		case 1:
			s.setSlices(r, i)
		}
		s.start()
	case stepTime:
		time.Sleep([]time.Duration{time.Millisecond, time.Second, time.Minute, 2 * time.Hour}[r.IntN(4)])
	}
}

// setNode delivers the Node object with the last byte of its IPv4 address.
func (s *simulation) setNode(last byte) {
	s.node = &kube.Node{Name: kube.Name{Name: "node-1"}, UID: "node", Addrs: []netip.Addr{
		netip.AddrFrom4([4]byte{172, 18, 0, last}), netip.MustParseAddr("fd00:18::2")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}}
	s.proxy.Sink().Set(s.node)
}

// drift is what the watch of the tables does when another program has changed ours.
func (s *simulation) drift() {
	s.proxy.drift.Store(true)
	kick(s.proxy.kicked)
}

func (s *simulation) setSlices(r *rand.Rand, i int) {
	for f := range 2 {
		slice := randomSlice(r, i, f == 1)
		s.slices[[2]int{i, f}] = slice
		s.proxy.Sink().Set(slice)
	}
}

// randomService is the i-th Service in some form: its addresses and NodePorts collide with those of others at times.
func randomService(r *rand.Rand, i int) *kube.Service {
	near := func() int { return 1 + (i+max(r.IntN(5)-3, 0))%simServices }
	v4 := func(a, b, c byte, last int) netip.Addr { return netip.AddrFrom4([4]byte{a, b, c, byte(last)}) }
	svc := &kube.Service{
		Name: kube.Name{Namespace: []string{"default", "other"}[i%2], Name: fmt.Sprintf("svc-%d", i)}, UID: fmt.Sprint("uid-", i), Created: int64(r.IntN(10)),
		ClusterIPs: [2]netip.Addr{v4(10, 96, 0, near()), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", near()))},
		Type:       kube.ServiceType(r.IntN(3)),
	}
	if r.IntN(6) == 0 {
		svc.ClusterIPs[1] = netip.Addr{}
	}
	for p := range 1 + r.IntN(2) {
		port := kube.ServicePort{Name: kube.Intern([]string{"http", "dns"}[p]), Proto: []kube.Proto{kube.TCP, kube.UDP}[p], Port: uint16(80 + p)}
		if svc.Type != kube.ClusterIP {
			port.NodePort = uint16(30000 + 2*near() + p)
		}
		svc.Ports = append(svc.Ports, port)
	}
	if r.IntN(3) == 0 {
		// Of nobody, of another Service, of the node.
		svc.ExternalIPs = []netip.Addr{[]netip.Addr{v4(198, 51, 100, near()), v4(10, 96, 0, near()), v4(172, 18, 0, 2)}[r.IntN(3)]}
	}
	if svc.Type == kube.LoadBalancer {
		svc.LoadBalancerIPs = []netip.Addr{v4(203, 0, 113, near())}
		if r.IntN(2) == 0 {
			for range 1 + r.IntN(3) {
				svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(v4(192, 0, byte(r.IntN(4)), 0), 22+r.IntN(4)).Masked())
			}
			slices.SortFunc(svc.SourceRanges, netip.Prefix.Compare)
			svc.SourceRanges = slices.Compact(svc.SourceRanges)
		}
	}
	svc.ExternalLocal = svc.Type != kube.ClusterIP && r.IntN(3) == 0
	svc.InternalLocal = r.IntN(5) == 0
	if r.IntN(4) == 0 {
		svc.Affinity = time.Duration(1+r.IntN(2)) * time.Hour
	}
	return svc
}

// randomSlice has up to six endpoints of eight, some on this node, some terminating.
func randomSlice(r *rand.Rand, i int, v6 bool) *kube.EndpointSlice {
	name := kube.Name{Namespace: []string{"default", "other"}[i%2], Name: fmt.Sprintf("svc-%d", i)}
	slice := &kube.EndpointSlice{Name: kube.Name{Namespace: name.Namespace, Name: fmt.Sprintf("%s-%t", name.Name, v6)}, Service: name, IPv6: v6,
		Ports: []kube.SlicePort{{Name: kube.Intern("http"), Proto: kube.TCP, Port: 8080}, {Name: kube.Intern("dns"), Proto: kube.UDP, Port: 8053}}}
	for _, e := range r.Perm(8)[:r.IntN(7)] {
		a := netip.AddrFrom4([4]byte{10, 244, byte(1 + e%2), byte(10 + e)})
		if v6 {
			a = netip.MustParseAddr(fmt.Sprintf("fd00:244:%x::%x", 1+e%2, 10+e))
		}
		ready := r.IntN(6) > 0
		slice.Endpoints = append(slice.Endpoints, kube.Endpoint{Addr: a, Node: kube.Intern(fmt.Sprint("node-", 1+e%2)), Ready: ready, Serving: ready || r.IntN(2) == 0, Terminating: !ready})
	}
	return slice
}

// edit is what a person does to one of our tables: some of it makes sense, none of it is announced to the proxy but by the
// notification of the kernel.
func (s *simulation) edit(r *rand.Rand) {
	f := nft.Families()[r.IntN(2)]
	sets, chains := s.kernel.Names(f)
	if len(sets) == 0 {
		return
	}
	b := &nft.Batch{}
	for range 1 + r.IntN(4) {
		set := sets[r.IntN(len(sets))]
		list := s.kernel.Elements(f, set)
		switch r.IntN(6) {
		case 0:
			b.Add(nft.Op{Kind: nft.FlushChain, Family: f, Name: chains[r.IntN(len(chains))]})
		case 1:
			b.Add(nft.Op{Kind: nft.AddChain, Family: f, Name: "stranger", Chain: &nft.Chain{Name: "stranger"}})
			// One verdict element that leads elsewhere.
			for _, id := range []nft.SetID{nft.Programs, nft.Policies} {
				if own := s.kernel.Elements(f, id.String()); len(own) > 0 {
					e := own[r.IntN(len(own))]
					b.Add(nft.Op{Kind: nft.DeleteElements, Family: f, Elements: []nft.Element{e}})
					e.Data = "goto stranger"
					b.Add(nft.Op{Kind: nft.AddElements, Family: f, Elements: []nft.Element{e}})
					break
				}
			}
		case 2:
			b.Add(nft.Op{Kind: nft.AddTable, Family: f, Flags: 1}) // dormant
		case 3:
			b.Add(nft.Op{Kind: nft.DeleteChain, Family: f, Name: chains[r.IntN(len(chains))]})
		default:
			if len(list) == 0 {
				continue
			}
			e := list[r.IntN(len(list))]
			b.Add(nft.Op{Kind: nft.DeleteElements, Family: f, Name: set, Elements: []nft.Element{e}})
			if len(e.Data) > 3 && r.IntN(2) == 0 {
				e.Data = e.Data[:len(e.Data)-3] + "\x01" + e.Data[len(e.Data)-2:]
				b.Add(nft.Op{Kind: nft.AddElements, Family: f, Name: set, Elements: []nft.Element{e}})
			}
		}
	}
	// Each on its own: of several, those that the kernel accepts.
	for i := range b.Ops {
		if s.kernel.Commit(&nft.Batch{Ops: b.Ops[i : i+1]}) == nil {
			s.total.edits++
			s.disturbed = true
		}
	}
	if s.disturbed && r.IntN(2) == 0 { // a change is committed before the notification arrives
		for i := range simServices {
			s.setSlices(r, i)
		}
		s.proxy.round(context.Background())
	}
	if s.disturbed {
		s.drift()
	}
}

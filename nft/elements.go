// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// Elements returns all elements of a Service. Those of shared sets (cluster-ips, hairpin) may be wanted by
// other Services as well: see [Counter].
func Elements(s *Service) []Element { return appendElements(nil, nil, s) }

// appendElements appends all elements of a Service. It is what a start does for each of them: t saves it an allocation
// for each key and datum.
func appendElements(out []Element, t *texts, s *Service) []Element {
	out = appendFixed(out, t, s)
	for i := range s.Frontends {
		for _, v := range s.Frontends[i].views() {
			out = appendSlots(out, t, s, &s.Frontends[i], v)
		}
	}
	return out
}

// texts makes many strings that are needed for about as long as each other out of few allocations. The zero value is
// ready for use, nil makes each string on its own. Not safe for concurrent use.
type texts struct{ b strings.Builder }

// textBlock is how much is allocated at once: some 500 elements' worth.
const textBlock = 16 << 10

// of returns b as a string.
func (t *texts) of(b []byte) string {
	if t == nil {
		return string(b)
	}
	if t.b.Cap()-t.b.Len() < len(b) {
		t.b = strings.Builder{} // what was made of the old one keeps it
		t.b.Grow(max(textBlock, len(b)))
	}
	start := t.b.Len()
	t.b.Write(b)
	return t.b.String()[start:]
}

// appendFixed appends the elements whose number does not depend on how many endpoints the Service has on other nodes.
func appendFixed(out []Element, t *texts, s *Service) []Element {
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if f.Kind == ClusterIP {
			var buf [16]byte
			out = append(out, Element{Set: ClusterIPs, Key: t.of(appendAddr(buf[:0], f.Addr))})
		}
		out = appendPrograms(out, t, s, f)
		out = appendUnserved(out, s, f)
		out = appendSources(out, s, f)
		out = appendSteering(out, s, f)
		out = appendCounted(out, t, s, f)
	}
	return appendHairpin(appendDraws(out, s), t, s)
}

// appendDraws adds how many endpoints the sticky views draw from.
func appendDraws(out []Element, s *Service) []Element {
	for _, a := range s.Affinities() {
		for _, p := range a.programs() {
			out = append(out, Element{Set: StickyDraws, Key: string(appendClassID(nil, uint32(p))), Data: string(appendClassID(nil, uint32(a.draw(p))))})
		}
	}
	return out
}

// appendPrograms adds what leads from the frontend to its endpoints, if it has any.
func appendPrograms(out []Element, t *texts, s *Service, f *Frontend) []Element {
	var buf [24]byte // an IPv6 VIP
	key := t.of(appendFrontend(buf[:0], s.Proto, f))
	add := func(set SetID, p Program, comment string) {
		out = append(out, Element{Set: set, Key: key, Data: t.of(appendClassID(buf[:0], uint32(p))), Comment: cutComment(comment)})
	}
	if f.Kind == ClusterIP {
		if len(s.endpoints(f.view())) > 0 {
			add(Services, s.balancer(f, f.view()), s.Name)
		}
		return out
	}
	first, views := Services, [2]SetID{ClusterPrograms, LocalPrograms}
	if f.Kind == NodePort {
		first, views = NodePorts, [2]SetID{NodePortClusterPrograms, NodePortLocalPrograms}
	}
	any := false
	for _, v := range f.views() {
		if len(s.endpoints(v)) > 0 {
			any = true
			add(views[v], s.balancer(f, v), "")
		}
	}
	if any {
		add(first, f.policy(), s.Name)
	}
	return out
}

// appendUnserved adds the verdict on packets that no endpoint may take. Packets that were translated have
// another destination by then, so the entry of an externalTrafficPolicy Local frontend without local
// endpoints does not concern those that got the cluster view.
func appendUnserved(out []Element, s *Service, f *Frontend) []Element {
	if len(s.endpoints(f.view())) > 0 {
		return out
	}
	set := RejectServices
	switch {
	case f.Kind == NodePort && s.Served:
		set = DropNodePorts
	case f.Kind == NodePort:
		set = RejectNodePorts
	case s.Served:
		set = DropServices
	}
	return append(out, Element{Set: set, Key: string(appendFrontend(nil, s.Proto, f)), Comment: cutComment(s.Name)})
}

func appendSources(out []Element, s *Service, f *Frontend) []Element {
	if !f.Restricted {
		return out
	}
	key := string(appendFrontend(nil, s.Proto, f))
	out = append(out, Element{Set: Restricted, Key: key})
	for _, p := range f.Sources {
		out = append(out, Element{Set: AllowedSources(p.Bits()), Key: key + addrKey(p.Addr())})
	}
	return out
}

// appendSteering adds what concerns processes of the node only.
func appendSteering(out []Element, s *Service, f *Frontend) []Element {
	var buf [24]byte
	switch key := appendFrontend(buf[:0], s.Proto, f); {
	case f.Steered:
		out = append(out, Element{Set: Steered, Key: string(key)})
	case f.HandedOver:
		out = append(out, Element{Set: HandedOver, Key: string(key)})
	case f.HostEndpoint.IsValid():
		out = append(out, Element{Set: HostEndpoints, Key: string(key), Data: string(appendEndpoint(nil, f.HostEndpoint))})
	}
	return out
}

// appendCounted adds what counts connections, whether or not there are endpoints: it counts on while they come and go.
func appendCounted(out []Element, t *texts, s *Service, f *Frontend) []Element {
	if !s.Counted {
		return out
	}
	set := Connections
	if f.Kind == NodePort {
		set = NodePortConnections
	}
	var buf [24]byte // an IPv6 address, protocol and port
	return append(out, Element{Set: set, Key: t.of(appendFrontend(buf[:0], s.Proto, f)), Comment: cutComment(s.Name)})
}

func appendHairpin(out []Element, t *texts, s *Service) []Element {
	var buf [40]byte // twice an IPv6 address, protocol and port
	for _, e := range s.Hairpin {
		b := appendAddr(appendAddr(buf[:0], e.Addr()), e.Addr())
		out = append(out, Element{Set: Hairpin, Key: t.of(appendPort(appendProto(b, s.Proto), e.Port()))})
	}
	return out
}

// appendSlots adds the endpoints of one view of one frontend.
func appendSlots(out []Element, t *texts, s *Service, f *Frontend, v View) []Element {
	eps := s.endpoints(v)
	var ids []uint32
	if s.Affinity != 0 {
		ids = endpointIDs(v, eps)
	}
	for i := range eps {
		out = appendSlot(out, t, s, f, NewSlot(v, i), eps[i], ids)
	}
	return out
}

// appendSlot adds the one or, with affinity, two elements of an endpoint.
func appendSlot(out []Element, t *texts, s *Service, f *Frontend, slot Slot, e netip.AddrPort, ids []uint32) []Element {
	direct, byID, toID := Endpoints, EndpointsByID, EndpointIDs
	if f.Kind == NodePort {
		direct, byID, toID = NodePortEndpoints, NodePortEndpointsByID, NodePortEndpointIDs
	}
	var buf [48]byte // 40 is the longest: an IPv6 VIP of 24, a slot of 4, or an endpoint of 20
	key := appendFrontend(buf[:0], s.Proto, f)
	n := len(key)
	slotKey := t.of(appendClassID(key, uint32(slot)))
	if s.Affinity == 0 {
		return append(out, Element{Set: direct, Key: slotKey, Data: t.of(appendEndpoint(buf[:0], e))})
	}
	id := ids[int(uint32(slot)&maxProgramArg)]
	idKey := t.of(appendClassID(key[:n], id))
	return append(out,
		Element{Set: toID, Key: slotKey, Data: idKey[n:]},
		Element{Set: byID, Key: idKey, Data: t.of(appendEndpoint(buf[:0], e))})
}

// endpointIDs returns the ids of the endpoints of a sticky view: the view in the top bit, below it a hash
// of address and port, so that an endpoint has the same id whenever it comes back, on every node and after every
// restart. Of two with one hash the lower endpoint keeps it, the other is hashed anew: at worst a client chooses anew,
// and who chose addresses so that their hashes are all one gains nothing. No id looks like the program of a sticky view:
// a packet may have either in its priority.
func endpointIDs(v View, eps []netip.AddrPort) []uint32 {
	order := make([]int, len(eps))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return eps[a].Compare(eps[b]) })
	ids := make([]uint32, len(eps))
	taken := make(map[uint32]bool, len(eps))
	for _, i := range order {
		id := endpointHash(eps[i], 0)
		for try := uint32(1); id == 0 || taken[id] || Program(id).Kind().IsAffinity(); try++ {
			id = endpointHash(eps[i], try)
		}
		taken[id] = true
		ids[i] = id | uint32(v)<<31
	}
	return ids
}

// endpointHash hashes an endpoint, at each try in another way.
func endpointHash(e netip.AddrPort, try uint32) uint32 {
	h := fnv.New32a()
	b, _ := e.MarshalBinary() // never fails
	if try > 0 {
		h.Write(binary.BigEndian.AppendUint32(nil, try))
	}
	h.Write(b)
	return h.Sum32() & (1<<31 - 1)
}

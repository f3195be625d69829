// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"time"
)

// Service is what one port of a Kubernetes Service needs in one family. It is a value: its slices must not be
// changed after it was given away. Addresses are of that family and unmapped, ports in host order.
type Service struct {
	// Name is "namespace/name:port", the comment of the Service's elements.
	Name  string
	Proto Proto
	// Frontends are the addresses and NodePorts that clients use. No two Services may share one.
	Frontends []Frontend
	// Cluster and Local are the endpoints of the two views in the order of their slots (see [AssignSlots]).
	Cluster []netip.AddrPort
	Local   []netip.AddrPort
	// Hairpin are those endpoints on this node: what they send to themselves must be masqueraded.
	Hairpin []netip.AddrPort
	// Served means that the Service has an endpoint somewhere: where a view is empty nevertheless, packets are
	// dropped in silence, because another node may serve them; otherwise they are refused.
	Served bool
	// Counted counts new connections to each frontend. It takes effect with Config.Connections.
	Counted bool
	// Affinity is for how long a client stays on its endpoint after its last new connection; 0 is not at all.
	Affinity time.Duration
	// AffinityIDs are the numbers of the sticky chains by view; used only where Affinity is not 0.
	AffinityIDs [2]uint32
	// AffinitySize is how many clients a sticky view remembers; those beyond are balanced. It takes effect when
	// the view's map is made.
	AffinitySize uint32
}

// FrontendKind decides about masquerade and about which endpoints a client may get.
type FrontendKind uint8

const (
	ClusterIP FrontendKind = iota // from pods and, masqueraded, from elsewhere
	External                      // external and load balancer addresses
	NodePort                      // any of the node's NodePort addresses
)

// Frontend is an address and port, or a NodePort, at which a Service is reached.
type Frontend struct {
	Kind FrontendKind
	Addr netip.Addr // zero for a NodePort
	Port uint16
	// Local restricts a ClusterIP (internalTrafficPolicy) or the traffic from outside to the others
	// (externalTrafficPolicy) to endpoints on this node.
	Local bool
	// Restricted admits only Sources, which then must be masked and distinct.
	Restricted bool
	Sources    []netip.Prefix
	// Steered and HandedOver leave what processes of the node send to a ClusterIP to another balancer; HostEndpoint, if it is
	// valid, is where they are led instead of an endpoint of the view. At most one is set. HandedOver takes effect with
	// ExternalBalancer.HostClusterIPs, the others with ExternalBalancer.Steering.
	Steered, HandedOver bool
	HostEndpoint        netip.AddrPort
}

// Range is an inclusive range of addresses of one family.
type Range struct{ From, To netip.Addr }

// view is the view that a frontend's own traffic gets.
func (f *Frontend) view() View {
	if f.Local {
		return LocalView
	}
	return ClusterView
}

// endpoints returns the endpoints of a view in slot order.
func (s *Service) endpoints(v View) []netip.AddrPort {
	if v == LocalView {
		return s.Local
	}
	return s.Cluster
}

// views lists the views whose endpoints a frontend needs: a ClusterIP has one, what is reached from outside
// under the Local policy needs the cluster view too, for the pods and processes of this node.
func (f *Frontend) views() []View {
	switch {
	case !f.Local:
		return []View{ClusterView}
	case f.Kind == ClusterIP:
		return []View{LocalView}
	}
	return []View{ClusterView, LocalView}
}

// balancer is the program that ends in DNAT to an endpoint of view v.
func (s *Service) balancer(f *Frontend, v View) Program {
	kind, arg := KindCluster, Modulus(len(s.endpoints(v)))
	switch {
	case s.Affinity != 0:
		kind, arg = KindAffinity, s.AffinityIDs[v]
	case v == LocalView:
		kind = KindLocal
	}
	if f.Kind == NodePort {
		kind |= nodePortBit
	}
	return NewProgram(kind, arg)
}

// policy is the program of a frontend that is reached from outside.
func (f *Frontend) policy() Program {
	kind := KindExternal
	if f.Local {
		kind = KindExternalLocal
	}
	if f.Kind == NodePort {
		kind |= nodePortBit
	}
	return NewProgram(kind, 0)
}

// AssignSlots returns the endpoints of want in an order that differs as little as can be from prev: what
// stays keeps its place, what is new fills the gaps, and the last ones move into gaps that are left. So one
// endpoint more, less or replaced changes at most two slots. want must hold no duplicates; it is not changed.
func AssignSlots(prev, want []netip.AddrPort) []netip.AddrPort {
	if len(prev) == 0 || slices.Equal(prev, want) {
		return want
	}
	wanted := make(map[netip.AddrPort]bool, len(want)) // true while it has no slot
	for _, e := range want {
		wanted[e] = true
	}
	slots := make([]netip.AddrPort, len(want))
	var movers []netip.AddrPort // beyond the end now, and still wanted
	for i, e := range prev {
		switch {
		case !wanted[e]:
		case i < len(slots):
			slots[i] = e
			wanted[e] = false
		default:
			movers = append(movers, e)
			wanted[e] = false
		}
	}
	for _, e := range want {
		if wanted[e] {
			movers = append(movers, e)
		}
	}
	for i := range slots {
		if !slots[i].IsValid() {
			slots[i], movers = movers[0], movers[1:]
		}
	}
	return slots
}

// Size is the number of elements that a Service needs, or more by at most one for each frontend, without making them:
// it grows with the product of frontends and endpoints, and with that of frontends and source ranges. Elements of shared
// sets count as if they were its own.
func (s *Service) Size() int {
	perSlot := 1
	if s.Affinity != 0 {
		perSlot = 2 // by slot, and by id
	}
	n := len(s.Hairpin)
	for _, a := range s.Affinities() {
		n += len(a.programs()) // their draws
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		n += frontendSize(f)
		if s.Counted {
			n++
		}
		for _, v := range f.views() {
			n += perSlot * len(s.endpoints(v))
			if len(s.endpoints(v)) > 0 {
				n++ // what leads to the view
			}
		}
	}
	return n
}

// frontendSize is the number of elements that do not depend on endpoints, or one more.
func frontendSize(f *Frontend) int {
	n := 1 // the address of a ClusterIP, or the policy of the others; or, without endpoints, the refusal
	if f.Kind == ClusterIP || f.Local {
		n++ // both
	}
	if f.Restricted {
		n += 1 + len(f.Sources)
	}
	if f.Steered || f.HandedOver || f.HostEndpoint.IsValid() {
		n++
	}
	return n
}

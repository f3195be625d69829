// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"net/netip"
	"slices"
)

// Scope selects the flows that may be deleted at all. The zero value is UDP in zone 0.
type Scope struct {
	// TCP and SCTP include the connections of these protocols whose endpoint is gone. Without them, as in kube-proxy,
	// clients find out by timeout. Connection attempts that were never translated are included in any case.
	TCP, SCTP bool
	// Zone is the conntrack zone that our rules see. Other zones belong to other switches on the same node: Open vSwitch
	// tracks flows to our addresses in zones of its own, untranslated, and needs its entries.
	Zone uint16
}

// covers reports whether flows of p whose endpoint is gone have to go.
func (s *Scope) covers(p Proto) bool {
	return p == UDP || p == TCP && s.TCP || p == SCTP && s.SCTP
}

// offer is what a frontend offers now. A frontend without an offer is not ours.
type offer struct {
	// stay are the endpoints that a flow may stay on, in order.
	stay         []netip.AddrPort
	untranslated bool
}

// Reason returns why f has to go, or Keep. It allocates nothing. A frontend with the flow's own address comes before a
// NodePort, because the rules match in this order.
func (s *State) Reason(f *Flow) Reason {
	if f.Zone != s.scope.Zone || f.Proto != TCP && !s.scope.covers(f.Proto) {
		return Keep
	}
	front := Frontend{Addr: f.Dst.Addr(), Port: f.Dst.Port(), Proto: f.Proto}
	node := front.nodePort()
	if len(s.announced) > 0 && (contains(s.announced[front], f.ReplySrc) || contains(s.announced[node], f.ReplySrc)) {
		return Keep
	}
	o, ours := s.offers[front]
	_, takesNodePorts := s.nodePortAddrs[front.Addr]
	if !ours && takesNodePorts {
		o, ours = s.offers[node]
	}
	switch {
	case ours:
		return s.offered(f, &o)
	case f.Translated() && s.movable(f) &&
		(contains(s.former[front], f.ReplySrc) || takesNodePorts && contains(s.former[node], f.ReplySrc)):
		// Another program may translate the address as soon as we give it up, hence the look at the endpoint.
		return FrontendGone
	}
	return Keep
}

// offered decides on a flow to a frontend that is ours.
func (s *State) offered(f *Flow, o *offer) Reason {
	switch {
	case contains(o.stay, f.ReplySrc): // also untranslated: an external IP may be the endpoint's own address
		return Keep
	case !f.Translated() && (o.untranslated || !restartable(f)):
		return Keep
	case !f.Translated():
		return Untranslated
	case !s.movable(f):
		return Keep
	case len(o.stay) == 0:
		return NoEndpoints
	}
	return EndpointGone
}

// restartable reports whether an untranslated flow can begin anew under our rules. A datagram flow can at any time. A
// connection that was answered works and would break.
func restartable(f *Flow) bool {
	switch f.Proto {
	case UDP:
		return true
	case TCP:
		return f.TCPState == TCPSynSent
	}
	return !f.Replied
}

// movable reports whether the protocol of f is in scope and a deletion is of use: the entry of a closed TCP connection
// is replaced by the kernel when the client opens the next one from the same port.
func (s *State) movable(f *Flow) bool {
	return s.scope.covers(f.Proto) && !(f.Proto == TCP && (f.TCPState == TCPTimeWait || f.TCPState == TCPClose))
}

// ordered returns the endpoints in order, so that a search among 100,000 takes 17 steps. It copies only what is not.
func ordered(endpoints []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(endpoints, netip.AddrPort.Compare) {
		return endpoints
	}
	return slices.SortedFunc(slices.Values(endpoints), netip.AddrPort.Compare)
}

// contains reports whether the ordered endpoints contain e.
func contains(endpoints []netip.AddrPort, e netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(endpoints, e, netip.AddrPort.Compare)
	return ok
}

// union returns the endpoints of the ordered lists a and b in order. It changes neither.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	return slices.Compact(ordered(slices.Concat(a, b)))
}

// lacks reports whether an endpoint of old is missing from now, which is ordered.
func lacks(now, old []netip.AddrPort) bool {
	return slices.ContainsFunc(old, func(e netip.AddrPort) bool { return !contains(now, e) })
}

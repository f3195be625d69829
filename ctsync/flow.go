// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Proto is a transport protocol in its IANA number.
type Proto = nl.Proto

// The protocols of Services.
const (
	TCP  = nl.TCP
	UDP  = nl.UDP
	SCTP = nl.SCTP
)

// TCP states of a conntrack entry (enum tcp_conntrack, linux/netfilter/nf_conntrack_tcp.h). The states from SynRecv to
// CloseWait are those in which the client is connected.
const (
	TCPSynSent   uint8 = 1
	TCPSynRecv   uint8 = 2
	TCPCloseWait uint8 = 5
	TCPTimeWait  uint8 = 7
	TCPClose     uint8 = 8
)

// Flow is one conntrack entry, reduced to what a decision and a deletion need. It is a plain value; its addresses are
// never IPv4-mapped and have no zone.
type Flow struct {
	// Src and Dst are the tuple of the original direction: the client, and the address that the client sends to.
	Src, Dst netip.AddrPort
	// ReplySrc is the source of the reply direction: the endpoint of a translated flow, else the same as Dst.
	ReplySrc netip.AddrPort
	// ID is the kernel's hash of the entry (CTA_ID). A later entry with the same tuple has another one.
	ID uint32
	// Zone is the conntrack zone of the original direction.
	Zone  uint16
	Proto Proto
	// TCPState is the state of a TCP flow, 0 for other protocols.
	TCPState uint8
	// ZoneOrig means that Zone holds for the original direction only (CTA_TUPLE_ZONE), which a deletion has to repeat.
	ZoneOrig bool
	// Replied means that a packet of the reply direction was seen (IPS_SEEN_REPLY).
	Replied bool
}

// Translated reports whether the destination was rewritten.
func (f *Flow) Translated() bool { return f.ReplySrc != f.Dst }

// Frontend is an address that clients of a Service use. It is comparable.
type Frontend struct {
	// Addr is a ClusterIP, external IP or load balancer IP. For a NodePort it is the unspecified address of the family
	// (0.0.0.0 or ::), which stands for all addresses given to SetNodePortAddrs.
	Addr netip.Addr
	// Port is the Service port or the NodePort, in host order.
	Port  uint16
	Proto Proto
}

// nodePort returns the NodePort frontend with the same family, port and protocol.
func (f Frontend) nodePort() Frontend {
	f.Addr = nl.FamilyOf(f.Addr).Unspecified()
	return f
}

// Change is what one frontend offers from now on.
type Change struct {
	Frontend
	// Endpoints are all endpoints that a flow of this frontend may stay on. By kube-proxy's contract these are the
	// serving endpoints of the Service port, terminating ones included, whatever traffic policy and topology select for
	// new flows: a changed policy moves no running flow off an endpoint that works. The addresses of an external
	// balancer belong in here too. An empty list means that flows have to go, so that clients are refused.
	//
	// ctsync keeps the slice, so it must not change any more. A slice in the order of netip.AddrPort.Compare is used
	// as it is, else a sorted copy.
	Endpoints []netip.AddrPort
	// Unready are endpoints that a slice still lists although they do not serve. TCP connections and SCTP associations
	// may stay on them, because a failed readiness probe does not end them; a datagram flow may not.
	Unready []netip.AddrPort
	// Untranslated means that our rules let flows of this frontend pass without translation (steering to a gateway
	// device), so that such flows are right.
	Untranslated bool
	// Removed means that the frontend is not ours any more: only flows to its former endpoints have to go.
	Removed bool
}

// Reason is why a flow has to go. Keep is the zero value.
type Reason uint8

// The reasons. Their names are the values of the metric label "reason".
const (
	// Keep: the flow is right, or not ours.
	Keep Reason = iota
	// EndpointGone: the frontend has endpoints, and the one of this flow is not among them.
	EndpointGone
	// NoEndpoints: the frontend has no endpoint at all.
	NoEndpoints
	// FrontendGone: the frontend is not offered any more, and the flow leads to an endpoint that it had.
	FrontendGone
	// Untranslated: the flow is older than our rules, which therefore do not apply to it.
	Untranslated

	NumReasons = iota
)

// String returns the value of the metric label.
func (r Reason) String() string {
	return [NumReasons]string{"keep", "endpoint-gone", "no-endpoints", "frontend-gone", "untranslated"}[r]
}

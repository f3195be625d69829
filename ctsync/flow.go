// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import "net/netip"

// Proto is an IANA transport protocol number, as conntrack stores it.
type Proto uint8

// The protocols that Services know.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the lower case name, or "other".
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "other"
}

// Status bits of a conntrack entry (enum ip_conntrack_status, linux/netfilter/nf_conntrack_common.h).
const (
	statusSeenReply uint32 = 1 << 1
	statusDstNAT    uint32 = 1 << 5
)

// TCP states of a conntrack entry (enum tcp_conntrack, linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpSynSent  uint8 = 1
	tcpTimeWait uint8 = 7
	tcpClose    uint8 = 8
)

// Flow is one conntrack entry, reduced to what the judgement and a deletion need. It is a plain value: decoding one
// allocates nothing. Addresses are never v4-mapped.
type Flow struct {
	// Src and Dst are the original tuple: the client, and the address that the client asked for.
	Src, Dst netip.AddrPort
	// From and To are the reply tuple: who answers (the endpoint, if the flow was translated), and to whom (the
	// client, or our own address if the flow was masqueraded).
	From, To netip.AddrPort
	// Status holds the IPS_* bits.
	Status uint32
	// ID is the kernel's hash of the entry (CTA_ID); an entry born later with the same tuple has another one.
	ID uint32
	// Mark is the conntrack mark.
	Mark uint32
	// Zone is the conntrack zone of the original direction.
	Zone uint16
	// Proto is the transport protocol.
	Proto Proto
	// TCPState is the state of a TCP flow, 0 for other protocols.
	TCPState uint8
	// ZoneOrig says that Zone holds for the original direction only, which a deletion must repeat to find the entry.
	ZoneOrig bool
}

// translated says whether the destination was rewritten: the answer comes from elsewhere than the client asked.
func (f *Flow) translated() bool { return f.From != f.Dst }

// replied says whether a packet of the reply direction was ever seen.
func (f *Flow) replied() bool { return f.Status&statusSeenReply != 0 }

// Frontend is an address that clients of a Service use. It is comparable.
type Frontend struct {
	// Addr is a ClusterIP, external IP or load balancer IP, or, for a NodePort, the unspecified address of the family
	// (0.0.0.0 or ::): a NodePort is reached on all addresses given to SetNodeAddrs.
	Addr netip.Addr
	// Port is the Service port or the NodePort, in host order.
	Port uint16
	// Proto is TCP, UDP or SCTP.
	Proto Proto
}

// nodePort returns the NodePort frontend that the same flow would use.
func (f Frontend) nodePort() Frontend {
	if f.Addr.Is4() {
		f.Addr = netip.IPv4Unspecified()
	} else {
		f.Addr = netip.IPv6Unspecified()
	}
	return f
}

// Change says what one frontend offers from now on.
type Change struct {
	Frontend
	// Endpoints are all that a flow of this frontend may stay on: by kube-proxy's contract every serving endpoint of
	// the Service port, terminating ones included, whatever traffic policy and topology say for new flows. A changed
	// policy thus moves no running flow off an endpoint that works. Addresses that traffic is handed off to belong in
	// here too. Empty means that nothing is offered: flows go, so that clients are refused. The slice passes to
	// ctsync and must not be changed afterwards; frontends may share one. In the order of netip.AddrPort.Compare it is
	// taken as it is, else a copy is made.
	Endpoints []netip.AddrPort
	// Untranslated says that our own rules let flows of this frontend pass without translation (steering to a gateway
	// device), so that such flows are right and stay.
	Untranslated bool
	// Removed says that the frontend is ours no more: only flows to its former endpoints go.
	Removed bool
}

// Reason says why a flow goes; Keep is the zero value.
type Reason uint8

// The reasons. They are the values of the metric label "reason".
const (
	// Keep: the flow is right, or none of our business.
	Keep Reason = iota
	// EndpointGone: the frontend has endpoints, and this flow's is not among them.
	EndpointGone
	// NoEndpoints: the frontend has no endpoint at all.
	NoEndpoints
	// FrontendGone: the frontend is not offered any more, and the flow goes to an endpoint it had.
	FrontendGone
	// Untranslated: the flow was born before our rules and passes them by.
	Untranslated

	reasons
)

// Reasons are all values but Keep, in order, for callers that make one metric of each.
var Reasons = [...]Reason{EndpointGone, NoEndpoints, FrontendGone, Untranslated}

// String returns the metric label value.
func (r Reason) String() string {
	switch r {
	case EndpointGone:
		return "endpoint-gone"
	case NoEndpoints:
		return "no-endpoints"
	case FrontendGone:
		return "frontend-gone"
	case Untranslated:
		return "untranslated"
	}
	return "keep"
}

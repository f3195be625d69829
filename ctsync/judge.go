// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"net/netip"
	"slices"
)

// Scope says which flows may be judged at all. The zero value judges UDP in all zones.
type Scope struct {
	// TCP and SCTP let flows of these protocols go as well when their endpoint is gone. Off, as in kube-proxy, their
	// clients find out by timeout; connection attempts that were never translated are judged in any case.
	TCP, SCTP bool
	// Zone, if not nil, is the only conntrack zone to look at.
	Zone *uint16
	// Mark and MarkMask restrict to flows with mark&MarkMask == Mark; a zero MarkMask means any mark.
	Mark, MarkMask uint32
}

// covers says whether flows of p to endpoints that are gone shall go.
func (s *Scope) covers(p Proto) bool {
	return p == UDP || p == TCP && s.TCP || p == SCTP && s.SCTP
}

// admits says whether f lies in the zone, the mark and the protocols of s.
func (s *Scope) admits(f *Flow) bool {
	return (s.covers(f.Proto) || f.Proto == TCP) &&
		(s.Zone == nil || *s.Zone == f.Zone) &&
		f.Mark&s.MarkMask == s.Mark&s.MarkMask
}

// offer is what a frontend has now. A frontend without an offer is not ours.
type offer struct {
	endpoints    []netip.AddrPort
	untranslated bool
}

// view is all that a judgement depends on. Endpoints in it are ordered. It is not safe for concurrent use with writers.
type view struct {
	scope  Scope
	offers map[Frontend]offer
	// former are endpoints of removed frontends whose flows may still be there.
	former map[Frontend][]netip.AddrPort
	// nodes are the node's own addresses on which NodePorts are served.
	nodes map[netip.Addr]struct{}
	// owned are prefixes of which every address is ours by definition: the service CIDRs.
	owned []netip.Prefix
	// announced are endpoints that a commit under way may already be using.
	announced map[Frontend][]netip.AddrPort
}

// judge says whether f must go, and why. It is pure: it depends on f and v alone.
func (v *view) judge(f *Flow) Reason {
	if !v.scope.admits(f) {
		return Keep
	}
	r := v.compare(f)
	if r != Keep && v.isAnnounced(f) {
		return Keep
	}
	return r
}

// isAnnounced says whether f goes to an endpoint that the commit under way adds.
func (v *view) isAnnounced(f *Flow) bool {
	if len(v.announced) == 0 {
		return false
	}
	front := Frontend{Addr: f.Dst.Addr(), Port: f.Dst.Port(), Proto: f.Proto}
	return has(v.announced[front], f.From) || has(v.announced[front.nodePort()], f.From)
}

// compare holds f against what is offered. An exact address wins over a NodePort because the rules look for it first.
func (v *view) compare(f *Flow) Reason {
	front := Frontend{Addr: f.Dst.Addr(), Port: f.Dst.Port(), Proto: f.Proto}
	if o, ok := v.offers[front]; ok {
		return v.judgeOffered(f, o)
	}
	if _, own := v.nodes[front.Addr]; own {
		if o, ok := v.offers[front.nodePort()]; ok {
			return v.judgeOffered(f, o)
		}
		if v.wasOurs(f, front.nodePort()) {
			return FrontendGone
		}
	}
	if v.wasOurs(f, front) || v.ownsLost(f) {
		return FrontendGone
	}
	return Keep
}

// judgeOffered judges a flow to a frontend that is ours.
func (v *view) judgeOffered(f *Flow, o offer) Reason {
	// An endpoint is good even when nothing was rewritten: an external IP may be the endpoint's own address.
	if has(o.endpoints, f.From) {
		return Keep
	}
	if !f.translated() {
		if o.untranslated || !passesBy(f) {
			return Keep
		}
		return Untranslated
	}
	switch {
	case !v.movable(f):
		return Keep
	case len(o.endpoints) == 0:
		return NoEndpoints
	}
	return EndpointGone
}

// passesBy says whether an untranslated flow is one that must begin anew to meet our rules. A datagram flow may at
// any time. A connection that was answered may not: it works, with whomever, and would break.
func passesBy(f *Flow) bool {
	switch f.Proto {
	case UDP:
		return true
	case TCP:
		return f.TCPState == tcpSynSent
	}
	return !f.replied()
}

// movable says whether the flow's protocol is to be cleaned up, and whether it is worth it: a TCP flow that has ended
// is replaced by the kernel itself when the client opens the next one from the same port.
func (v *view) movable(f *Flow) bool {
	return v.scope.covers(f.Proto) && !(f.Proto == TCP && (f.TCPState == tcpTimeWait || f.TCPState == tcpClose))
}

// wasOurs says whether f goes to an endpoint that the removed frontend had. Others may translate the address from the
// moment we give it up, so the endpoint must be one of ours.
func (v *view) wasOurs(f *Flow, front Frontend) bool {
	former, ok := v.former[front]
	return ok && f.translated() && v.movable(f) && has(former, f.From)
}

// ownsLost says whether f is a translated flow to an address of the service CIDRs that no frontend has: it is left
// over from a Service that was deleted while nobody watched.
func (v *view) ownsLost(f *Flow) bool {
	return f.translated() && v.movable(f) && v.owns(f.Dst.Addr())
}

// owns says whether a lies in a service CIDR.
func (v *view) owns(a netip.Addr) bool {
	return slices.ContainsFunc(v.owned, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// vip is an address that all ports of a Service are reached at.
type vip struct {
	addr netip.Addr
	kind nft.FrontendKind
	// source is the strongest of the fields that name the address.
	source ClaimSource
	// balanced means that a load balancer delivers to it: loadBalancerSourceRanges apply. The address decides, so they
	// do also where an external IP or, oddly, the ClusterIP is the same.
	balanced bool
}

// appendVIPs adds the addresses of a Service in a family, each once: as ClusterIP, if it is that, else as external.
func appendVIPs(out []vip, s *kube.Service, f nft.Family) []vip {
	add := func(a netip.Addr, kind nft.FrontendKind, source ClaimSource) {
		if nft.FamilyOf(a) != f {
			return
		}
		for i := range out {
			if out[i].addr == a {
				out[i].balanced = out[i].balanced || source == FromLoadBalancer
				out[i].source = min(out[i].source, source)
				return
			}
		}
		out = append(out, vip{a, kind, source, source == FromLoadBalancer})
	}
	add(s.ClusterIP(f == nft.IPv6), nft.ClusterIP, FromAllocator)
	for _, a := range s.ExternalIPs {
		add(a, nft.External, FromUser)
	}
	for _, a := range s.LoadBalancerIPs {
		add(a, nft.External, FromLoadBalancer)
	}
	return out
}

// appendFrontends adds the frontends of one port that no other Service has been granted.
func (b *builder) appendFrontends(out []nft.Frontend, f nft.Family, p *kube.ServicePort, vips []vip) []nft.Frontend {
	s := b.Service
	for i := range vips {
		if b.Lost != nil && b.Lost(vips[i].claim(f, p)) {
			continue
		}
		local := s.ExternalLocal
		if vips[i].kind == nft.ClusterIP {
			local = s.InternalLocal
		}
		out = append(out, nft.Frontend{Kind: vips[i].kind, Addr: vips[i].addr, Port: p.Port, Local: local})
	}
	if p.NodePort != 0 && (b.Lost == nil || !b.Lost(nodePortClaim(f, p))) {
		out = append(out, nft.Frontend{Kind: nft.NodePort, Port: p.NodePort, Local: s.ExternalLocal})
	}
	return out
}

// restrict admits only sources to the frontends that a load balancer delivers to. NodePorts and other external
// addresses stay open, as the API has it.
func restrict(frontends []nft.Frontend, vips []vip, sources []netip.Prefix) {
	for i := range frontends {
		f := &frontends[i]
		if slices.ContainsFunc(vips, func(v vip) bool { return v.balanced && v.addr == f.Addr }) {
			f.Restricted, f.Sources = true, sources
		}
	}
}

// sources returns who may send to the load balancer addresses of a family, and whether anybody may not.
func (b *builder) sources(f nft.Family) (sources []netip.Prefix, restricted bool) {
	s := b.Service
	if len(s.LoadBalancerIPs) == 0 || len(s.SourceRanges) == 0 && !s.NoValidRange {
		return nil, false
	}
	if s.NoValidRange {
		return nil, true
	}
	var own []netip.Prefix
	node := false
	for _, p := range s.SourceRanges {
		if nft.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil, false
		}
		own = append(own, p)
		node = node || slices.ContainsFunc(b.Node.Addrs, p.Contains)
	}
	if len(own) == 0 {
		return nil, !b.Options.FailOpenSourceRanges
	}
	// The address of a load balancer is often one of this node as well, and a process here that connects to it has
	// that address as its own.
	for _, a := range s.LoadBalancerIPs {
		if node && nft.FamilyOf(a) == f {
			own = append(own, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return nft.MergePrefixes(own), true
}

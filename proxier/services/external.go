// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// External is the part of a family's traffic that a balancer behind a device of the node serves instead of the node itself. The
// zero value is nothing.
type External struct {
	// Steering leaves what processes of the node send to a ClusterIP under internalTrafficPolicy Local to it.
	Steering bool
	// HostClusterIPs leaves what processes of the node send to any other ClusterIP that has endpoints to it.
	HostClusterIPs bool
	// Cluster hands over what comes to external addresses and NodePorts under externalTrafficPolicy Cluster: it is
	// translated to the ClusterIP.
	Cluster bool
	// Virtual is what such traffic is translated to under externalTrafficPolicy Local, with the NodePort as its port.
	// The zero Addr hands none over.
	Virtual netip.Addr
}

// external returns what applies to a family.
func (o *Options) external(f nft.Family) *External {
	if f == nft.IPv6 {
		return &o.External[1]
	}
	return &o.External[0]
}

// leave leaves to the balancer behind the device what is its, and returns the ports with those that are handed off
// behind them.
func leave(in *Input, ports []Port) []Port {
	for i := range len(ports) {
		external := in.Options.external(ports[i].Family)
		if external.Steering {
			steer(in.Node.Own, &ports[i])
		}
		if external.HostClusterIPs && len(ports[i].Cluster) > 0 {
			for j := range ports[i].Frontends {
				f := &ports[i].Frontends[j]
				f.HandedOver = f.Kind == nft.ClusterIP && !f.Local
			}
		}
		if !external.Cluster && !external.Virtual.IsValid() {
			continue
		}
		if handed, ok := handOff(in, external, &ports[i]); ok {
			ports = append(ports, handed)
		}
	}
	return ports
}

// steer leaves the ClusterIPs that are restricted to endpoints on this node to the balancer behind the device, as far as
// processes of the node are concerned. Not where a local endpoint is a process of the node: from there the packet would
// come back to where it started, so that it is led to that endpoint at once. Of several the first is taken.
func steer(node []netip.Addr, p *Port) {
	own := processes(node, p.Local)
	for i := range p.Frontends {
		switch f := &p.Frontends[i]; {
		case f.Kind != nft.ClusterIP || !f.Local:
		case len(own) > 0:
			f.HostEndpoint = own[0]
		default:
			f.Steered = true
		}
	}
}

// processes returns the endpoints that are processes of the node.
func processes(node []netip.Addr, eps []netip.AddrPort) (out []netip.AddrPort) {
	for _, e := range eps {
		if slices.Contains(node, e.Addr()) {
			out = append(out, e)
		}
	}
	return out
}

// handOff splits a port whose outside traffic is handed over: p keeps the ClusterIP, out gets the other frontends.
//
// Traffic under externalTrafficPolicy Cluster is not handed over where internalTrafficPolicy is Local: that would
// restrict it too, because the balancer sees a packet to the ClusterIP. Under
// externalTrafficPolicy Local processes of the node that are endpoints get it all: the balancer would send it back with the
// client's address, and the answer would not pass the balancer again.
func handOff(in *Input, external *External, p *Port) (out Port, ok bool) {
	s := in.Service
	to := handOffTarget(s, external, p)
	n := 0 // the ClusterIP comes first, if the Service has been granted it
	for n < len(p.Frontends) && p.Frontends[n].Kind == nft.ClusterIP {
		n++
	}
	if !p.Served || n == len(p.Frontends) || !to.IsValid() || to.Port() == 0 || s.NoLoadBalancerNodePorts {
		return Port{}, false
	}
	out = *p
	out.HandedOff, out.External = true, []netip.AddrPort{to}
	out.Frontends = p.Frontends[n:]
	out.Affinity = 0 // the balancer's business
	out.NoLocalInternal, out.NoLocalExternal = false, false
	if s.ExternalLocal { // own pods and the node itself get the cluster view, from here
		if out.Local = processes(in.Node.Own, p.Local); len(out.Local) == 0 {
			out.Local = out.External
		}
	} else {
		out.Cluster, out.Local, out.Hairpin = out.External, nil, nil
	}
	p.Frontends = p.Frontends[:n:n]
	p.NodePort, p.NoLocalExternal = 0, false
	return out, true
}

// handOffTarget is what the outside traffic of a port is translated to; not valid, or without a port, for nothing.
func handOffTarget(s *kube.Service, external *External, p *Port) netip.AddrPort {
	if s.ExternalLocal {
		return netip.AddrPortFrom(external.Virtual, p.NodePort)
	}
	if f := p.Frontends; external.Cluster && !s.InternalLocal && len(f) > 0 && f[0].Kind == nft.ClusterIP {
		return netip.AddrPortFrom(f[0].Addr, f[0].Port)
	}
	return netip.AddrPort{}
}

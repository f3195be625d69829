// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// surroundings are all that the tables depend on besides Services: a value, computed anew whenever the Node,
// the addresses of the interfaces or the ServiceCIDRs change.
type surroundings struct {
	node  nodeFacts
	byFam map[nft.Family]familySurroundings
	local []netip.Addr   // addresses of the interfaces
	cidrs []netip.Prefix // of ClusterIPs
	// beyond is what a balancer behind a device serves, IPv4 first.
	beyond [2]services.Beyond
}

// nodeFacts are what of the node the choice of endpoints depends on.
type nodeFacts services.Node

func (n nodeFacts) equal(o nodeFacts) bool {
	return n.Name == o.Name && n.Zone == o.Zone && slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.Own, o.Own)
}

type familySurroundings struct {
	config   nft.Config
	elements []nft.Element
	// nodePorts are the addresses that take NodePorts; nil with config.NodePortAll.
	nodePorts []netip.Addr
}

// inputs of surround.
type inputs struct {
	config *config.Config
	node   *kube.Node // nil if not known
	cidrs  []netip.Prefix
	local  []netip.Addr // addresses of the interfaces
	links  links
}

// surround computes the surroundings; it is pure.
func surround(in inputs) surroundings {
	s := surroundings{
		node: nodeFacts{Name: in.config.NodeName}, byFam: map[nft.Family]familySurroundings{},
		local: in.local, cidrs: in.cidrs,
	}
	if in.node != nil {
		s.node.Zone, s.node.Addrs = in.node.Zone, in.node.Addrs
	}
	for i, f := range nft.Families() {
		s.byFam[f] = in.family(f)
		s.beyond[i] = in.beyond(f)
	}
	if r := &in.config.Own.Routing; r.Steering.Enabled || r.HandOff.Enabled {
		s.node.Own = in.local
	}
	return s
}

func (in inputs) family(f nft.Family) familySurroundings {
	out := familySurroundings{config: nft.Config{
		MasqueradeBit: uint8(in.config.MasqueradeBit),
		MasqueradeAll: in.config.MasqueradeAll,
		NodePortAll:   in.nodePortAll(f),
		Beyond:        in.beyondRules(f),
		Connections:   in.config.Own.CountConnections,
	}}
	pods := in.pods(f)
	out.config.Pods = in.podMatch(len(pods) > 0)
	if !out.config.NodePortAll {
		out.nodePorts = in.nodePortAddrs(f)
	}
	out.elements = nft.RangeElements(nft.Pods, f, pods)
	out.elements = append(out.elements, nft.RangeElements(nft.ServiceCIDRs, f, in.cidrs)...)
	out.elements = append(out.elements, nft.AddrElements(nft.NodePortAddresses, f, out.nodePorts)...)
	return out
}

// pods returns the ranges that this node's pods send from, where the configuration tells them by address.
func (in inputs) pods(f nft.Family) []netip.Prefix {
	switch in.config.DetectLocal.Mode {
	case config.LocalByClusterCIDR:
		if p, ok := in.config.DetectLocal.CIDR(f == nft.IPv6); ok {
			return []netip.Prefix{p}
		}
	case config.LocalByNodeCIDR:
		if in.node != nil {
			for _, p := range in.node.PodCIDRs {
				if nft.FamilyOf(p.Addr()) == f {
					return []netip.Prefix{p}
				}
			}
		}
	}
	return nil
}

func (in inputs) podMatch(cidrs bool) nft.PodMatch {
	switch in.config.DetectLocal.Mode {
	case config.LocalByBridge:
		return nft.PodMatch{Interface: in.config.DetectLocal.Interface}
	case config.LocalByPrefix:
		return nft.PodMatch{Interface: in.config.DetectLocal.Interface, Prefix: true}
	}
	return nft.PodMatch{CIDRs: cidrs}
}

// primary returns the node's address of a family, the configured one before the Node's.
func (in inputs) primary(f nft.Family) netip.Addr {
	if a := in.config.NodeIP; a.IsValid() && nft.FamilyOf(a) == f {
		return a
	}
	if in.node != nil {
		return in.node.Addr(f == nft.IPv6)
	}
	return netip.Addr{}
}

// nodePortAll tells that NodePorts are taken at every address: by configuration, or while the primary address is
// not known, as in kube-proxy.
func (in inputs) nodePortAll(f nft.Family) bool {
	want := in.config.NodePorts.Family(f == nft.IPv6)
	return want.All || want.Primary && !in.primary(f).IsValid()
}

// nodePortAddrs are the addresses that take NodePorts. Loopback addresses are left to the localhost option.
func (in inputs) nodePortAddrs(f nft.Family) []netip.Addr {
	want := in.config.NodePorts.Family(f == nft.IPv6)
	var out []netip.Addr
	if want.Primary {
		out = append(out, in.primary(f))
	}
	for _, a := range in.local {
		if nft.FamilyOf(a) != f || a.IsLoopback() {
			continue
		}
		for _, p := range want.CIDRs {
			if p.Contains(a) {
				out = append(out, a)
				break
			}
		}
	}
	return out
}

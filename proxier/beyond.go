// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/services"
	"github.com/nftproxy/nftproxy/routing"
)

// beyond tells what of a family's traffic the configured routing leads to a balancer behind a device.
func (in inputs) beyond(f nft.Family) (out services.Beyond) {
	c := &in.config.Own.Routing
	// Without a gateway of its family, a steered packet would find no route in the steering table.
	out.Steering = c.Steering.Enabled && hasFamily(c.Steering.Gateways, f)
	if !c.HandOff.Enabled || !hasFamily(c.HandOff.Gateways, f) && !subnet(c, f).IsValid() {
		return out
	}
	out.Cluster = c.HandOff.Cluster
	for _, a := range c.HandOff.Virtual {
		if c.HandOff.Local && nft.FamilyOf(a) == f {
			out.Virtual = a
		}
	}
	return out
}

// beyondRules is what the rules have to do for it.
func (in inputs) beyondRules(f nft.Family) nft.Beyond {
	c, what := &in.config.Own.Routing, in.beyond(f)
	out := nft.Beyond{HandOff: what.Cluster || what.Virtual.IsValid()}
	if what.Steering {
		out.Steering, out.Mark, out.Mask = true, c.Steering.Mark, c.Steering.Mask
		hop, _ := c.SteeringGateway(nl.Family(f))
		out.SteeringHop = hop.Addr
	}
	if out.HandOff {
		hop, _ := c.HandOffGateway(nl.Family(f))
		out.HandOffHop, out.Virtual = hop.Addr, what.Virtual
	}
	if p, device := subnet(c, f), in.masqueradeDevice(f); c.Masquerade.Enabled && p.IsValid() && device != "" {
		out.Subnet, out.Device = p, device
	}
	return out
}

// masqueradeDevice is the name of the device that routing puts the host address of the masquerade subnet on.
func (in inputs) masqueradeDevice(f nft.Family) string {
	name := in.config.Own.Routing.Device
	if h := &in.config.Own.Routing.HandOff; h.Enabled {
		name = h.Device
	}
	switch own, known := in.links.byAlias[name]; {
	case name == "":
		return in.links.byAddr[in.primary(f)]
	case known:
		return own
	}
	return name
}

// links are names of interfaces, as far as the rules need them.
type links struct {
	byAddr  map[netip.Addr]string
	byAlias map[string]string // by alternative name
}

func (l links) equal(o links) bool {
	return maps.Equal(l.byAddr, o.byAddr) && maps.Equal(l.byAlias, o.byAlias)
}

// namesOf makes links of what the kernel lists.
func namesOf(list []netlink.Link, addrs []netlink.Addr) links {
	out := links{map[netip.Addr]string{}, map[string]string{}}
	names := map[int]string{}
	for _, l := range list {
		a := l.Attrs()
		names[a.Index] = a.Name
		for _, alias := range a.AltNames {
			out.byAlias[alias] = a.Name
		}
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out.byAddr[ip.Unmap()] = names[a.LinkIndex]
		}
	}
	return out
}

// subnet is the masquerade subnet of a family, not valid if there is none.
func subnet(c *routing.Config, f nft.Family) netip.Prefix {
	for _, p := range c.Subnets {
		if nft.FamilyOf(p.Addr()) == f {
			return p
		}
	}
	return netip.Prefix{}
}

func hasFamily(hops []routing.NextHop, f nft.Family) bool {
	return slices.ContainsFunc(hops, func(h routing.NextHop) bool { return nft.FamilyOf(h.Addr) == f })
}

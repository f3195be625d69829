// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"net/netip"
	"slices"
)

// minSubnetHostBits is the size of the smallest masquerade subnet: four addresses beside the first and the last,
// which IPv4 cannot use, take 3 bits.
const minSubnetHostBits = 3

// Normalize returns the configuration with defaults filled in and prefixes masked, and everything in it that is
// wrong whatever the state of the node: overlaps, numbers out of range, modes without what they need.
//
// The result shares nothing with c. Errors are a [*RefusedError].
func (c Config) Normalize() (Config, error) {
	c = c.withDefaults()
	var found problems
	c.checkFamilies(&found)
	c.checkOverlaps(&found)
	c.checkSteering(&found)
	c.checkHandOff(&found)
	return c, found.refused()
}

func (c Config) withDefaults() Config {
	c.ServiceCIDRs = masked(c.ServiceCIDRs)
	c.PodCIDRs = masked(c.PodCIDRs)
	c.NodeAddrs = slices.Clone(c.NodeAddrs)
	if c.Subnets = masked(c.Subnets); len(c.Subnets) == 0 {
		c.Subnets = DefaultSubnets()
	}
	c.Metric = orDefault(c.Metric, DefaultMetric)
	if c.Reach.MAC.IsZero() {
		c.Reach.MAC = DefaultNextHopMAC()
	}
	c.Steering.Gateways = slices.Clone(c.Steering.Gateways)
	c.Steering.Mark = orDefault(c.Steering.Mark, DefaultMark)
	c.Steering.Mask = orDefault(c.Steering.Mask, ^uint32(0))
	c.Steering.Priority = orDefault(c.Steering.Priority, DefaultPriority)
	c.Steering.Table = orDefault(c.Steering.Table, DefaultTable)
	c.HandOff.Gateways = slices.Clone(c.HandOff.Gateways)
	c.HandOff.Peers = slices.Clone(c.HandOff.Peers)
	c.HandOff.Virtual = slices.Clone(c.HandOff.Virtual)
	if c.HandOff.Local && len(c.HandOff.Virtual) == 0 {
		for _, p := range c.Subnets {
			c.HandOff.Virtual = append(c.HandOff.Virtual, Subnet{p}.LocalETP())
		}
	}
	return c
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// masked returns the prefixes masked, sorted and each once, so that equal configurations are equal values.
func masked(ps []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// checkFamilies refuses what is no plain IPv4 or IPv6 address, and doubles where one per family is meant.
func (c Config) checkFamilies(found *problems) {
	seen := make(map[string]bool)
	once := func(what string, a netip.Addr) {
		key := what + FamilyOf(a).String()
		if seen[key] {
			found.invalid("%s has two %s entries, the second %s: keep one per family", what, FamilyOf(a), a)
		}
		seen[key] = true
	}
	for what, list := range map[string][]netip.Addr{
		"serviceCIDRs": addrsOf(c.ServiceCIDRs), "podCIDRs": addrsOf(c.PodCIDRs), "nodeAddrs": c.NodeAddrs,
		"masqueradeSubnets": addrsOf(c.Subnets), "handOff.virtual": c.HandOff.Virtual,
		"handOff.gateways": hopAddrs(c.HandOff.Gateways), "handOff.peers": hopAddrs(c.HandOff.Peers),
		"steering.gateways": hopAddrs(c.Steering.Gateways),
	} {
		for _, a := range list {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				found.invalid("%s: %q is neither an IPv4 nor an IPv6 address: write it plainly", what, a)
			} else if what != "serviceCIDRs" && what != "podCIDRs" && what != "handOff.peers" {
				once(what, a)
			}
		}
	}
	for _, p := range c.Subnets {
		if p.IsValid() && p.Addr().BitLen()-p.Bits() < minSubnetHostBits {
			found.invalid("masquerade subnet %s is too small: give it at least %d host bits (masqueradeSubnets)",
				p, minSubnetHostBits)
		}
	}
}

// checkOverlaps compares the ranges of the configuration with each other; the node's own are compared by Plan.
func (c Config) checkOverlaps(found *problems) {
	for _, svc := range c.ServiceCIDRs {
		for _, pod := range c.PodCIDRs {
			if svc.Overlaps(pod) {
				found.invalid("service CIDR %s overlaps pod CIDR %s: change serviceCIDRs or podCIDRs", svc, pod)
			}
		}
	}
	for _, sub := range c.Subnets {
		c.checkSubnet(found, sub)
	}
	for _, node := range c.NodeAddrs {
		for _, svc := range c.ServiceCIDRs {
			if svc.Contains(node) {
				found.invalid("service CIDR %s contains the node's address %s: change serviceCIDRs", svc, node)
			}
		}
	}
}

func (c Config) checkSubnet(found *problems, sub netip.Prefix) {
	const remedy = "choose another masquerade subnet (masqueradeSubnets)"
	for _, svc := range c.ServiceCIDRs {
		if sub.Overlaps(svc) {
			found.invalid("masquerade subnet %s overlaps service CIDR %s: %s", sub, svc, remedy)
		}
	}
	for _, pod := range c.PodCIDRs {
		if sub.Overlaps(pod) {
			found.invalid("masquerade subnet %s overlaps pod CIDR %s: %s", sub, pod, remedy)
		}
	}
	for _, node := range c.NodeAddrs {
		if sub.Contains(node) {
			found.invalid("masquerade subnet %s contains the node's address %s: %s", sub, node, remedy)
		}
	}
}

func (c Config) checkSteering(found *problems) {
	s := c.Steering
	if !s.Enabled {
		return
	}
	if s.Device == "" {
		found.invalid("steering names no device: set steering.device to the pod gateway device")
	}
	if s.Priority > maxPriority {
		found.invalid("rule priority %d comes after the main table's: set steering.priority to 1 to %d", s.Priority, maxPriority)
	}
	if s.Table >= tableDefault && s.Table <= tableLocal {
		found.invalid("table %d is the kernel's own: set steering.table to an unused one", s.Table)
	}
	if s.Mark&^s.Mask != 0 {
		found.invalid("mark %#x has bits outside its mask %#x: correct steering.mark or steering.mask", s.Mark, s.Mask)
	}
	for _, f := range c.families() {
		if _, ok := hopOf(s.Gateways, f); !ok {
			found.invalid("steering has no %s gateway for the %s service CIDRs: add it to steering.gateways", f, f)
		}
	}
}

func (c Config) checkHandOff(found *problems) {
	h := c.HandOff
	if !h.Enabled {
		return
	}
	if h.Device == "" {
		found.invalid("hand-off names no device: set handOff.device to the one the balancer sits behind")
	}
	if !h.Local && !h.Cluster {
		found.invalid("hand-off is given no traffic: set handOff.local, handOff.cluster or both")
	}
	for _, v := range h.Virtual {
		for _, other := range slices.Concat(c.ServiceCIDRs, c.PodCIDRs) {
			if other.Contains(v) {
				found.invalid("virtual address %s lies in %s: choose another one (handOff.virtual)", v, other)
			}
		}
		if slices.Contains(c.NodeAddrs, v) {
			found.invalid("virtual address %s is the node's own: choose another one (handOff.virtual)", v)
		}
	}
}

// families returns the families of the service CIDRs, IPv4 first.
func (c Config) families() []Family {
	var fs []Family
	for _, f := range []Family{IPv4, IPv6} {
		if _, ok := pick(c.ServiceCIDRs, func(p netip.Prefix) bool { return p.IsValid() && FamilyOf(p.Addr()) == f }); ok {
			fs = append(fs, f)
		}
	}
	return fs
}

// hopOf returns the next hop of family f.
func hopOf(hops []NextHop, f Family) (NextHop, bool) {
	return pick(hops, func(h NextHop) bool { return h.Addr.IsValid() && FamilyOf(h.Addr) == f })
}

func addrsOf(ps []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.Addr())
	}
	return out
}

func hopAddrs(hops []NextHop) []netip.Addr {
	out := make([]netip.Addr, 0, len(hops))
	for _, h := range hops {
		out = append(out, h.Addr)
	}
	return out
}

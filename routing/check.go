// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

// checkAddresses compares the ranges of the configuration with the addresses of others on the node.
//
// A single address (/32, /128) inside a service CIDR is no overlap: node-local DNS caches bind ClusterIPs.
func (p *planner) checkAddresses() {
	for _, a := range p.s.Addrs {
		name := p.s.Name(a.Index)
		if p.usesSubnets() {
			for _, sub := range p.c.Subnets {
				if sub.Overlaps(a.Prefix) {
					p.found.invalid("masquerade subnet %s overlaps address %s of %s: choose another one (masqueradeSubnets)",
						sub, a.Prefix, name)
				}
			}
		}
		for _, svc := range p.c.ServiceCIDRs {
			if !a.Prefix.IsSingleIP() && svc.Overlaps(a.Prefix) {
				p.found.invalid("service CIDR %s overlaps address %s of %s: change serviceCIDRs or the address", svc, a.Prefix, name)
			}
		}
		p.checkVirtual(a, name)
	}
}

func (p *planner) checkVirtual(a Addr, name string) {
	if !p.c.HandOff.Enabled {
		return
	}
	for _, v := range p.c.HandOff.Virtual {
		if v == a.Prefix.Addr() {
			p.found.invalid("virtual address %s is an address of %s: choose another one (handOff.virtual)", v, name)
		}
	}
}

// usesSubnets tells whether any address of the masquerade subnets is used.
func (p *planner) usesSubnets() bool {
	return p.c.Reach.Enabled || p.c.Masquerade.Enabled || p.c.HandOff.Enabled
}

// checkSteering looks for others that use our rule priority, our mark before us, or our table.
func (p *planner) checkSteering() {
	s := p.c.Steering
	if !s.Enabled {
		return
	}
	for _, r := range p.s.Rules {
		switch {
		case !p.serves(r.Fam):
		case r.Priority == s.Priority:
			p.found.invalid("%s rule priority %d is used by others (%s): set steering.priority to a free one", r.Fam, r.Priority, r)
		case r.Table == s.Table:
			p.found.invalid("table %d is used by others (%s rule %d: %s): set steering.table to a free one", s.Table, r.Fam, r.Priority, r)
		case r.Priority < s.Priority && r.takes(s):
			p.found.invalid("%s rule %d of others takes packets with mark %#x first (%s): set steering.priority below %d",
				r.Fam, r.Priority, s.Mark, r, r.Priority)
		}
	}
	if n := len(p.s.TableRoutes); n > 0 {
		p.found.invalid("table %d has %d routes of others (%s by protocol %d first): set steering.table to a free one",
			s.Table, n, p.s.TableRoutes[0].Dst, p.s.TableRoutes[0].Protocol)
	}
}

// takes tells whether a rule in front of ours would decide about steered packets: it fits the mark, or it sends
// everything to the main table, which has a route for every Service address that we serve. Rules that look at more
// than the mark are given the benefit of the doubt.
func (r ForeignRule) takes(s Steering) bool {
	if r.Selective || s.Mark&r.Mask != r.Mark {
		return false
	}
	return r.Mask != 0 || r.Table == tableMain
}

// checkNeighbours drops wanted entries for which others hold a permanent entry with another MAC: to replace it would
// be to fight.
func (p *planner) checkNeighbours() {
	held := make(map[neighbourSlot]MAC, len(p.s.Neighbours))
	for n := range p.s.Neighbours {
		held[neighbourSlot{n.Index, n.Addr}] = n.MAC
	}
	for e := range p.want {
		n, ok := e.(Neighbour)
		if !ok {
			continue
		}
		if mac, taken := held[neighbourSlot{n.Index, n.Addr}]; taken {
			p.found.invalid("neighbour %s dev %s is held by others with %s: remove it, or use that MAC in place of %s",
				n.Addr, p.s.Name(n.Index), mac, n.MAC)
			delete(p.want, e)
		}
	}
}

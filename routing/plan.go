// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"maps"
	"net/netip"
	"slices"
)

// Result is what [Plan] found out.
type Result struct {
	// Want are the entries that should be there, as far as the node allows now.
	Want Set
	// Problems are what is missing, in the way, or worth knowing; in a stable order.
	Problems []Problem
	// Devices are the interfaces found for the names of the configuration: the memory for the next Plan.
	Devices map[string]int
}

// Plan computes the entries for configuration c, which must be normalized, on a node in state s.
//
// It depends on nothing but its arguments. What cannot be there yet (a device that is missing or down, a node
// address that is still tentative) is left out and reported as [Waiting]; all else is planned nevertheless.
//
// known are the Devices of the previous result. A device that was renamed since is still the device that was
// chosen: it is followed by its index until another one takes the name, so that traffic does not notice.
func Plan(c Config, s State, known map[string]int) Result {
	p := planner{c: c, s: s, known: known, want: Set{}, devices: map[string]int{}}
	if !c.Enabled() {
		return Result{Want: p.want, Devices: p.devices}
	}
	for _, f := range []Family{IPv4, IPv6} {
		if p.serves(f) {
			p.serviceRoutes(f)
			p.masquerade(f)
			p.handOff(f)
			p.steering(f)
		}
	}
	p.claimHops()
	p.checkAddresses()
	p.checkSteering()
	p.checkNeighbours()
	return Result{Want: p.want, Problems: p.found, Devices: forget(known, p.devices, s)}
}

// planner is one run of Plan.
type planner struct {
	c       Config
	s       State
	known   map[string]int
	want    Set
	found   problems
	devices map[string]int
	claims  []Route // see claimHops
}

func (p *planner) add(e Entry) { p.want[e] = struct{}{} }

// serves tells whether the node is to have family f: named node addresses decide; without them the service CIDRs;
// without these (they may come later) what the node has.
func (p *planner) serves(f Family) bool {
	switch {
	case len(p.c.NodeAddrs) > 0:
		return slices.ContainsFunc(p.c.NodeAddrs, func(a netip.Addr) bool { return FamilyOf(a) == f })
	case len(p.c.ServiceCIDRs) > 0:
		return slices.Contains(p.c.families(), f)
	}
	_, ok := p.sourceAddr(f)
	return ok
}

// mayServe tells whether there are service CIDRs of family f, or may be once they are known. Then devices and gateways
// are looked at already, so that what is wrong with them is said at start.
func (p *planner) mayServe(f Family) bool {
	return len(p.c.ServiceCIDRs) == 0 || slices.Contains(p.c.families(), f)
}

// serviceRoutes plans the routes of the service CIDRs in the main table. With hand-off of the Cluster class they
// lead to the balancer, because that is where DNATed packets must go; otherwise to a next hop that nobody has.
func (p *planner) serviceRoutes(f Family) {
	if !p.mayServe(f) {
		return
	}
	var hop NextHop
	var link Link
	var ok bool
	switch {
	case p.c.HandOff.Enabled && p.c.HandOff.Cluster:
		link, ok = p.device(p.c.HandOff.Device, "handOff.device", f)
		hop = p.balancer(f)
	case p.c.Reach.Enabled:
		link, ok = p.serviceDevice(f)
		sub, has := p.c.Subnet(f)
		if !has {
			p.found.invalid("reach has no %s masquerade subnet: add one (masqueradeSubnets)", f)
			return
		}
		hop = NextHop{sub.NextHop(), p.c.Reach.MAC}
	default:
		return
	}
	src, hasSrc := p.source(f)
	if !ok || !hasSrc || !hop.Addr.IsValid() || !p.onLink(hop, link) {
		return
	}
	for _, cidr := range p.c.ServiceCIDRs {
		if FamilyOf(cidr.Addr()) == f {
			p.through(hop, link, Route{Dst: cidr, Source: src, MTU: p.c.MTU})
		}
	}
}

// masquerade plans the host address and the routes of the subnet. The subnet's own route is ours and not the
// kernel's prefix route, so that it has an owner and comes back like all others.
func (p *planner) masquerade(f Family) {
	sub, has := p.c.Subnet(f)
	if !p.c.Masquerade.Enabled || !has {
		return
	}
	link, ok := p.masqueradeDevice(f)
	src, hasSrc := p.source(f)
	if !ok || !hasSrc {
		return
	}
	p.add(Address{link.Index, netip.PrefixFrom(sub.Host(), sub.Bits())})
	p.route(Route{Dst: sub.Prefix, Index: link.Index, Source: sub.Host()})
	p.peer(NextHop{sub.Peer(), p.c.Masquerade.PeerMAC}, link, src)
}

// handOff plans the routes of the virtual addresses, and of the balancer's own.
func (p *planner) handOff(f Family) {
	h := p.c.HandOff
	if !h.Enabled {
		return
	}
	link, ok := p.device(h.Device, "handOff.device", f)
	if !ok {
		return
	}
	hop := p.balancer(f)
	if h.Local && hop.Addr.IsValid() && p.onLink(hop, link) {
		for _, v := range h.Virtual {
			if FamilyOf(v) == f {
				p.through(hop, link, Route{Dst: single(v)})
			}
		}
	}
	for _, peer := range h.Peers {
		if src, has := p.source(f); has && FamilyOf(peer.Addr) == f {
			p.peer(peer, link, src)
		}
	}
	if !p.s.Forwarding[f] {
		p.found.invalid("%s forwarding is off, and hand-off forwards: sysctl -w %s=1", f, forwardingSysctl(f))
	}
}

// peer plans the way back to an address that the balancer uses towards us: on link, from the node's address, so
// that a reply of a host process bears the address it was reached at.
func (p *planner) peer(hop NextHop, link Link, src netip.Addr) {
	p.neighbour(hop, link)
	p.route(Route{Dst: single(hop.Addr), Index: link.Index, Source: src})
}

// steering plans the rule and its table. The rule is there before any Service needs it: without the mark it does
// nothing, and with the mark but without the rule a packet would take the wrong way.
func (p *planner) steering(f Family) {
	s := p.c.Steering
	hop, ok := hopOf(s.Gateways, f)
	if !s.Enabled || !ok || !p.mayServe(f) {
		return // a family of the service CIDRs without a gateway is refused by Normalize
	}
	p.add(Rule{f, s.Priority, s.Mark, s.Mask, s.Table})
	link, ok := p.device(s.Device, "steering.device", f)
	if !ok || !p.onLink(hop, link) {
		return
	}
	for _, cidr := range p.c.ServiceCIDRs {
		if FamilyOf(cidr.Addr()) == f {
			p.through(hop, link, Route{Table: s.Table, Dst: cidr})
		}
	}
	if f == IPv4 {
		p.looseRPF(link)
	}
}

// looseRPF asks for a loose reverse path filter: replies to steered packets come from the gateway device with the
// ClusterIP as their source, and a lookup without the mark finds that address behind another device.
func (p *planner) looseRPF(link Link) {
	if p.s.Have().Has(LooseRPF{link.Index}) || !p.c.CheckSysctlsOnly {
		p.add(LooseRPF{link.Index})
		return
	}
	p.found.invalid("rp_filter of %s is strict and drops replies to steered packets: sysctl -w net.ipv4.conf.%s.rp_filter=%d",
		link.Name, link.Name, rpLoose)
}

// balancer returns the next hop of the balancer behind the hand-off device.
func (p *planner) balancer(f Family) NextHop {
	if hop, ok := hopOf(p.c.HandOff.Gateways, f); ok {
		return hop
	}
	if sub, ok := p.c.Subnet(f); ok {
		return NextHop{Addr: sub.NextHop()}
	}
	p.found.invalid("hand-off has no %s gateway and no %s masquerade subnet: add one to handOff.gateways", f, f)
	return NextHop{}
}

// forced tells whether routes through the hop must carry the onlink flag, because no prefix need cover it.
func (p *planner) forced(hop NextHop) bool {
	if !hop.MAC.IsZero() {
		return true
	}
	sub, ok := p.c.Subnet(FamilyOf(hop.Addr))
	return ok && hop.Addr == sub.NextHop()
}

// route adds r with what all our routes have in common.
func (p *planner) route(r Route) {
	r.Metric = p.c.Metric
	r.Table = orDefault(r.Table, tableMain)
	p.add(r)
}

// through adds r with its next hop.
func (p *planner) through(hop NextHop, link Link, r Route) {
	p.neighbour(hop, link)
	r.Index, r.Gateway, r.OnLink = link.Index, hop.Addr, p.forced(hop)
	if r.OnLink {
		p.claims = append(p.claims, Route{Table: tableMain, Dst: single(hop.Addr), Metric: claimMetric, Index: link.Index})
	}
	p.route(r)
}

// claimHops gives next hops that no prefix need cover a route of their own on their device, where no route to a peer
// does that already. IPv6 refuses a gateway whose address it would look for on another device, even one that is said
// to be on link; and whatever prefix around it others use, or we have just stopped using, the longest one wins.
func (p *planner) claimHops() {
	taken := make(map[netip.Prefix]Route)
	for e := range p.want {
		if r, ok := e.(Route); ok && r.Table == tableMain && !r.Gateway.IsValid() {
			taken[r.Dst] = r
		}
	}
	for _, r := range p.claims {
		held, ok := taken[r.Dst]
		if !ok {
			taken[r.Dst] = r
			p.add(r)
		} else if held.Index != r.Index {
			p.found.invalid("next hop %s is needed on %s and on %s: give one of them another gateway",
				r.Dst.Addr(), p.s.Name(held.Index), p.s.Name(r.Index))
		}
	}
}

// claimMetric is that of routes to next hops. It is not the configured one, so that a change of that leaves one route
// to a next hop and not two for a moment, of which the old one would win.
const claimMetric = 1

// neighbour adds the permanent entry of a hop that has a MAC, unless the very same is there already and belongs
// to somebody else: then it serves, and is not ours to own.
func (p *planner) neighbour(hop NextHop, link Link) {
	n := Neighbour{link.Index, hop.Addr, hop.MAC}
	if !hop.MAC.IsZero() && !p.s.Neighbours[n] {
		p.add(n)
	}
}

// onLink tells whether the hop can be reached on the link, and reports it if not.
func (p *planner) onLink(hop NextHop, link Link) bool {
	if p.forced(hop) || hop.Addr.IsLinkLocalUnicast() && hop.Addr.Is6() {
		return true
	}
	var here []netip.Prefix
	for _, a := range p.s.Addrs {
		if a.Index != link.Index || FamilyOf(a.Prefix.Addr()) != FamilyOf(hop.Addr) {
			continue
		}
		if a.Prefix.Masked().Contains(hop.Addr) {
			return true
		}
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			here = append(here, a.Prefix)
		}
	}
	if len(here) == 0 {
		p.found.waiting("device %s has no %s address yet, so gateway %s is not on link: add an address, or give the gateway's MAC",
			link.Name, FamilyOf(hop.Addr), hop.Addr)
		return false
	}
	p.found.invalid("gateway %s is not on link of %s, which has %v: correct the gateway or give its MAC", hop.Addr, link.Name, here)
	return false
}

// device finds an interface that can carry family f, by its name or by what is known of it.
func (p *planner) device(name, setting string, f Family) (Link, bool) {
	link, ok := p.s.link(name)
	if !ok {
		if link, ok = p.s.linkAt(p.known[name]); ok {
			p.found.note("device %s is now called %s: change %s before the next start", name, link.Name, setting)
		}
	}
	if !ok {
		p.found.waiting("device %s does not exist: create it or correct %s", name, setting)
		return Link{}, false
	}
	p.devices[name] = link.Index
	return link, p.usable(link, setting, f)
}

func (p *planner) usable(link Link, setting string, f Family) bool {
	switch {
	case link.Loopback:
		p.found.invalid("device %s is loopback and has no neighbours: set %s to another one", link.Name, setting)
	case !link.Up:
		p.found.waiting("device %s is down: ip link set %s up", link.Name, link.Name)
	case f == IPv6 && link.MTU < minIPv6MTU:
		p.found.waiting("device %s has an MTU of %d, and IPv6 needs %d: raise it", link.Name, link.MTU, minIPv6MTU)
	default:
		return true
	}
	return false
}

// serviceDevice is the device that is named, or the one that holds the node's address.
func (p *planner) serviceDevice(f Family) (Link, bool) {
	if p.c.Device != "" {
		return p.device(p.c.Device, "device", f)
	}
	a, ok := p.sourceAddr(f)
	if !ok {
		return Link{}, false // source reports it
	}
	link, ok := p.s.linkAt(a.Index)
	return link, ok && p.usable(link, "device", f)
}

func (p *planner) masqueradeDevice(f Family) (Link, bool) {
	if p.c.HandOff.Enabled {
		return p.device(p.c.HandOff.Device, "handOff.device", f)
	}
	return p.serviceDevice(f)
}

// source returns the node's address of family f, and reports if there is none that the kernel would take.
func (p *planner) source(f Family) (netip.Addr, bool) {
	a, ok := p.sourceAddr(f)
	if ok {
		return a.Prefix.Addr(), true
	}
	if node, named := pick(p.c.NodeAddrs, func(a netip.Addr) bool { return FamilyOf(a) == f }); named {
		p.found.waiting("the node's address %s is on no interface: add it or correct nodeAddrs", node)
	} else {
		p.found.waiting("the node has no %s address: add one, name one in nodeAddrs, or remove the %s service CIDRs", f, f)
	}
	return netip.Addr{}, false
}

// sourceAddr finds the node's address: the one that is named; else the first global one on the service device that
// is named; else the first global one that belongs to no pod.
func (p *planner) sourceAddr(f Family) (Addr, bool) {
	fits := func(a Addr) bool { return FamilyOf(a.Prefix.Addr()) == f && !a.Tentative }
	if node, named := pick(p.c.NodeAddrs, func(a netip.Addr) bool { return FamilyOf(a) == f }); named {
		return pick(p.s.Addrs, func(a Addr) bool { return fits(a) && a.Prefix.Addr() == node })
	}
	if link, ok := p.s.link(p.c.Device); ok {
		if a, ok := pick(p.s.Addrs, func(a Addr) bool { return fits(a) && a.Global && a.Index == link.Index }); ok {
			return a, true
		}
	}
	return pick(p.s.Addrs, func(a Addr) bool { return fits(a) && p.nodeLike(a) })
}

// nodeLike tells whether an address can be the node's: not of loopback, not a pod gateway, not a bound ClusterIP.
func (p *planner) nodeLike(a Addr) bool {
	link, ok := p.s.linkAt(a.Index)
	inside := func(c netip.Prefix) bool { return c.Contains(a.Prefix.Addr()) }
	return ok && a.Global && !a.Deprecated && link.Up && !link.Loopback &&
		!slices.ContainsFunc(p.c.PodCIDRs, inside) && !slices.ContainsFunc(p.c.ServiceCIDRs, inside)
}

// forget returns what is known of devices without those that are gone, and with those just found.
func forget(known, found map[string]int, s State) map[string]int {
	out := maps.Clone(found)
	for name, index := range known {
		if _, ok := s.linkAt(index); ok && out[name] == 0 {
			out[name] = index
		}
	}
	return out
}

// single returns the prefix that holds just a.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func forwardingSysctl(f Family) string {
	if f == IPv4 {
		return "net.ipv4.ip_forward"
	}
	return "net.ipv6.conf.all.forwarding"
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Result is the outcome of [Plan].
type Result struct {
	// Want are the entries that should exist, as far as the node allows now.
	Want Set
	// Problems are what is missing, in the way, or worth knowing; in a stable order.
	Problems []Problem
	// Devices are the interfaces found for the names of the configuration, an argument of the next Plan.
	Devices map[string]int
}

// Refused returns the conflicts as a [*RefusedError], nil if there are none.
func (r Result) Refused() error { return refusal(r.Problems, Conflict) }

// Plan computes the entries for configuration c, which must be normalized, on a node in state s.
//
// It depends on nothing but its arguments. What cannot exist yet (its device is missing or down, a node address is
// still tentative) is left out and reported as [Waiting]; a range or address in conflict with others is set aside and
// reported as [Conflict]; all else is planned nevertheless.
//
// known are the Devices of the previous result. A device that was renamed since is still the device that was
// chosen: its index identifies it until another device takes the name, so that traffic is not disturbed.
func Plan(c Config, s State, known map[string]int) Result {
	p := planner{c: c, s: s, known: known, want: Set{}, devices: map[string]int{}}
	if !c.Enabled() {
		return Result{Want: p.want, Devices: p.devices}
	}
	if len(c.ServiceCIDRs) == 0 && (c.Reach.Enabled || c.Steering.Enabled || c.HandOff.routesServices()) {
		p.found.waiting("no service CIDR is known, so no Service address is routed: create ServiceCIDR objects or set serviceCIDRs")
	}
	for _, f := range nl.Families() {
		if p.serves(f) {
			p.setAside(f)
			p.serviceRoutes(f)
			p.masquerade(f)
			p.handOff(f)
			p.steering(f)
		}
	}
	p.claimHops()
	p.checkSteering()
	p.checkNeighbours()
	p.checkShadowed()
	return Result{Want: p.want, Problems: p.found, Devices: p.remember()}
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

	// Of the family that is planned, without what setAside has set aside.
	cidrs   []netip.Prefix
	subnet  Subnet
	hasSub  bool
	virtual []netip.Addr
}

func (p *planner) add(e Entry) { p.want[e] = struct{}{} }

// named reports whether the families of the cluster are known: by the node's addresses or the service CIDRs.
func (p *planner) named() bool { return len(p.c.NodeAddrs) > 0 || len(p.c.ServiceCIDRs) > 0 }

// serves reports whether the node is to have family f: named node addresses decide; without them the service CIDRs;
// without these (they may come later) the addresses of the node.
func (p *planner) serves(f Family) bool {
	if len(p.c.NodeAddrs) > 0 {
		return slices.ContainsFunc(p.c.NodeAddrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f })
	}
	_, ok := p.sourceAddr(f)
	return p.mayServe(f) && (p.named() || ok)
}

// mayServe reports whether there are service CIDRs of family f, or may be once they are known. Then devices and
// gateways are checked already, so that problems with them are reported at start.
func (p *planner) mayServe(f Family) bool {
	return len(p.c.ServiceCIDRs) == 0 ||
		slices.ContainsFunc(p.c.ServiceCIDRs, func(c netip.Prefix) bool { return nl.FamilyOf(c.Addr()) == f })
}

// setAside reports the ranges and addresses of family f that are in conflict with others, and keeps the rest for the
// plan. A range that is routed already stays: an address that another program adds does not cut connections. No conflict are a single address (/32, /128) of others in a service CIDR, because node-local DNS caches bind
// ClusterIPs, and the host address of the masquerade subnet on our device, which a running OVN-Kubernetes has on its
// bridge.
func (p *planner) setAside(f Family) {
	p.cidrs, p.virtual = nil, nil
	p.subnet, p.hasSub = p.c.Subnet(f)
	_, gateway := hopOf(p.c.HandOff.Gateways, f)
	used := p.hasSub && (p.c.Reach.Enabled || p.c.Masquerade.Enabled || p.c.HandOff.Enabled && (!gateway ||
		p.c.HandOff.Local && slices.ContainsFunc(p.c.HandOff.Virtual, p.subnet.Contains)))
	for _, svc := range p.c.ServiceCIDRs {
		switch {
		case nl.FamilyOf(svc.Addr()) != f:
		case used && p.subnet.Overlaps(svc):
			p.found.conflict("masquerade subnet %s overlaps service CIDR %s: choose another one (masqueradeSubnets)", p.subnet, svc)
		case p.checkRange("service CIDR", svc, "change serviceCIDRs or what overlaps", func(a Addr) bool { return a.Prefix.IsSingleIP() }), p.routed(svc):
			p.cidrs = append(p.cidrs, svc)
		}
	}
	if used {
		own := func(a Addr) bool { return a.Prefix == p.hostAddress() && p.uses(a.Index, f) }
		p.hasSub = p.checkRange("masquerade subnet", p.subnet.Prefix, "choose another one (masqueradeSubnets)", own) ||
			p.routed(p.subnet.Prefix)
	}
	for _, v := range p.c.HandOff.Virtual {
		if p.c.HandOff.Local && nl.FamilyOf(v) == f && p.checkVirtual(v) {
			p.virtual = append(p.virtual, v)
		}
	}
}

// routed reports whether a route of ours to a range, or through an address of it, exists.
func (p *planner) routed(x netip.Prefix) bool {
	for e := range p.s.Ours {
		if r, ok := e.(Route); ok && (r.Dst == x || x.Contains(r.Gateway)) {
			return true
		}
	}
	return false
}

// checkRange reports whether a range overlaps neither pods nor the node's addresses, except those that are allowed.
func (p *planner) checkRange(what string, x netip.Prefix, remedy string, allowed func(Addr) bool) bool {
	before := len(p.found)
	for _, pod := range p.c.PodCIDRs {
		if x.Overlaps(pod) {
			p.found.conflict("%s %s overlaps pod CIDR %s: %s", what, x, pod, remedy)
		}
	}
	if node, ok := pick(p.c.NodeAddrs, x.Contains); ok {
		p.found.conflict("%s %s contains the node's address %s: %s", what, x, node, remedy)
		return false
	}
	for _, a := range p.s.Addrs {
		if x.Overlaps(a.Prefix) && !allowed(a) {
			p.found.conflict("%s %s overlaps address %s of %s: %s", what, x, a.Prefix, p.s.Name(a.Index), remedy)
		}
	}
	return len(p.found) == before
}

// hostAddress is the address of this node in the masquerade subnet, with its prefix length.
func (p *planner) hostAddress() netip.Prefix {
	return netip.PrefixFrom(p.subnet.Host(), p.subnet.Bits())
}

// uses reports whether an interface is the device of hand-off or the service device.
func (p *planner) uses(index int, f Family) bool {
	handOff, ok := p.s.link(p.c.HandOff.Device)
	if p.c.HandOff.Enabled && ok && handOff.Index == index {
		return true
	}
	service, ok := p.s.link(p.c.Device)
	if p.c.Device == "" {
		var a Addr
		a, ok = p.sourceAddr(f)
		service.Index = a.Index
	}
	return ok && service.Index == index
}

// checkVirtual reports whether a virtual address can be routed to the balancer.
func (p *planner) checkVirtual(v netip.Addr) bool {
	if other, ok := pick(slices.Concat(p.c.ServiceCIDRs, p.c.PodCIDRs), func(o netip.Prefix) bool { return o.Contains(v) }); ok {
		p.found.conflict("virtual address %s lies in %s: choose another one (handOff.virtual)", v, other)
		return false
	}
	if a, ok := pick(p.s.Addrs, func(a Addr) bool { return a.Prefix.Addr() == v }); ok {
		p.found.conflict("virtual address %s is an address of %s: choose another one (handOff.virtual)", v, p.s.Name(a.Index))
		return false
	}
	return true
}

// serviceRoutes plans the routes of the service CIDRs in the main table. With hand-off of the Cluster class or
// of what processes of the node send they lead to the balancer; otherwise to the next hop that belongs to no machine.
func (p *planner) serviceRoutes(f Family) {
	if !p.mayServe(f) {
		return
	}
	var hop NextHop
	var link Link
	var ok bool
	switch {
	case p.c.HandOff.routesServices():
		if hop, ok = p.balancer(f); !ok {
			return
		}
		link, ok = p.device(p.c.HandOff.Device, "handOff.device", f)
	case p.c.Reach.Enabled && p.hasSub:
		link, ok = p.serviceDevice(f)
		hop = NextHop{p.subnet.NextHop(), p.c.Reach.MAC}
	case p.c.Reach.Enabled && p.named():
		p.found.note("reach has no %s masquerade subnet, so %s Services are not routed: add one (masqueradeSubnets)", f, f)
		return
	default:
		return
	}
	src, hasSrc := p.source(f)
	if !ok || !hasSrc || !p.onLink(hop, link) {
		return
	}
	for _, cidr := range p.cidrs {
		p.through(hop, link, Route{Dst: cidr, Source: src, MTU: p.c.MTU})
	}
}

// masquerade plans the host address and the routes of the subnet. The route of the subnet is ours and not the
// kernel's prefix route, so that it has an owner and is repaired like all others. A host address that others have made
// on the same device will do.
func (p *planner) masquerade(f Family) {
	if !p.c.Masquerade.Enabled || !p.hasSub {
		return
	}
	link, ok := p.masqueradeDevice(f)
	src, hasSrc := p.source(f)
	if !ok || !hasSrc {
		return
	}
	if !slices.ContainsFunc(p.s.addrs(f, link.Index), func(a Addr) bool { return a.Prefix == p.hostAddress() }) {
		p.add(Address{link.Index, p.hostAddress()})
	}
	p.route(Route{Dst: p.subnet.Prefix, Index: link.Index, Source: p.subnet.Host(), MTU: p.c.MTU})
	p.peer(NextHop{p.subnet.Peer(), p.c.Masquerade.PeerMAC}, link, src)
}

// handOff plans the routes of the virtual addresses and of the balancer's own.
func (p *planner) handOff(f Family) {
	if !p.c.HandOff.Enabled {
		return
	}
	hop, ok := p.balancer(f)
	if !ok {
		if p.named() {
			p.found.note("hand-off has no %s gateway and no %s masquerade subnet, so %s is not handed over: add one to handOff.gateways", f, f, f)
		}
		return
	}
	link, ok := p.device(p.c.HandOff.Device, "handOff.device", f)
	if !ok {
		return
	}
	if len(p.virtual) > 0 && p.onLink(hop, link) {
		for _, v := range p.virtual {
			p.through(hop, link, Route{Dst: single(v)})
		}
	}
	for _, peer := range p.c.HandOff.Peers {
		if src, has := p.source(f); has && nl.FamilyOf(peer.Addr) == f {
			p.peer(peer, link, src)
		}
	}
	if !p.s.Forwarding[f] {
		severity := Conflict
		if !p.named() { // the cluster may not have this family
			severity = Waiting
		}
		sysctl := map[Family]string{IPv4: "net.ipv4.ip_forward", IPv6: "net.ipv6.conf.all.forwarding"}[f]
		p.found.add(severity, "%s forwarding is off, and hand-off forwards: sysctl -w %s=1", f, sysctl)
	}
}

// peer plans the way back to an address that the balancer uses towards us: on link, from the node's address, so
// that a reply of a host process has the source that the request was sent to.
func (p *planner) peer(hop NextHop, link Link, src netip.Addr) {
	p.neighbour(hop, link)
	p.route(Route{Dst: single(hop.Addr), Index: link.Index, Source: src, MTU: p.c.MTU})
}

// steering plans the rule and its table. The rule exists before any Service needs it: without the mark it has no
// effect, and with the mark but without the rule a packet takes the wrong route.
func (p *planner) steering(f Family) {
	s := p.c.Steering
	hop, ok := p.c.SteeringGateway(f)
	if !s.Enabled || !p.mayServe(f) {
		return
	}
	if !ok {
		if p.named() {
			p.found.note("steering has no %s gateway, so %s is not steered: add one to steering.gateways", f, f)
		}
		return
	}
	p.add(Rule{f, s.Priority, s.Mark, s.Mask, s.Table})
	link, ok := p.device(s.Device, "steering.device", f)
	if !ok || !p.onLink(hop, link) {
		return
	}
	for _, cidr := range p.cidrs {
		p.through(hop, link, Route{Table: s.Table, Dst: cidr, MTU: p.c.MTU})
	}
	if f == IPv4 {
		p.looseRPF(link)
	}
}

// looseRPF plans a loose reverse path filter: replies to steered packets come from the gateway device with the
// ClusterIP as their source, and a lookup without the mark finds that address behind another device.
func (p *planner) looseRPF(link Link) {
	if p.s.Have().Has(LooseRPF{link.Index}) || !p.c.CheckSysctlsOnly {
		p.add(LooseRPF{link.Index})
		return
	}
	p.found.conflict("rp_filter of %s is strict and drops replies to steered packets: sysctl -w net.ipv4.conf.%s.rp_filter=%d",
		link.Name, link.Name, rpLoose)
}

// balancer returns the next hop of the balancer behind the hand-off device. One in the masquerade subnet is not
// returned when the subnet is set aside.
func (p *planner) balancer(f Family) (NextHop, bool) {
	hop, ok := p.c.HandOffGateway(f)
	return hop, ok && (p.hasSub || hop.Addr != p.subnet.NextHop())
}

// forced reports whether routes through the hop must carry the onlink flag, because no prefix need cover it.
func (p *planner) forced(hop NextHop) bool {
	sub, ok := p.c.Subnet(nl.FamilyOf(hop.Addr))
	return !hop.MAC.IsZero() || ok && hop.Addr == sub.NextHop()
}

// route adds r with what all our routes have in common.
func (p *planner) route(r Route) {
	r.Metric = p.c.Metric
	r.Table = orDefault(r.Table, tableMain)
	if by, ok := p.s.Found[p.c.lookup(r)]; ok && by.Protocol != Protocol && by.Slot() == r.Slot() && by.sameHop(r) {
		return // others have the same route, which will do
	}
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

// claimHops adds routes to the next hops that no prefix need cover, unless a route to a peer does that already. IPv6
// refuses a gateway that it would look for on another device, even with the onlink flag; and the longest prefix wins
// over those that others use around it, or that we have just stopped using.
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
			p.found.conflict("next hop %s is needed on %s and on %s: give one of them another gateway",
				r.Dst.Addr(), p.s.Name(held.Index), p.s.Name(r.Index))
		}
	}
}

// claimMetric is the metric of routes to next hops. It is not the configured one: a change of that would make two
// routes to one next hop for a moment, and the old one could win.
const claimMetric = 1

// neighbour adds the permanent entry of a hop that has a MAC, unless others have made the same one, which will do.
func (p *planner) neighbour(hop NextHop, link Link) {
	n := Neighbour{link.Index, hop.Addr, hop.MAC}
	if !hop.MAC.IsZero() && !p.s.Neighbours[n] {
		p.add(n)
	}
}

// onLink reports whether the hop can be reached on the link, and adds a problem if not.
func (p *planner) onLink(hop NextHop, link Link) bool {
	if p.forced(hop) || hop.Addr.IsLinkLocalUnicast() && hop.Addr.Is6() {
		return true
	}
	f := nl.FamilyOf(hop.Addr)
	var here []netip.Prefix
	for _, a := range p.s.addrs(f, link.Index) {
		if a.Prefix.Masked().Contains(hop.Addr) {
			return true
		}
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			here = append(here, a.Prefix)
		}
	}
	if len(here) == 0 {
		p.found.waiting("device %s has no %s address yet, so gateway %s is not on link: add an address, or give the gateway's MAC",
			link.Name, f, hop.Addr)
		return false
	}
	p.found.conflict("gateway %s is not on link of %s, which has %v: correct the gateway or give its MAC", hop.Addr, link.Name, here)
	return false
}

// device finds an interface that can carry family f, by its name or by the index of before.
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
		p.found.conflict("device %s is loopback and has no neighbours: set %s to another one", link.Name, setting)
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
		return Link{}, false // source adds the problem
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

// source returns the node's address of family f, and adds a problem if there is none that the kernel would accept.
func (p *planner) source(f Family) (netip.Addr, bool) {
	a, ok := p.sourceAddr(f)
	if ok {
		return a.Prefix.Addr(), true
	}
	if node, named := pick(p.c.NodeAddrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f }); named {
		p.found.waiting("the node's address %s is on no interface: add it or correct nodeAddrs", node)
	} else {
		p.found.waiting("the node has no %s address: add one, name one in nodeAddrs, or remove the %s service CIDRs", f, f)
	}
	return netip.Addr{}, false
}

// sourceAddr finds the node's address: the one that is named; else the first global one on the service device that
// is named; else the first global one that belongs to no pod.
func (p *planner) sourceAddr(f Family) (Addr, bool) {
	if node, named := pick(p.c.NodeAddrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f }); named {
		return pick(p.s.addrs(f, 0), func(a Addr) bool { return !a.Tentative && a.Prefix.Addr() == node })
	}
	if link, ok := p.s.link(p.c.Device); ok {
		if a, ok := pick(p.s.addrs(f, link.Index), func(a Addr) bool { return !a.Tentative && a.Global }); ok {
			return a, true
		}
	}
	return pick(p.s.addrs(f, 0), func(a Addr) bool { return !a.Tentative && p.nodeLike(a) })
}

// nodeLike reports whether an address can be the node's: not of loopback, not a pod gateway, not a bound ClusterIP.
func (p *planner) nodeLike(a Addr) bool {
	link, ok := p.s.linkAt(a.Index)
	inside := func(c netip.Prefix) bool { return c.Contains(a.Prefix.Addr()) }
	return ok && a.Global && !a.Deprecated && link.Up && !link.Loopback &&
		!slices.ContainsFunc(p.c.PodCIDRs, inside) && !(a.Prefix.IsSingleIP() && slices.ContainsFunc(p.c.ServiceCIDRs, inside))
}

// remember returns the devices that were found, and those of before that still exist.
func (p *planner) remember() map[string]int {
	for name, index := range p.known {
		if _, ok := p.s.linkAt(index); ok && p.devices[name] == 0 {
			p.devices[name] = index
		}
	}
	return p.devices
}

// single returns the prefix that holds just a.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// checkSteering reports others that use our rule priority, our mark before us, or our table.
func (p *planner) checkSteering() {
	s := p.c.Steering
	if !s.Enabled {
		return
	}
	for _, r := range p.s.Rules {
		switch {
		case !p.serves(r.Fam):
		case r.Priority == s.Priority:
			p.found.conflict("%s rule priority %d is used by others (%s): set steering.priority to a free one", r.Fam, r.Priority, r)
		case r.Table == s.Table:
			p.found.conflict("table %d is used by others (%s rule %d: %s): set steering.table to a free one", s.Table, r.Fam, r.Priority, r)
		case r.Priority < s.Priority && r.takes(s):
			p.found.conflict("%s rule %d of others takes packets with mark %#x first (%s): set steering.priority below %d",
				r.Fam, r.Priority, s.Mark, r, r.Priority)
		}
	}
	if n := len(p.s.TableRoutes); n > 0 {
		p.found.conflict("table %d has %d routes of others (%s by protocol %d first): set steering.table to a free one",
			s.Table, n, p.s.TableRoutes[0].Dst, p.s.TableRoutes[0].Protocol)
	}
}

// takes reports whether a rule before ours decides about steered packets: it matches the mark, or it sends
// everything to the main table, which has a route for each Service address. Of rules that match more than the mark
// only [State.Found] shows the effect.
func (r ForeignRule) takes(s Steering) bool {
	return !r.Selective && s.Mark&r.Mask == r.Mark && (r.Mask != 0 || r.Table == tableMain)
}

// checkNeighbours drops wanted entries for which others have a permanent entry with another MAC: each would replace
// the other's without end.
func (p *planner) checkNeighbours() {
	held := make(map[any]MAC, len(p.s.Neighbours))
	for n := range p.s.Neighbours {
		held[n.Slot()] = n.MAC
	}
	for _, e := range p.want.Sorted() {
		n, ok := e.(Neighbour)
		mac, taken := held[e.Slot()]
		if ok && taken {
			p.found.conflict("neighbour %s dev %s is held by others with %s: remove it, or use that MAC in place of %s",
				n.Addr, p.s.Name(n.Index), mac, n.MAC)
			delete(p.want, e)
		}
	}
}

// checkShadowed reports routes of ours that exist but are not used, because the kernel prefers one of others: a smaller
// metric, a longer prefix, or another rule. One to the same next hop will do.
func (p *planner) checkShadowed() {
	for _, e := range p.want.Sorted() {
		r, ok := e.(Route)
		if !ok || !p.s.Ours.Has(r) {
			continue
		}
		if by, shadowed := p.s.shadow(p.c, r); shadowed {
			remedy := "remove it"
			if by.Metric > 1 {
				remedy = fmt.Sprintf("remove it, or set metric below %d", by.Metric)
			}
			p.found.conflict("%s of others (protocol %d) takes packets to %s: %s", by.Text(p.s.Name), by.Protocol, r.Dst, remedy)
		}
	}
}

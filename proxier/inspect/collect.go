// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// place is what a frontend is looked up by; Addr is zero for a NodePort.
type place struct {
	addr  netip.Addr
	proto nft.Proto
	port  uint16
}

// front gathers all elements of one frontend.
type front struct {
	place
	name       string
	program    nft.Program
	views      [2]nft.Program // of a policy
	refused    bool
	dropped    bool
	restricted bool
	sources    []nft.Range
	slots      []slotted
	ids        []slotted // sticky: slot to id
	byID       []slotted // sticky: id to endpoint
	// What concerns a balancer behind a device.
	steered                bool
	hostEndpoint, handedTo netip.AddrPort
}

// slotted is an endpoint, or an endpoint's id, by slot; or an endpoint by id.
type slotted struct {
	slot uint32
	id   uint32
	addr netip.AddrPort
}

// collector gathers one family.
type collector struct {
	snapshot   *nft.Snapshot
	fronts     map[place]*front
	clusterIPs map[netip.Addr]bool
	hairpin    map[nft.Proto]map[netip.AddrPort]bool
	affinities map[uint32]nft.Affinity
	clients    map[uint32]int
	handOff    bool
	table      Table
}

// Collect returns what a table says. clients are the numbers of clients by affinity number, as far as they are
// known (see nft.Affinity).
func Collect(s *nft.Snapshot, clients map[uint32]int) (Table, []ServicePort) {
	c := &collector{
		snapshot: s, clients: clients, fronts: make(map[place]*front, len(s.Elements)/6),
		clusterIPs: map[netip.Addr]bool{}, affinities: map[uint32]nft.Affinity{},
		hairpin: map[nft.Proto]map[netip.AddrPort]bool{},
	}
	c.facts()
	for _, a := range s.Affinities() {
		c.affinities[a.ID] = a
	}
	dec := nft.NewDecoder(s.Family)
	counts := map[nft.SetID]int{}
	for i := range s.Elements {
		e := &s.Elements[i]
		counts[e.Set]++
		if d, ok := dec.Decode(e); ok {
			c.element(e, &d)
		}
	}
	for set, n := range counts {
		c.table.Elements[set.String()] = n
	}
	ports := c.services()
	for _, list := range [][]string{c.table.Pods, c.table.NodePortAddresses, c.table.ServiceCIDRs} {
		slices.Sort(list) // the kernel lists in no order
	}
	return c.table, ports
}

func (c *collector) at(d *nft.Decoded) *front {
	p := place{d.Addr, d.Proto, d.Port}
	f, ok := c.fronts[p]
	if !ok {
		f = &front{place: p}
		c.fronts[p] = f
	}
	return f
}

// element takes one element in.
func (c *collector) element(e *nft.Element, d *nft.Decoded) {
	switch e.Set {
	case nft.ClusterIPs:
		c.clusterIPs[d.Addr] = true
	case nft.Hairpin:
		if c.hairpin[d.Proto] == nil {
			c.hairpin[d.Proto] = map[netip.AddrPort]bool{}
		}
		c.hairpin[d.Proto][netip.AddrPortFrom(d.Addr, d.Port)] = true
	case nft.NodePortAddresses:
		c.table.NodePortAddresses = append(c.table.NodePortAddresses, d.Addr.String())
	case nft.Pods:
		c.table.Pods = append(c.table.Pods, prefixes(d.Range)...)
	case nft.ServiceCIDRs:
		c.table.ServiceCIDRs = append(c.table.ServiceCIDRs, prefixes(d.Range)...)
	case nft.StickyDraws: // part of the affinity
	default:
		c.at(d).element(e, d)
	}
}

// element takes in an element of the frontend's own.
func (f *front) element(e *nft.Element, d *nft.Decoded) {
	if e.Comment != "" {
		f.name = e.Comment
	}
	switch e.Set {
	case nft.Services, nft.NodePorts:
		f.program = d.Program
	case nft.ClusterPrograms, nft.NodePortClusterPrograms:
		f.views[nft.ClusterView] = d.Program
	case nft.LocalPrograms, nft.NodePortLocalPrograms:
		f.views[nft.LocalView] = d.Program
	case nft.Endpoints, nft.NodePortEndpoints:
		f.slots = append(f.slots, slotted{slot: d.Slot, addr: d.Endpoint})
	case nft.EndpointIDs, nft.NodePortEndpointIDs:
		f.ids = append(f.ids, slotted{slot: d.Slot, id: d.ID})
	case nft.EndpointsByID, nft.NodePortEndpointsByID:
		f.byID = append(f.byID, slotted{id: d.Slot, addr: d.Endpoint})
	case nft.RejectServices, nft.RejectNodePorts:
		f.refused = true
	case nft.DropServices, nft.DropNodePorts:
		f.dropped = true
	case nft.Restricted:
		f.restricted = true
	case nft.Steered:
		f.steered = true
	case nft.HostEndpoints:
		f.hostEndpoint = d.Endpoint
	case nft.Allowed:
		f.sources = append(f.sources, d.Range)
	}
}

// endpoints returns the endpoints of a view in slot order; an empty slot has the zero value.
func (f *front) endpoints(v nft.View) []netip.AddrPort {
	f.resolve()
	var out []netip.AddrPort
	for _, s := range f.slots {
		slot := nft.Slot(s.slot)
		if slot.View() != v {
			continue
		}
		for len(out) < slot.Index() {
			out = append(out, netip.AddrPort{})
		}
		out = append(out, s.addr)
	}
	return out
}

// resolve sorts the slots, after it has found the endpoints of sticky ones by their ids.
func (f *front) resolve() {
	if len(f.ids) > 0 {
		byID := make(map[uint32]netip.AddrPort, len(f.byID))
		for _, s := range f.byID {
			byID[s.id] = s.addr
		}
		for _, s := range f.ids {
			f.slots = append(f.slots, slotted{slot: s.slot, addr: byID[s.id]})
		}
		f.ids = nil
	}
	slices.SortFunc(f.slots, func(a, b slotted) int { return cmp.Compare(a.slot, b.slot) })
}

// owner is a Service port of one protocol: the DNS Service has two of one name.
type owner struct {
	name  string
	proto nft.Proto
}

// services groups the frontends by the Service port that their elements name.
func (c *collector) services() []ServicePort {
	groups := map[owner][]*front{}
	for _, f := range c.fronts {
		if f.name == "" {
			c.table.Orphans++
			continue
		}
		o := owner{f.name, f.proto}
		groups[o] = append(groups[o], f)
	}
	out := make([]ServicePort, 0, len(groups))
	for o, fronts := range groups {
		out = append(out, c.service(o, fronts))
	}
	Sort(out)
	return out
}

// Sort puts Service ports in the order of a Dump.
func Sort(s []ServicePort) {
	slices.SortFunc(s, func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol))
	})
}

// splitName takes "namespace/service:port" apart. A Service's name has no colon.
func splitName(name string) (namespace, service, port string) {
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		namespace, rest = "", name
	}
	service, port, _ = strings.Cut(rest, ":")
	return namespace, service, port
}

func prefixes(r nft.Range) (out []string) {
	for _, p := range r.Prefixes() {
		out = append(out, p.String())
	}
	return out
}

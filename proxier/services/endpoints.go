// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// flags are what the choice needs to know of an endpoint. Where two slices list one address and port, the greater
// flags count: a pod may have got the address of another one that is not quite gone, so what is not terminating comes
// first; the rest of the order only makes the outcome independent of that of the slices.
type flags uint16

const (
	unready  flags = 1 << iota // it does not answer
	forZone                    // a hint names this node's zone
	hasZones                   // a hint names a zone
	forNode                    // a hint names this node
	hasNodes                   // a hint names a node
	onNode                     // it runs on this node
	good                       // it answers: ready or serving
	draining                   // serving, but terminating, and not ready
	ready                      // new connections may go to it
	settled                    // it is not terminating
)

// entry is an endpoint of one port. It holds the address as numbers, IPv4 mapped into IPv6: without a pointer in it, 100,000
// of them are sorted in a third of the time that AddrPorts take.
type entry struct {
	high, low uint64
	port      uint16
	flags     flags
}

func newEntry(a netip.Addr, port uint16, f flags) entry {
	b := a.As16()
	return entry{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), port, f}
}

// addr is the address that the entry was made of.
func (e *entry) addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], e.high)
	binary.BigEndian.PutUint64(b[8:], e.low)
	return netip.AddrFrom16(b).Unmap()
}

// compare orders entries as netip.AddrPort does, and those of one address and port by flags, the greater first.
func (e entry) compare(o entry) int {
	switch {
	case e.high != o.high:
		return cmp.Compare(e.high, o.high)
	case e.low != o.low:
		return cmp.Compare(e.low, o.low)
	case e.port != o.port:
		return cmp.Compare(e.port, o.port)
	}
	return cmp.Compare(o.flags, e.flags)
}

// same reports that two entries are of one address and port.
func (e entry) same(o entry) bool { return e.high == o.high && e.low == o.low && e.port == o.port }

// target is the port number at which the endpoints of a slice serve a port of the Service.
type target struct {
	port, slice int32 // indices in the Service's ports and slices
	number      uint16
}

// portKey is what ties the port of a slice to that of a Service.
type portKey struct {
	name  kube.Sym
	proto kube.Proto
}

// fewPorts is up to how many ports a scan is cheaper than a map: both take about 50 ns per look-up there.
const fewPorts = 16

// appendTargets adds what the slices of a family serve of the ports, in order of the ports.
func appendTargets(out []target, ports []kube.ServicePort, all []*kube.EndpointSlice, f nft.Family) []target {
	index := indexPorts(ports)
	for si, s := range all {
		if s.IPv6 != (f == nft.IPv6) {
			continue
		}
		for _, sp := range s.Ports {
			if i := findPort(ports, index, portKey{sp.Name, sp.Proto}); i >= 0 {
				out = append(out, target{i, int32(si), sp.Port})
			}
		}
	}
	slices.SortFunc(out, func(a, b target) int { return cmp.Compare(a.port, b.port) })
	return out
}

// indexPorts returns the index of each port by its key, nil for few ports.
func indexPorts(ports []kube.ServicePort) map[portKey]int32 {
	if len(ports) <= fewPorts {
		return nil
	}
	index := make(map[portKey]int32, len(ports))
	for i := len(ports) - 1; i >= 0; i-- { // of two alike, which there should not be, the first counts
		index[portKey{ports[i].Name, ports[i].Proto}] = int32(i)
	}
	return index
}

// findPort returns the index of a port, -1 if there is no such port. index is nil for few ports.
func findPort(ports []kube.ServicePort, index map[portKey]int32, k portKey) int32 {
	if index != nil {
		if i, ok := index[k]; ok {
			return i
		}
		return -1
	}
	for i := range ports {
		if ports[i].Name == k.name && ports[i].Proto == k.proto {
			return int32(i)
		}
	}
	return -1
}

// chooser sees endpoints from this node.
type chooser struct {
	node       kube.Sym
	name, zone string
	// last are the hints seen last, and what they mean: neighbours in a slice often have the same.
	last      kube.Hints
	lastFlags flags
}

func newChooser(n Node) chooser {
	return chooser{node: kube.Intern(n.Name), name: n.Name, zone: n.Zone}
}

// flags judges an endpoint.
func (c *chooser) flags(e *kube.Endpoint) flags {
	f := c.hints(e.Hints)
	if e.Node == c.node && c.name != "" {
		f |= onNode
	}
	if e.Ready {
		f |= ready | good
	}
	if e.Serving {
		f |= good
		if e.Terminating && !e.Ready {
			f |= draining
		}
	}
	if f&good == 0 {
		f |= unready
	}
	if !e.Terminating {
		f |= settled
	}
	return f
}

func (c *chooser) hints(h kube.Hints) flags {
	if h == c.last {
		return c.lastFlags
	}
	var f flags
	if h.HasZones() {
		f |= hasZones
	}
	if h.ForZone(c.zone) {
		f |= forZone
	}
	if h.HasNodes() {
		f |= hasNodes
	}
	if h.ForNode(c.name) {
		f |= forNode
	}
	c.last, c.lastFlags = h, f
	return f
}

// gather adds the endpoints of one port, sorted and each once.
func (c *chooser) gather(out []entry, all []*kube.EndpointSlice, targets []target) []entry {
	n := 0
	for _, t := range targets {
		n += len(all[t.slice].Endpoints)
	}
	out = slices.Grow(out, n)
	for _, t := range targets {
		eps := all[t.slice].Endpoints
		for i := range eps {
			out = append(out, newEntry(eps[i].Addr, t.number, c.flags(&eps[i])))
		}
	}
	slices.SortFunc(out, entry.compare)
	return slices.CompactFunc(out, entry.same) // the first one stays
}

// choice holds the flags by which the endpoints of a view are known, 0 if it has none.
type choice struct {
	cluster, local flags
	served         bool // there is an endpoint on some node
}

// choose decides as kube-proxy does: ready endpoints, and where a view has none of them, those that still serve while
// they terminate (KEP-1669). Hints narrow the cluster view only, and only while there are ready endpoints.
func choose(es []entry) choice {
	var any, anyLocal, anyReady flags
	everyReady := ^flags(0)
	for i := range es {
		f := es[i].flags
		any |= f
		if f&onNode != 0 {
			anyLocal |= f
		}
		if f&ready != 0 {
			anyReady |= f
			everyReady &= f
		}
	}
	c := choice{cluster: usable(any), local: usable(anyLocal)}
	c.served = c.cluster != 0
	c.cluster |= topology(anyReady, everyReady) // of no endpoint, if none is ready
	if c.local != 0 {
		c.local |= onNode
	}
	return c
}

// usable is the flag of the endpoints that new connections may go to, 0 if there is none.
func usable(any flags) flags {
	switch {
	case any&ready != 0:
		return ready
	case any&draining != 0:
		return draining
	}
	return 0
}

// topology is the flag of the ready endpoints that hints give to this node: to the node itself or else to its zone. A
// kind of hint counts only if every ready endpoint has one and at least one of them names this node or zone
// (KEP-4444, KEP-3015). 0 is all.
func topology(some, every flags) flags {
	switch {
	case every&hasNodes != 0 && some&forNode != 0:
		return forNode
	case every&hasZones != 0 && some&forZone != 0:
		return forZone
	}
	return 0
}

// pick returns the endpoints that have all flags of a or all flags of b, in order; 0 matches none. If all of super,
// from which the caller knows them to be, are picked, they share its memory.
func pick(es []entry, super []netip.AddrPort, a, b flags) []netip.AddrPort {
	n := 0
	for i := range es {
		if es[i].flags.match(a) || es[i].flags.match(b) {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case len(super):
		return super
	}
	out := make([]netip.AddrPort, 0, n)
	for i := range es {
		if es[i].flags.match(a) || es[i].flags.match(b) {
			out = append(out, netip.AddrPortFrom(es[i].addr(), es[i].port))
		}
	}
	return out
}

// match reports whether all flags of mask are set; an empty mask matches nothing.
func (f flags) match(mask flags) bool { return mask != 0 && f&mask == mask }

// appendLocalReady adds the addresses of the ready endpoints on this node.
func appendLocalReady(out []netip.Addr, es []entry) []netip.Addr {
	for i := range es {
		if es[i].flags.match(onNode | ready) {
			out = append(out, es[i].addr())
		}
	}
	return out
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// comparison is of one family.
type comparison struct {
	s      *nft.Snapshot
	w      Wanted
	dec    *nft.Decoder
	table  TableDrift
	ports  map[owner]*ServiceDrift
	wanted map[owner]*nft.Service
	// known are the frontends of the kernel, with the slots as they are and the names that their elements have.
	known map[place]*front
	// fronts are who is wanted at a frontend.
	fronts map[place]owner
	// present counts the elements of each Service port that the kernel has, whatever their data. What shared sets hold may be
	// another's.
	present map[owner]int
}

func newComparison(s *nft.Snapshot, w Wanted) *comparison {
	c := &comparison{
		s: s, w: w, dec: nft.NewDecoder(s.Family), ports: map[owner]*ServiceDrift{}, wanted: map[owner]*nft.Service{},
		known: map[place]*front{}, fronts: map[place]owner{},
		present: map[owner]int{},
	}
	c.table = TableDrift{Family: s.Family.String(), Exists: s.Exists, ServicePorts: len(w.Services)}
	for _, svc := range w.Services {
		o := owner{svc.Name, svc.Proto}
		c.wanted[o] = svc
		for i := range svc.Frontends {
			f := &svc.Frontends[i]
			c.fronts[place{f.Addr, svc.Proto, f.Port}] = o
		}
	}
	c.readKnown()
	return c
}

// readKnown gathers the kernel's frontends.
func (c *comparison) readKnown() {
	for i := range c.s.Elements {
		e := &c.s.Elements[i]
		d, ok := c.dec.Decode(e)
		switch e.Set {
		case nft.ClusterIPs, nft.Hairpin, nft.NodePortAddresses, nft.Pods, nft.ServiceCIDRs:
			continue
		}
		if !ok {
			continue
		}
		p := place{d.Addr, d.Proto, d.Port}
		f := c.known[p]
		if f == nil {
			f = &front{place: p}
			c.known[p] = f
		}
		f.element(e, &d)
	}
}

// assign gives the Services that are wanted the slots and numbers that the kernel has, as the proxy does at its start; but a
// slot that somebody emptied does not make those behind it differ too.
func (c *comparison) assign() {
	numbers := nft.NewTable(c.s.Content)
	for _, svc := range c.w.Services {
		numbers.Number(svc)
		svc.Cluster = nft.AssignSlots(c.slots(svc, nft.ClusterView, svc.Cluster), svc.Cluster)
		svc.Local = nft.AssignSlots(c.slots(svc, nft.LocalView, svc.Local), svc.Local)
	}
}

// slots returns a view of the frontend that has most of the endpoints that are wanted, with gaps where it has none.
func (c *comparison) slots(svc *nft.Service, v nft.View, want []netip.AddrPort) []netip.AddrPort {
	var best []netip.AddrPort
	most := 0
	for i := range svc.Frontends {
		f := c.known[place{svc.Frontends[i].Addr, svc.Proto, svc.Frontends[i].Port}]
		if f == nil {
			continue
		}
		f.resolve()
		slots := f.inSlots(v, len(want))
		n := 0
		for i, e := range slots {
			if _, found := slices.BinarySearchFunc(want, e, netip.AddrPort.Compare); !found || slices.Contains(slots[:i], e) {
				slots[i] = netip.AddrPort{} // a gap; also the second of two that are the same
			} else {
				n++
			}
		}
		if n > most {
			most, best = n, slots
		}
		if n == len(want) {
			break
		}
	}
	return best
}

// inSlots returns the endpoints of a view by slot, below a number of slots and behind them none.
func (f *front) inSlots(v nft.View, n int) []netip.AddrPort {
	out := make([]netip.AddrPort, n)
	for _, s := range f.slots {
		if slot := nft.Slot(s.slot); slot.View() == v && slot.Index() < n {
			out[slot.Index()] = s.addr
		}
	}
	return out
}

// elements compares all elements.
func (c *comparison) elements() {
	have := make(map[nft.Element]nft.Element, len(c.s.Elements))
	for _, e := range c.s.Elements {
		have[keyOf(e)] = e
	}
	seen := make(map[nft.Element]bool, len(c.s.Elements))
	one := func(e nft.Element, o *owner) {
		k := keyOf(e)
		again := seen[k]
		if !again {
			seen[k] = true
			c.table.Elements++
		}
		switch was, ok := have[k]; {
		case !ok:
			c.differ(o, &e, Difference{Change: Missing, Want: c.datum(&e)})
		case was != e:
			c.differ(o, &e, Difference{Change: Different, Have: c.datum(&was), Want: c.datum(&e)})
			c.count(o, &e)
		default:
			c.count(o, &e)
		}
	}
	for _, e := range c.w.Node {
		one(e, nil)
	}
	for _, svc := range c.w.Services {
		o := owner{svc.Name, svc.Proto}
		for _, e := range nft.Elements(svc) {
			one(e, &o)
		}
	}
	for _, e := range c.s.Elements {
		if seen[keyOf(e)] {
			continue
		}
		owners := c.ownersOf(&e)
		for i := range owners {
			c.differ(&owners[i], &e, Difference{Change: Extra, Have: c.datum(&e)})
			c.count(&owners[i], &e)
		}
		if len(owners) == 0 {
			c.differ(nil, &e, Difference{Change: Extra, Have: c.datum(&e)})
		}
	}
}

// keyOf is an element without what may differ.
func keyOf(e nft.Element) nft.Element { return nft.Element{Set: e.Set, Key: e.Key, End: e.End} }

// port returns the entry of a Service port.
func (c *comparison) port(o owner) *ServiceDrift {
	p := c.ports[o]
	if p == nil {
		p = &ServiceDrift{Name: o.name, Family: c.table.Family, Protocol: o.proto.String()}
		p.Namespace, p.Service, p.Port = splitName(o.name)
		c.ports[o] = p
	}
	return p
}

// differ notes a difference with its owner, or with the table if there is none.
func (c *comparison) differ(o *owner, e *nft.Element, d Difference) {
	d.Set, d.Key = e.Set.String(), c.key(e)
	if o == nil {
		c.table.Differences = append(c.table.Differences, d)
		return
	}
	p := c.port(*o)
	p.Differences = append(p.Differences, d)
}

// count notes that the kernel has something of a Service port.
func (c *comparison) count(o *owner, e *nft.Element) {
	if o != nil && e.Set != nft.ClusterIPs && e.Set != nft.Hairpin {
		c.present[*o]++
	}
}

// ownersOf tells whose an element of the kernel is that nobody wants.
func (c *comparison) ownersOf(e *nft.Element) []owner {
	d, ok := c.dec.Decode(e)
	if !ok {
		return nil
	}
	switch e.Set {
	case nft.Pods, nft.ServiceCIDRs, nft.NodePortAddresses:
		return nil
	case nft.ClusterIPs:
		return c.knownBy(func(f *front) bool { return f.addr == d.Addr })
	case nft.Hairpin:
		at := netip.AddrPortFrom(d.Addr, d.Port)
		return c.knownBy(func(f *front) bool {
			return f.proto == d.Proto && slices.ContainsFunc(f.slots, func(s slotted) bool { return s.addr == at })
		})
	}
	p := place{d.Addr, d.Proto, d.Port}
	if o, ok := c.fronts[p]; ok {
		return []owner{o}
	}
	if f := c.known[p]; f != nil && f.name != "" {
		return []owner{{f.name, d.Proto}}
	}
	return nil
}

// knownBy returns the owners of the kernel's frontends that satisfy a condition, each once. It looks at all: what asks is
// rare.
func (c *comparison) knownBy(is func(*front) bool) []owner {
	var out []owner
	for p, f := range c.known {
		o, ok := c.fronts[p]
		if !ok && f.name != "" {
			o, ok = owner{f.name, p.proto}, true
		}
		f.resolve()
		if ok && is(f) && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b owner) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.proto, b.proto)) })
	return out
}

// key prints the key of an element.
func (c *comparison) key(e *nft.Element) string {
	d, ok := c.dec.Decode(e)
	if !ok {
		return fmt.Sprintf("%x", e.Key)
	}
	f := front{place: place{d.Addr, d.Proto, d.Port}}
	switch e.Set {
	case nft.ClusterIPs, nft.NodePortAddresses:
		return d.Addr.String()
	case nft.Pods, nft.ServiceCIDRs:
		return strings.Join(prefixes(d.Range), ",")
	case nft.Hairpin:
		return fmt.Sprintf("%s %s", d.Proto, netip.AddrPortFrom(d.Addr, d.Port))
	case nft.Allowed:
		return fmt.Sprintf("%s %s from %s", d.Proto, &f, strings.Join(prefixes(d.Range), ","))
	case nft.Endpoints, nft.NodePortEndpoints, nft.EndpointIDs, nft.NodePortEndpointIDs:
		return fmt.Sprintf("%s %s %s %d", d.Proto, &f, nft.Slot(d.Slot).View(), nft.Slot(d.Slot).Index())
	case nft.EndpointsByID, nft.NodePortEndpointsByID:
		return fmt.Sprintf("%s %s id 0x%08x", d.Proto, &f, d.Slot)
	}
	return fmt.Sprintf("%s %s", d.Proto, &f)
}

// datum prints the datum of an element, and its comment where it has no datum.
func (c *comparison) datum(e *nft.Element) string {
	d, ok := c.dec.Decode(e)
	text := ""
	switch {
	case !ok:
		return fmt.Sprintf("%x", e.Data)
	case d.Program != 0:
		text = d.Program.Chain()
	case d.Endpoint.IsValid():
		text = d.Endpoint.String()
	case d.ID != 0:
		text = fmt.Sprintf("id 0x%08x", d.ID)
	}
	if e.Comment != "" {
		text = strings.TrimPrefix(text+" # "+e.Comment, " ")
	}
	return text
}

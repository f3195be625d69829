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

// comparison is that of one family.
type comparison struct {
	*Ruleset
	w      Wanted
	table  TableDrift
	ports  map[owner]*ServiceDrift
	wanted map[owner]bool
	// owners are the Service ports that are wanted at a frontend.
	owners map[Key]owner
	// present counts the elements of each Service port that the kernel has, with whatever data, but for those of shared
	// sets, which may be another's.
	present map[owner]int
}

func newComparison(r *Ruleset, w Wanted) *comparison {
	c := &comparison{
		Ruleset: r, w: w, ports: map[owner]*ServiceDrift{}, wanted: map[owner]bool{}, owners: map[Key]owner{}, present: map[owner]int{},
		table: TableDrift{Family: r.Family.String(), Exists: r.Exists, ServicePorts: len(w.Services)},
	}
	for _, svc := range w.Services {
		o := ownerOf(svc)
		c.wanted[o] = true
		for i := range svc.Frontends {
			c.owners[Key{svc.Frontends[i].Addr, svc.Proto, svc.Frontends[i].Port}] = o
		}
	}
	return c
}

func ownerOf(s *nft.Service) owner { return owner{Printable(s.Name), s.Proto} }

// assign gives the wanted Services the slots and affinity numbers that the kernel has, as the proxy does at its start; but
// an empty slot does not move the endpoints behind it.
func (c *comparison) assign() {
	numbers := nft.NewTable(c.Content)
	for _, svc := range c.w.Services {
		numbers.Number(svc)
		svc.Cluster = nft.AssignSlots(c.slots(svc, nft.ClusterView, svc.Cluster), svc.Cluster)
		svc.Local = nft.AssignSlots(c.slots(svc, nft.LocalView, svc.Local), svc.Local)
	}
}

// slots returns a view of the frontend that has most of the wanted endpoints, with a gap for each that is not wanted.
func (c *comparison) slots(svc *nft.Service, v nft.View, want []netip.AddrPort) []netip.AddrPort {
	var best []netip.AddrPort
	most := 0
	for i := range svc.Frontends {
		f := c.frontends[Key{svc.Frontends[i].Addr, svc.Proto, svc.Frontends[i].Port}]
		if f == nil {
			continue
		}
		slots, n := make([]netip.AddrPort, len(want)), 0
		for _, s := range f.slots {
			slot := nft.Slot(s.slot)
			_, wanted := slices.BinarySearchFunc(want, s.addr, netip.AddrPort.Compare)
			if slot.View() == v && slot.Index() < len(want) && wanted && !slices.Contains(slots, s.addr) {
				slots[slot.Index()] = s.addr
				n++
			}
		}
		if n > most {
			most, best = n, slots
		}
	}
	return best
}

// elements compares all elements.
func (c *comparison) elements() {
	have := make(map[nft.Element]nft.Element, len(c.Elements))
	for _, e := range c.Elements {
		have[keyOf(&e)] = e
	}
	seen := make(map[nft.Element]bool, len(c.Elements))
	compare := func(e nft.Element, o *owner) {
		k := keyOf(&e)
		if !seen[k] {
			seen[k] = true
			c.table.Elements++
		}
		was, ok := have[k]
		switch {
		case !ok:
			c.differ(o, &e, Difference{Change: Missing, Want: c.datum(&e)})
			return
		case was != e:
			c.differ(o, &e, Difference{Change: Different, Have: c.datum(&was), Want: c.datum(&e)})
		}
		c.count(o, &e)
	}
	for _, e := range c.w.Node {
		compare(e, nil)
	}
	for _, svc := range c.w.Services {
		o := ownerOf(svc)
		for _, e := range nft.Elements(svc) {
			compare(e, &o)
		}
	}
	for _, e := range c.Elements {
		if seen[keyOf(&e)] {
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

// keyOf is an element without its datum and comment.
func keyOf(e *nft.Element) nft.Element { return nft.Element{Set: e.Set, Key: e.Key, End: e.End} }

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

// differ adds a difference to its owner, or to the table if there is none.
func (c *comparison) differ(o *owner, e *nft.Element, d Difference) {
	d.Set, d.Key = e.Set.String(), c.key(e)
	list := &c.table.Differences
	if o != nil {
		list = &c.port(*o).Differences
	}
	*list = append(*list, d)
}

func (c *comparison) count(o *owner, e *nft.Element) {
	if o != nil && e.Set != nft.ClusterIPs && e.Set != nft.Hairpin {
		c.present[*o]++
	}
}

// ownersOf returns the Service ports that an element of the kernel belongs to which is not wanted.
func (c *comparison) ownersOf(e *nft.Element) []owner {
	d, ok := c.decoder.Decode(e)
	if !ok {
		return nil
	}
	switch e.Set {
	case nft.Pods, nft.ServiceCIDRs, nft.NodePortAddresses:
		return nil
	case nft.ClusterIPs:
		return c.ownersBy(func(f *frontend) bool { return f.Addr == d.Addr })
	case nft.Hairpin:
		at := netip.AddrPortFrom(d.Addr, d.Port)
		return c.ownersBy(func(f *frontend) bool {
			return f.Proto == d.Proto && slices.ContainsFunc(f.slots, func(s slotted) bool { return s.addr == at })
		})
	}
	k := Key{d.Addr, d.Proto, d.Port}
	if o, ok := c.owners[k]; ok {
		return []owner{o}
	}
	if f := c.frontends[k]; f != nil && f.name != "" {
		return []owner{{f.name, d.Proto}}
	}
	return nil
}

// ownersBy returns the owners of the kernel's frontends that satisfy a condition, each once. It looks at all of them; elements
// that are not wanted are rare.
func (c *comparison) ownersBy(is func(*frontend) bool) []owner {
	var out []owner
	for k, f := range c.frontends {
		if !is(f) {
			continue
		}
		o, ok := c.owners[k]
		if !ok {
			o = owner{f.name, k.Proto}
		}
		if o.name != "" && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b owner) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.proto, b.proto)) })
	return out
}

// key prints the key of an element.
func (c *comparison) key(e *nft.Element) string {
	d, ok := c.decoder.Decode(e)
	if !ok {
		return fmt.Sprintf("%x", e.Key)
	}
	frontend := fmt.Sprintf("%s %s", d.Proto, Key{d.Addr, d.Proto, d.Port})
	switch e.Set.Group() {
	case nft.ClusterIPs, nft.NodePortAddresses:
		return d.Addr.String()
	case nft.Pods, nft.ServiceCIDRs:
		return strings.Join(prefixes(d.Range), ",")
	case nft.Allowed:
		return frontend + " from " + strings.Join(prefixes(d.Range), ",")
	case nft.Endpoints, nft.NodePortEndpoints, nft.EndpointIDs, nft.NodePortEndpointIDs:
		return fmt.Sprintf("%s %s %d", frontend, nft.Slot(d.Slot).View(), nft.Slot(d.Slot).Index())
	case nft.EndpointsByID, nft.NodePortEndpointsByID:
		return fmt.Sprintf("%s id 0x%08x", frontend, d.Slot)
	}
	return frontend
}

// datum prints the datum of an element and its comment.
func (c *comparison) datum(e *nft.Element) string {
	d, ok := c.decoder.Decode(e)
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
		text = strings.TrimPrefix(text+" # "+Printable(e.Comment), " ")
	}
	return text
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
)

// SlotRecovery is the order of endpoints in a table's content, so that after a restart slots stay as
// they are and nothing has to be written.
type SlotRecovery struct {
	family Family
	index  *elementIndex
}

// NewSlotRecovery indexes the content of a table.
func NewSlotRecovery(c *Content) *SlotRecovery {
	return &SlotRecovery{c.Family, newElementIndex(c.Elements)}
}

// Adopt reorders the endpoints of a Service as the table has them.
func (m *SlotRecovery) Adopt(s *Service) {
	for _, v := range []View{ClusterView, LocalView} {
		if len(s.endpoints(v)) == 0 {
			continue
		}
		order := AssignSlots(m.slots(s, v), s.endpoints(v))
		if v == LocalView {
			s.Local = order
		} else {
			s.Cluster = order
		}
	}
}

// slots returns what the first frontend with endpoints of a view has in its slots.
func (m *SlotRecovery) slots(s *Service, v View) []netip.AddrPort {
	for i := range s.Frontends {
		var out []netip.AddrPort
		for e := m.at(s, &s.Frontends[i], v, 0); e.IsValid(); e = m.at(s, &s.Frontends[i], v, len(out)) {
			out = append(out, e)
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// at returns the endpoint in a slot, the zero value if there is none.
func (m *SlotRecovery) at(s *Service, f *Frontend, v View, i int) netip.AddrPort {
	direct, toID, byID := Endpoints, EndpointIDs, EndpointsByID
	if f.Kind == NodePort {
		direct, toID, byID = NodePortEndpoints, NodePortEndpointIDs, NodePortEndpointsByID
	}
	var buf [28]byte // an IPv6 VIP of 24 and a slot, or an id, of 4
	front := appendFrontend(buf[:0], s.Proto, f)
	slot := appendClassID(front, uint32(NewSlot(v, i)))
	data := m.index.data(direct, slot)
	if data == "" {
		if id := m.index.data(toID, slot); id != "" {
			data = m.index.data(byID, append(front, id...))
		}
	}
	return decodeEndpoint(m.family, data)
}

func decodeEndpoint(f Family, data string) netip.AddrPort {
	d := decoder{data, true}
	if e := netip.AddrPortFrom(d.addr(f), d.port()); d.ok {
		return e
	}
	return netip.AddrPort{}
}

// Offered is a frontend that a table leads somewhere, and where to.
type Offered struct {
	Addr      netip.Addr // zero for a NodePort
	Proto     Proto
	Port      uint16
	Endpoints []netip.AddrPort // of both views, in no order, possibly repeated
}

// Offered lists what the table leads to endpoints.
func (c *Content) Offered() (out []Offered) {
	type frontend struct {
		addr  netip.Addr
		proto Proto
		port  uint16
	}
	index, decoder := map[frontend]int{}, NewDecoder(c.Family)
	for j := range c.Elements {
		switch c.Elements[j].Set {
		case Endpoints, NodePortEndpoints, EndpointsByID, NodePortEndpointsByID:
		default:
			continue
		}
		d, ok := decoder.Decode(&c.Elements[j])
		if !ok {
			continue
		}
		at := frontend{d.Addr, d.Proto, d.Port}
		i, known := index[at]
		if !known {
			i = len(out)
			index[at] = i
			out = append(out, Offered{Addr: d.Addr, Proto: d.Proto, Port: d.Port})
		}
		out[i].Endpoints = append(out[i].Endpoints, d.Endpoint)
	}
	return out
}

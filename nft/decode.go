// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
)

// Decoded is an element of a named set or map as values. What the set does not have is zero.
type Decoded struct {
	// Addr, Proto and Port are the VIP, the NodePort (without an address) or the member of a set of addresses.
	Addr  netip.Addr
	Proto Proto
	Port  uint16
	// Slot is the slot or, in the maps by id, the endpoint id of the key.
	Slot uint32
	// Range is what an interval covers; in Hairpin both ends are the endpoint's address.
	Range Range
	// Program is the datum of a map of programs, ID that of a map of endpoint ids, Endpoint that of a map of endpoints.
	Program  Program
	ID       uint32
	Endpoint netip.AddrPort
}

// Decoder decodes elements of one family's table.
type Decoder struct {
	f     Family
	specs map[SetID]setSpec
}

// NewDecoder returns the Decoder of a family.
func NewDecoder(f Family) *Decoder { return &Decoder{f, map[SetID]setSpec{}} }

// Decode is the inverse of what made the element. ok is false when the key or the datum is shorter than the set's
// declaration says.
func (t *Decoder) Decode(e *Element) (d Decoded, ok bool) {
	f := t.f
	spec, known := t.specs[e.Set]
	if !known {
		spec = e.Set.spec()
		t.specs[e.Set] = spec
	}
	key := decoder{e.Key, true}
	for i, field := range spec.key {
		switch {
		case field == fieldAddr && i == 0:
			d.Addr = key.addr(f)
		case field == fieldAddr:
			a := key.addr(f)
			d.Range = Range{From: a, To: a}
		case field == fieldProto:
			d.Proto = key.proto()
		case field == fieldPort:
			d.Port = key.port()
		case field == fieldClassID:
			d.Slot = key.classID()
		}
	}
	d.decodeRange(f, e, &spec)
	return d, d.decodeDatum(f, e, &spec) && key.ok
}

// decodeRange finds the addresses of an interval, or of the masked source behind a VIP.
func (d *Decoded) decodeRange(f Family, e *Element, spec *setSpec) {
	switch {
	case e.Set > Allowed:
		if p := netip.PrefixFrom(d.Range.From, e.Set.sourceBits()); p.IsValid() {
			d.Range.To = lastAddr(p)
		}
	case !spec.interval:
	case e.End == "": // up to the last address of all
		d.Range = Range{From: d.Addr, To: lastAddr(netip.PrefixFrom(d.Addr, 0))}
	default:
		end, _ := netip.AddrFromSlice([]byte(e.End))
		d.Range = Range{From: d.Addr, To: end.Prev()}
	}
}

func (d *Decoded) decodeDatum(f Family, e *Element, spec *setSpec) bool {
	data := decoder{e.Data, true}
	switch {
	case !spec.isMap():
	case spec.data[0] == fieldAddr:
		d.Endpoint = netip.AddrPortFrom(data.addr(f), data.port())
	case e.Set == EndpointIDs || e.Set == NodePortEndpointIDs:
		d.ID = data.classID()
	default:
		d.Program = Program(data.classID())
	}
	return data.ok
}

// View returns the view that the slot belongs to.
func (s Slot) View() View { return View(s >> 24) }

// Index returns the place of the slot in its view.
func (s Slot) Index() int { return int(s & maxProgramArg) }

// Prefixes returns the fewest prefixes that cover a range.
func (r Range) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for from := r.From; from.IsValid() && from.Compare(r.To) <= 0; {
		bits := from.BitLen()
		for bits > 0 {
			p := netip.PrefixFrom(from, bits-1)
			if p.Masked().Addr() != from || r.To.Less(lastAddr(p)) {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(from, bits)
		out = append(out, p)
		from = lastAddr(p).Next()
	}
	return out
}

// Contains tells whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool { return r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 }

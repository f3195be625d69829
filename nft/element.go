// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Element is one element of a named set or map, in wire form. It is comparable: two elements are the same
// if and only if the kernel would hold the same.
type Element struct {
	Set SetID
	// Key is the key as the kernel compares it: the fields one after the other, each padded with zeros to a
	// multiple of 4 bytes (NFT_REG32_SIZE); addresses and ports big endian, classids in host order.
	Key string
	// End is the first key after an interval, and empty elsewhere or if the interval ends with the last key of all.
	End string
	// Data is the datum of a map, in the same form; of a verdict map it is text as "goto cluster-3".
	Data string
	// Comment is shown by nft.
	Comment string
}

// sameKey reports whether the kernel cannot hold both. The end of an interval and the start of the next may be one address.
func (e *Element) sameKey(o *Element) bool {
	return e.Set == o.Set && e.Key == o.Key && e.End == o.End && (e.Data == IntervalEnd) == (o.Data == IntervalEnd)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func appendProto(b []byte, p Proto) []byte { return append(b, byte(p), 0, 0, 0) }

func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

func appendClassID(b []byte, v uint32) []byte { return binary.NativeEndian.AppendUint32(b, v) }

// appendFrontend appends the key by which a frontend is looked up: with its address, or without for a NodePort.
func appendFrontend(b []byte, p Proto, f *Frontend) []byte {
	if f.Kind != NodePort {
		b = appendAddr(b, f.Addr)
	}
	return appendPort(appendProto(b, p), f.Port)
}

func appendEndpoint(b []byte, e netip.AddrPort) []byte {
	return appendPort(appendAddr(b, e.Addr()), e.Port())
}

func addrKey(a netip.Addr) string { return string(appendAddr(nil, a)) }

// decoder reads fields back from wire form.
type decoder struct {
	b  string
	ok bool
}

func (d *decoder) take(n int) string {
	if len(d.b) < n {
		d.ok = false
		return zeros[:n]
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// zeros are as many as the longest field has.
const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func (d *decoder) addr(f Family) netip.Addr {
	var b [16]byte
	a, _ := netip.AddrFromSlice(b[:copy(b[:], d.take(f.AddrLen()))])
	return a
}

func (d *decoder) proto() Proto { return Proto(d.take(4)[0]) }

func (d *decoder) port() uint16 { return binary.BigEndian.Uint16([]byte(d.take(4)[:2])) }

func (d *decoder) classID() uint32 { return binary.NativeEndian.Uint32([]byte(d.take(4))) }

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

// Decode is the inverse of what made the element. ok is false if the key or the datum is shorter than the set
// declares.
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
	d.decodeRange(e, &spec)
	return d, d.decodeDatum(f, e, &spec) && key.ok
}

// decodeRange finds the addresses of an interval, or of the masked source behind a VIP.
func (d *Decoded) decodeRange(e *Element, spec *setSpec) {
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

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool { return r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 }

// IntervalEnd is the datum of an element that ends an interval, while a set is being read.
const IntervalEnd = "end"

// MergePrefixes returns the fewest prefixes that cover the same addresses, in order.
func MergePrefixes(prefixes []netip.Prefix) (out []netip.Prefix) {
	for _, r := range MergeRanges(prefixes) {
		out = append(out, r.Prefixes()...)
	}
	return out
}

// MergeRanges returns the ranges that cover the same addresses as the prefixes, disjoint, none next to
// another, in order: interval sets refuse what overlaps.
func MergeRanges(prefixes []netip.Prefix) []Range {
	var out []Range
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range sorted {
		r := Range{From: p.Masked().Addr(), To: lastAddr(p)}
		if n := len(out); n > 0 && out[n-1].To.BitLen() == r.From.BitLen() {
			if next := out[n-1].To.Next(); !next.IsValid() || r.From.Compare(next) <= 0 {
				if out[n-1].To.Less(r.To) {
					out[n-1].To = r.To
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// RangeElements returns the elements of a plain interval set that cover the prefixes of the family. The end
// of a range is the first address behind it; a range that ends with the last address of all has none.
func RangeElements(set SetID, f Family, prefixes []netip.Prefix) []Element {
	var own []netip.Prefix
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			own = append(own, p)
		}
	}
	var out []Element
	for _, r := range MergeRanges(own) {
		e := Element{Set: set, Key: addrKey(r.From)}
		if next := r.To.Next(); next.IsValid() {
			e.End = addrKey(next)
		}
		out = append(out, e)
	}
	return out
}

// AddrElements returns the elements of a set of single addresses of the family, without repetitions.
func AddrElements(set SetID, f Family, addrs []netip.Addr) []Element {
	var out []Element
	for _, a := range addrs {
		if FamilyOf(a) == f {
			out = append(out, Element{Set: set, Key: addrKey(a)})
		}
	}
	slices.SortFunc(out, func(a, b Element) int { return cmp.Compare(a.Key, b.Key) })
	return slices.Compact(out)
}

// JoinIntervals makes ranges of the starts and ends that the kernel lists, in whatever order.
func JoinIntervals(points []Element) []Element {
	slices.SortFunc(points, func(a, b Element) int {
		// Where one range ends and the next begins at once, the end comes first.
		return cmp.Or(cmp.Compare(a.Key, b.Key), -cmp.Compare(a.Data, b.Data))
	})
	var out []Element
	open := false
	for _, p := range points {
		switch {
		case p.Data != IntervalEnd:
			out = append(out, p)
			open = true
		case open:
			out[len(out)-1].End = p.Key
			open = false
		}
	}
	return out
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"net/netip"
	"slices"
)

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

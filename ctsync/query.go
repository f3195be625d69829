// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Query is one dump: which entries the kernel is asked for. Zero values mean any. All of it is about cost: every entry
// that comes is decided on, and a kernel that does not know a filter returns more entries, never fewer.
type Query struct {
	Family nl.Family
	Proto  Proto
	Port   uint16
	Dst    netip.Addr // IPv4 only; needs Proto
	DNAT   bool       // only entries whose destination was translated
}

// Caps are the filters of dumps that the running kernel has.
type Caps struct {
	// Tuple: by parts of the original tuple (CTA_FILTER, Linux 5.8).
	Tuple bool
	// Status: by status bits (CTA_STATUS and CTA_STATUS_MASK, Linux 5.15).
	Status bool
}

const (
	// maxSparse is the number of entries up to which the kernel may be asked for a few entries only. It walks the table
	// with soft interrupts off until a buffer of answers is full, and meanwhile one CPU receives no packets: 5 ms for
	// 10,000 entries in the 262,144 buckets of the default, but 285 ms for 1,000,000 (Linux 6.18, BenchmarkWalk).
	maxSparse = 20_000
	// minShare of the entries have to match a filter in a larger table. A buffer holds some 170 entries and the walk
	// passes an entry that does not match in 0.28 µs, so that 1/20 keeps each stretch below 170*20*0.28 µs = 1 ms.
	minShare = 20
	// maxWalks is the number of narrow dumps that together cost no more than one of everything: at 10,000 entries 5 ms
	// each against 13 ms.
	maxWalks = 2
)

// Queries returns the dumps that together show every entry that d has to check in a table of that many entries.
func (d *Due) Queries(caps Caps, entries int, c *Census) []Query {
	if d.Full {
		return []Query{{}}
	}
	narrow := d.narrow()
	if caps.Tuple && entries <= maxSparse && len(narrow) <= maxWalks {
		return narrow
	}
	family, proto := narrow[0].Family, narrow[0].Proto
	for _, q := range narrow {
		if q.Family != family {
			family = 0
		}
		if q.Proto != proto {
			proto = 0
		}
	}
	best, least := Query{}, c.count(Query{})
	for _, q := range []Query{{Family: family}, {DNAT: true}, {Family: family, DNAT: true},
		{Family: family, Proto: proto}, {Family: family, Proto: proto, DNAT: true}} {
		if q.Proto != 0 && (q.Family == 0 || !caps.Tuple) || q.DNAT && (d.Fresh || !caps.Status) {
			continue
		}
		if n := c.count(q); entries <= maxSparse || n <= least && n*minShare >= entries {
			best, least = q, n // of a small table the last one, which is the narrowest
		}
	}
	return []Query{best}
}

// narrow returns one query per family and protocol, each as narrow as its frontends allow: on one port if they share
// it, on one address if there is one frontend only.
func (d *Due) narrow() []Query {
	var out []Query
	for f := range d.checks {
		q := Query{Family: nl.FamilyOf(f.Addr), Proto: f.Proto, Port: f.Port}
		if f.Addr.Is4() && !f.Addr.IsUnspecified() {
			q.Dst = f.Addr
		}
		i := slices.IndexFunc(out, func(o Query) bool { return o.Family == q.Family && o.Proto == q.Proto })
		if i < 0 {
			out = append(out, q)
			continue
		}
		if out[i].Port != q.Port {
			out[i].Port = 0
		}
		if out[i].Dst != q.Dst {
			out[i].Dst = netip.Addr{}
		}
	}
	slices.SortFunc(out, func(a, b Query) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}

// Census is the number of entries of each kind that the last dumps have shown: by protocol (bits 0 and 1), family (bit
// 2) and translation (bit 3).
type Census [16]int

// protos are the protocols by the lowest bits of a kind.
func protos() [4]Proto { return [4]Proto{0, TCP, UDP, SCTP} }

// Add counts an entry.
func (c *Census) Add(f *Flow) {
	protos := protos()
	kind := max(0, slices.Index(protos[:], f.Proto))
	if f.Src.Addr().Is6() {
		kind |= 4
	}
	if f.Translated() {
		kind |= 8
	}
	c[kind]++
}

// Replace takes over from seen what a dump of q has counted.
func (c *Census) Replace(q Query, seen *Census) {
	for kind := range c {
		if q.matches(kind) && q.Port == 0 {
			c[kind] = seen[kind]
		}
	}
}

// count returns the number of entries that match q, which has neither port nor address.
func (c *Census) count(q Query) (n int) {
	for kind := range c {
		if q.matches(kind) {
			n += c[kind]
		}
	}
	return n
}

func (q Query) matches(kind int) bool {
	family := nl.IPv4
	if kind&4 != 0 {
		family = nl.IPv6
	}
	return (q.Family == 0 || q.Family == family) && (q.Proto == 0 || q.Proto == protos()[kind&3]) && (!q.DNAT || kind&8 != 0)
}

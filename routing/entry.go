// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Family is an address family in the kernel's own numbers (AF_INET, AF_INET6).
type Family uint8

// The two families. There is no third, and no code path that serves only one.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// FamilyOf tells the family of a. IPv4-mapped IPv6 addresses count as IPv6: [Config.Normalize] refuses them.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Kind is what an [Entry] is; its order is the order of additions (see [rank]).
type Kind uint8

// The kinds of entries.
const (
	KindSysctl Kind = iota
	KindAddress
	KindNeighbour
	KindRoute
	KindRule
	kinds // their number
)

// String returns the kind as metrics and logs name it.
func (k Kind) String() string {
	return [kinds]string{"sysctl", "address", "neighbour", "route", "rule"}[k]
}

// Kinds lists all kinds, for metrics that want every label from the start.
func Kinds() []Kind {
	return []Kind{KindSysctl, KindAddress, KindNeighbour, KindRoute, KindRule}
}

// Entry is one thing in the kernel: a comparable value, so that equality is == and sets are maps.
// The set of types is closed: [Address], [Route], [Rule], [Neighbour], [LooseRPF].
type Entry interface {
	// Kind tells which of the five types it is.
	Kind() Kind
	// Family tells which half of the stack it belongs to.
	Family() Family
	// Text prints the entry as iproute2 would take it; name turns an interface index into a name.
	Text(name func(index int) string) string

	// slot is what the kernel holds once: two entries with one slot replace each other.
	slot() any
}

// Address is an address of ours on an interface.
//
// It is never chosen as the source of ordinary traffic: IPv4 gets scope host, IPv6 a preferred lifetime of 0.
// It brings no prefix route either (IFA_F_NOPREFIXROUTE); that route is an entry of its own.
type Address struct {
	Index  int          // of the interface
	Prefix netip.Prefix // the address itself with its prefix length, not masked
}

// Route is a unicast route with one next hop.
type Route struct {
	Table   uint32
	Dst     netip.Prefix // masked
	Metric  uint32       // never 0: the kernel would make 1024 of it in IPv6
	Index   int          // of the outgoing interface
	Gateway netip.Addr   // invalid: the destination is on link
	OnLink  bool         // the gateway counts as on link although no prefix of the interface covers it (IPv6: since 4.16)
	Source  netip.Addr   // preferred source; invalid: the kernel's choice
	MTU     uint32       // 0: that of the interface
}

// Rule sends packets with a mark to a routing table (FRA_PROTOCOL, which names us as the owner: since 4.17).
type Rule struct {
	Fam      Family
	Priority uint32
	Mark     uint32
	Mask     uint32
	Table    uint32
}

// Neighbour is a permanent neighbour entry (NDA_PROTOCOL, which names us as the owner: since 4.20).
type Neighbour struct {
	Index int
	Addr  netip.Addr
	MAC   MAC
}

// LooseRPF says that reverse path filtering of an interface is not strict: rp_filter is 2, or 0 with conf.all at 0.
// It is set, never undone: nobody knows what it was for. IPv6 has no such setting.
type LooseRPF struct {
	Index int
}

// Kind implements [Entry].
func (Address) Kind() Kind { return KindAddress }

// Kind implements [Entry].
func (Route) Kind() Kind { return KindRoute }

// Kind implements [Entry].
func (Rule) Kind() Kind { return KindRule }

// Kind implements [Entry].
func (Neighbour) Kind() Kind { return KindNeighbour }

// Kind implements [Entry].
func (LooseRPF) Kind() Kind { return KindSysctl }

// Family implements [Entry].
func (a Address) Family() Family { return FamilyOf(a.Prefix.Addr()) }

// Family implements [Entry].
func (r Route) Family() Family { return FamilyOf(r.Dst.Addr()) }

// Family implements [Entry].
func (r Rule) Family() Family { return r.Fam }

// Family implements [Entry].
func (n Neighbour) Family() Family { return FamilyOf(n.Addr) }

// Family implements [Entry].
func (LooseRPF) Family() Family { return IPv4 }

// The slots, as the kernel compares: an IPv6 address once per interface whatever its prefix length, a route
// once per table, destination and metric (we never make siblings), a rule by all it says.
type (
	addressSlot struct {
		index int
		addr  netip.Addr
	}
	routeSlot struct {
		table  uint32
		dst    netip.Prefix
		metric uint32
	}
	neighbourSlot struct {
		index int
		addr  netip.Addr
	}
)

func (a Address) slot() any   { return addressSlot{a.Index, a.Prefix.Addr()} }
func (r Route) slot() any     { return routeSlot{r.Table, r.Dst, r.Metric} }
func (r Rule) slot() any      { return r }
func (n Neighbour) slot() any { return neighbourSlot{n.Index, n.Addr} }
func (l LooseRPF) slot() any  { return l }

// Text implements [Entry].
func (a Address) Text(name func(int) string) string {
	return fmt.Sprintf("address %s dev %s", a.Prefix, name(a.Index))
}

// Text implements [Entry].
func (r Route) Text(name func(int) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "route %s", r.Dst)
	if r.Gateway.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Gateway)
	}
	fmt.Fprintf(&b, " dev %s", name(r.Index))
	if r.OnLink {
		b.WriteString(" onlink")
	}
	if r.Source.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Source)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	fmt.Fprintf(&b, " metric %d", r.Metric)
	if r.Table != tableMain {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}

// Text implements [Entry].
func (r Rule) Text(func(int) string) string {
	mark := fmt.Sprintf("%#x", r.Mark)
	if r.Mask != ^uint32(0) {
		mark += fmt.Sprintf("/%#x", r.Mask)
	}
	return fmt.Sprintf("rule %s priority %d fwmark %s lookup %d", r.Fam, r.Priority, mark, r.Table)
}

// Text implements [Entry].
func (n Neighbour) Text(name func(int) string) string {
	return fmt.Sprintf("neighbour %s lladdr %s dev %s permanent", n.Addr, n.MAC, name(n.Index))
}

// Text implements [Entry].
func (l LooseRPF) Text(name func(int) string) string {
	return fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2", name(l.Index))
}

// Set is a set of entries with at most one per slot.
type Set map[Entry]struct{}

// NewSet returns the set of the entries given.
func NewSet(entries ...Entry) Set {
	s := make(Set, len(entries))
	for _, e := range entries {
		s[e] = struct{}{}
	}
	return s
}

// Has tells whether e is in the set.
func (s Set) Has(e Entry) bool { _, ok := s[e]; return ok }

// Clone returns a copy that shares nothing with s.
func (s Set) Clone() Set { return maps.Clone(s) }

// Equal tells whether both hold the same entries.
func (s Set) Equal(o Set) bool { return maps.Equal(s, o) }

// Sorted returns the entries in the order in which they would be added (see rank).
func (s Set) Sorted() []Entry {
	return slices.SortedFunc(maps.Keys(s), rank)
}

// Counts returns the number of entries of each kind.
func (s Set) Counts() map[Kind]int {
	n := make(map[Kind]int, int(kinds))
	for e := range s {
		n[e.Kind()]++
	}
	return n
}

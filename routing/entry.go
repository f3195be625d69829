// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Protocol marks what is ours: the protocol of routes (rtm_protocol) and rules (FRA_PROTOCOL), IFA_PROTO of addresses
// and NDA_PROTOCOL of neighbours. It is 'n', a number that neither the kernel's rtnetlink.h nor iproute2's rt_protos
// assigns.
const Protocol = 'n'

// Kind is the type of an [Entry]; the order of kinds is the order of additions (see rank).
type Kind uint8

// The kinds of entries.
const (
	KindSysctl Kind = iota
	KindAddress
	KindNeighbour
	KindRoute
	KindRule
)

// Kinds lists all kinds, for metrics that export every label from the start.
func Kinds() []Kind { return []Kind{KindSysctl, KindAddress, KindNeighbour, KindRoute, KindRule} }

// String returns the kind as metrics and logs name it.
func (k Kind) String() string {
	return [...]string{"sysctl", "address", "neighbour", "route", "rule"}[k]
}

// Entry is one object in the kernel: a comparable value, so that equality is == and sets are maps. The set of types is
// closed: [Address], [Route], [Rule], [Neighbour], [LooseRPF].
type Entry interface {
	Kind() Kind
	Family() Family
	// Text prints the entry in the language of iproute2; name turns an interface index into a name.
	Text(name func(index int) string) string
	// Slot is the key under which the kernel holds the entry: of two entries with one slot the second replaces the
	// first.
	Slot() any
}

// Address is an address of ours on an interface.
//
// The kernel never chooses it as the source of ordinary traffic: IPv4 gets scope host, IPv6 a preferred lifetime of 0.
// It has no prefix route (IFA_F_NOPREFIXROUTE); that route is an entry of its own.
type Address struct {
	Index  int          // of the interface
	Prefix netip.Prefix // the address itself with its prefix length, not masked
}

// Route is a unicast route with one next hop.
type Route struct {
	Table   uint32
	Dst     netip.Prefix // masked
	Metric  uint32       // never 0: IPv6 makes 1024 of it
	Index   int          // of the outgoing interface
	Gateway netip.Addr   // invalid: the destination is on link
	OnLink  bool         // the gateway is on link although no prefix of the interface covers it (IPv6: since 4.16)
	Source  netip.Addr   // preferred source; invalid: the kernel's choice
	MTU     uint32       // 0: that of the interface
}

// Rule sends packets with a mark to a routing table (FRA_PROTOCOL, which names the owner: since 4.17).
type Rule struct {
	Fam      Family
	Priority uint32
	Mark     uint32
	Mask     uint32
	Table    uint32
}

// Neighbour is a permanent neighbour entry (NDA_PROTOCOL, which names the owner: since 4.20).
type Neighbour struct {
	Index int
	Addr  netip.Addr
	MAC   MAC
}

// LooseRPF is reverse path filtering of an interface that is not strict: rp_filter is 2, or 0 with conf.all at 0. It is
// set and never undone, because another program may need it by then. IPv6 has no such setting.
type LooseRPF struct {
	Index int
}

// Kind implements [Entry].
func (Address) Kind() Kind   { return KindAddress }
func (Route) Kind() Kind     { return KindRoute }     // Kind implements [Entry].
func (Rule) Kind() Kind      { return KindRule }      // Kind implements [Entry].
func (Neighbour) Kind() Kind { return KindNeighbour } // Kind implements [Entry].
func (LooseRPF) Kind() Kind  { return KindSysctl }    // Kind implements [Entry].

// Family implements [Entry].
func (a Address) Family() Family   { return nl.FamilyOf(a.Prefix.Addr()) }
func (r Route) Family() Family     { return nl.FamilyOf(r.Dst.Addr()) } // Family implements [Entry].
func (r Rule) Family() Family      { return r.Fam }                     // Family implements [Entry].
func (n Neighbour) Family() Family { return nl.FamilyOf(n.Addr) }       // Family implements [Entry].
func (LooseRPF) Family() Family    { return IPv4 }                      // Family implements [Entry].

// Slot implements [Entry]: IPv6 holds an address once per interface, whatever its prefix length.
func (a Address) Slot() any { return Address{a.Index, netip.PrefixFrom(a.Prefix.Addr(), 0)} }

// Slot implements [Entry]: the kernel holds a route once per table, destination and metric. Siblings (multipath) are
// never made.
func (r Route) Slot() any     { return Route{Table: r.Table, Dst: r.Dst, Metric: r.Metric} }
func (r Rule) Slot() any      { return r }                                       // Slot implements [Entry].
func (n Neighbour) Slot() any { return Neighbour{Index: n.Index, Addr: n.Addr} } // Slot implements [Entry].
func (l LooseRPF) Slot() any  { return l }                                       // Slot implements [Entry].

// Text implements [Entry].
func (a Address) Text(name func(int) string) string {
	return fmt.Sprintf("address %s dev %s", a.Prefix, name(a.Index))
}

// Text implements [Entry].
func (r Route) Text(name func(int) string) string {
	s := "route " + r.Dst.String()
	if r.Gateway.IsValid() {
		s += " via " + r.Gateway.String()
	}
	s += " dev " + name(r.Index)
	if r.OnLink {
		s += " onlink"
	}
	if r.Source.IsValid() {
		s += " src " + r.Source.String()
	}
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	s += fmt.Sprintf(" metric %d", r.Metric)
	if r.Table != tableMain {
		s += fmt.Sprintf(" table %d", r.Table)
	}
	return s
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

// indexName names an interface whose name is not known.
func indexName(index int) string { return "if" + strconv.Itoa(index) }

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

// Has reports whether e is in the set.
func (s Set) Has(e Entry) bool { _, ok := s[e]; return ok }

// Clone returns a copy that shares nothing with s and is not nil.
func (s Set) Clone() Set { return NewSet(slices.Collect(maps.Keys(s))...) }

// Sorted returns the entries in the order in which they would be added (see rank).
func (s Set) Sorted() []Entry { return slices.SortedFunc(maps.Keys(s), rank) }

// Counts returns the number of entries of each kind.
func (s Set) Counts() map[Kind]int {
	n := make(map[Kind]int)
	for e := range s {
		n[e.Kind()]++
	}
	return n
}

// Verb is what an [Op] does.
type Verb uint8

// The verbs. Replace is an addition whose slot is taken by an entry of ours.
const (
	Add Verb = iota
	Replace
	Remove
)

// String returns the verb in lower case.
func (v Verb) String() string { return [...]string{"add", "replace", "remove"}[v] }

// Op is one change of the kernel.
type Op struct {
	Verb  Verb
	Entry Entry
	Old   Entry // with Replace: the entry in the slot now
}

// Diff returns the operations that turn have into want, in the order in which they must be carried out.
//
// Additions and replacements come before removals, because the kernel applies each message at once: a device
// that loses its old route before it has the new one drops packets between the two. Removals run in the
// opposite order of additions, because an entry goes before the one that it depends on.
//
// A loosened rp_filter is never removed: see [LooseRPF].
func Diff(have, want Set) []Op {
	taken := make(map[any]Entry, len(have))
	for e := range have {
		taken[e.Slot()] = e
	}
	var adds, removes []Op
	replaced := make(map[Entry]bool)
	for e := range want {
		if have.Has(e) {
			continue
		}
		op := Op{Verb: Add, Entry: e}
		if old, ok := taken[e.Slot()]; ok {
			op.Verb, op.Old = Replace, old
			replaced[old] = true
		}
		adds = append(adds, op)
	}
	for e := range have {
		if !want.Has(e) && !replaced[e] && e.Kind() != KindSysctl {
			removes = append(removes, Op{Verb: Remove, Entry: e})
		}
	}
	slices.SortFunc(adds, func(a, b Op) int { return rank(a.Entry, b.Entry) })
	slices.SortFunc(removes, func(a, b Op) int { return rank(b.Entry, a.Entry) })
	return append(adds, removes...)
}

// rank is the order of additions.
//
//   - A loose rp_filter first, because without it packets that the other entries attract are dropped.
//   - Addresses before routes, because the kernel refuses a preferred source that is no address of the node.
//   - Neighbours before routes, because otherwise the first packet on a route starts to resolve the next hop.
//   - Routes on link before routes through a gateway, because the kernel checks that it can reach the gateway.
//   - Longer prefixes before shorter ones, because otherwise a packet to the longer one matches the shorter one for a
//     moment.
//   - Rules last, because packets that a rule sends to an incomplete table fall through to the tables after it.
//
// The rest only makes the order total, so that equal input gives equal output.
func rank(a, b Entry) int {
	order := cmp.Compare(a.Kind(), b.Kind())
	if x, ok := a.(Route); ok && order == 0 {
		y := b.(Route)
		order = cmp.Or(cmp.Compare(x.Gateway.BitLen(), 0)-cmp.Compare(y.Gateway.BitLen(), 0), cmp.Compare(y.Dst.Bits(), x.Dst.Bits()))
	}
	return cmp.Or(order, cmp.Compare(a.Family(), b.Family()), strings.Compare(a.Text(indexName), b.Text(indexName)))
}

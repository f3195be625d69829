// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// State is what [Kernel.Read] found on the node: our entries, and of the rest what [Plan] has to know.
// It is never changed after it was read.
type State struct {
	Links []Link // by index
	Addrs []Addr // of others
	// Rules of others, those of the kernel itself (priorities 0, 32766 and 32767) left out.
	Rules []ForeignRule
	// TableRoutes are the routes of others in the steering table.
	TableRoutes []ForeignRoute
	// Neighbours are permanent entries of others.
	Neighbours map[Neighbour]bool
	// Ours are the entries that carry our protocol number.
	Ours Set
	// AllRPFilter is net.ipv4.conf.all.rp_filter: the kernel uses the greater of this and the interface's own.
	AllRPFilter int
	// Forwarding tells per family whether the node forwards (conf.all.forwarding).
	Forwarding map[Family]bool
}

// Link is an interface.
type Link struct {
	Index    int
	Name     string
	AltNames []string
	Up       bool // administratively; carrier does not matter to us
	Loopback bool
	MTU      int
	RPFilter int // net.ipv4.conf.NAME.rp_filter
}

// Addr is an address of others.
type Addr struct {
	Index      int
	Prefix     netip.Prefix // the address itself with its prefix length, not masked
	Global     bool         // scope universe, not link or host
	Tentative  bool         // IPv6 duplicate address detection has not ended: the kernel refuses it as a source
	Deprecated bool
}

// ForeignRule is a policy routing rule of others.
type ForeignRule struct {
	Fam      Family
	Priority uint32
	Table    uint32
	Mark     uint32
	Mask     uint32
	// Selective says that it looks at more than the mark: addresses, interfaces, ports and the like.
	Selective bool
	Protocol  uint8
}

// ForeignRoute is a route of others.
type ForeignRoute struct {
	Dst      netip.Prefix
	Protocol uint8
}

// minIPv6MTU: an interface below it has no IPv6 (RFC 8200 section 5; the kernel takes the addresses away).
const minIPv6MTU = 1280

// Have returns what holds of all that we could want: our own entries, and each interface whose reverse path
// filter is loose or off, whoever made it so.
func (s State) Have() Set {
	have := s.Ours.Clone()
	if have == nil {
		have = Set{}
	}
	for _, l := range s.Links {
		if max(s.AllRPFilter, l.RPFilter) != rpStrict {
			have[LooseRPF{l.Index}] = struct{}{}
		}
	}
	return have
}

// Values of rp_filter (kernel Documentation/networking/ip-sysctl.rst).
const (
	rpStrict = 1
	rpLoose  = 2
)

// link returns the interface of that name or alternative name.
func (s State) link(name string) (Link, bool) {
	if l, ok := pick(s.Links, func(l Link) bool { return l.Name == name }); ok {
		return l, true
	}
	return pick(s.Links, func(l Link) bool { return slices.Contains(l.AltNames, name) })
}

// linkAt returns the interface with that index.
func (s State) linkAt(index int) (Link, bool) {
	return pick(s.Links, func(l Link) bool { return l.Index == index })
}

// Name returns the name of an interface, or its number where there is none.
func (s State) Name(index int) string {
	if l, ok := s.linkAt(index); ok {
		return l.Name
	}
	return indexName(index)
}

// indexName names an interface whose name is not known.
func indexName(index int) string { return "if" + strconv.Itoa(index) }

// String prints a rule of others in the way of iproute2.
func (r ForeignRule) String() string {
	s := "from all"
	if r.Mark != 0 || r.Mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, r.Mask)
	}
	return s + fmt.Sprintf(" lookup %d", r.Table)
}

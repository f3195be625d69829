// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// State is what a node has: our entries, and of all others what [Plan] has to know. It is never changed after it was
// read.
type State struct {
	Links []Link // by index
	Addrs []Addr // of others
	// Rules of others, without the kernel's own (priorities 0, 32766 and 32767).
	Rules []ForeignRule
	// TableRoutes are the routes of others in the steering table.
	TableRoutes []FoundRoute
	// Neighbours are permanent entries of others.
	Neighbours map[Neighbour]bool
	// Ours are the entries that carry our protocol number.
	Ours Set
	// Found has the kernel's answers to [Config.Lookups], without those that have no route.
	Found map[Lookup]FoundRoute
	// AllRPFilter is net.ipv4.conf.all.rp_filter: the kernel uses the greater of this and the interface's own.
	AllRPFilter int
	// Forwarding reports per family whether the node forwards (conf.all.forwarding).
	Forwarding map[Family]bool
}

// Link is an interface.
type Link struct {
	Index    int
	Name     string
	AltNames []string
	Up       bool // administratively; carrier is irrelevant here
	Loopback bool
	MTU      int
	RPFilter int // net.ipv4.conf.NAME.rp_filter
}

// Addr is an address of others.
type Addr struct {
	Index      int
	Prefix     netip.Prefix // the address itself with its prefix length, not masked
	Global     bool         // scope universe, not link or host
	Tentative  bool         // IPv6 duplicate address detection is under way: the kernel refuses it as a source
	Deprecated bool
}

// ForeignRule is a policy routing rule of others.
type ForeignRule struct {
	Fam      Family
	Priority uint32
	Table    uint32
	Mark     uint32
	Mask     uint32
	// Selective rules match more than the mark: addresses, interfaces, ports and the like.
	Selective bool
	Protocol  uint8
}

// FoundRoute is a route of any owner. One that has not the form of ours (several next hops, a gateway of the other
// family, a type other than unicast) has Index 0.
type FoundRoute struct {
	Route
	Protocol uint8
}

// Lookup is a question to the kernel: by which route does a packet of this node to Dst with Mark leave?
type Lookup struct {
	Dst  netip.Addr
	Mark uint32
}

// Lookups returns one lookup for each destination that c routes away from this node: the answers show whether a route
// of others is used in place of ours. The first address of a service CIDR stands for all: no Service gets it, and so no
// interface has it either. c must be normalized.
func (c Config) Lookups() (out []Lookup) {
	for _, p := range c.ServiceCIDRs {
		if c.Reach.Enabled || c.HandOff.routesServices() {
			out = append(out, Lookup{Dst: p.Addr()})
		}
		if c.Steering.Enabled {
			out = append(out, Lookup{Dst: p.Addr(), Mark: c.Steering.Mark})
		}
	}
	if c.HandOff.Enabled && c.HandOff.Local {
		for _, a := range c.HandOff.Virtual {
			out = append(out, Lookup{Dst: a})
		}
	}
	return out
}

// minIPv6MTU: an interface below it has no IPv6 (RFC 8200 section 5; the kernel removes the addresses).
const minIPv6MTU = 1280

// Values of rp_filter (kernel Documentation/networking/ip-sysctl.rst).
const (
	rpStrict = 1
	rpLoose  = 2
)

// Have returns what exists of all that [Plan] could want: our own entries, and each interface whose reverse path
// filter is loose or off, by any program.
func (s State) Have() Set {
	have := s.Ours.Clone()
	for _, l := range s.Links {
		if max(s.AllRPFilter, l.RPFilter) != rpStrict {
			have[LooseRPF{l.Index}] = struct{}{}
		}
	}
	return have
}

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

// addrs returns the addresses of others in family f, on one interface or, with index 0, on all.
func (s State) addrs(f Family, index int) (out []Addr) {
	for _, a := range s.Addrs {
		if nl.FamilyOf(a.Prefix.Addr()) == f && (index == 0 || a.Index == index) {
			out = append(out, a)
		}
	}
	return out
}

// String prints a rule of others in the language of iproute2.
func (r ForeignRule) String() string {
	s := "from all"
	if r.Mark != 0 || r.Mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, r.Mask)
	}
	return s + fmt.Sprintf(" lookup %d", r.Table)
}

// Line is one of our entries for a reader.
type Line struct {
	Kind   string `json:"kind"`
	Family string `json:"family"`
	Text   string `json:"text"`
}

// ConfigOf returns a configuration whose lookups find the routes in ours.
func ConfigOf(ours Set) (c Config) {
	c.Reach.Enabled = true
	for e := range ours {
		switch e := e.(type) {
		case Route:
			c.ServiceCIDRs = append(c.ServiceCIDRs, e.Dst)
		case Rule:
			c.Steering = Steering{Enabled: true, Mark: e.Mark, Table: e.Table}
		}
	}
	return c
}

// Lines returns our entries as the kernel has them: addresses, neighbours, routes, rules. A route that is not used,
// because the kernel prefers one of others, is marked.
func (s State) Lines(c Config) []Line {
	out := make([]Line, 0, len(s.Ours))
	for _, e := range s.Ours.Sorted() {
		text := e.Text(s.Name)
		if r, ok := e.(Route); ok {
			if by, shadowed := s.shadow(c, r); shadowed {
				text += fmt.Sprintf(" (not used: %s of others takes the packets)", by.Text(s.Name))
			}
		}
		out = append(out, Line{e.Kind().String(), e.Family().String(), text})
	}
	return out
}

// shadow returns the route of others that takes the packets to a route of ours with a gateway. One with the same next
// hop is no shadow.
func (s State) shadow(c Config, r Route) (by FoundRoute, ok bool) {
	by, ok = s.Found[c.lookup(r)]
	return by, ok && r.Gateway.IsValid() && by.Protocol != Protocol && !by.sameHop(r)
}

// lookup is the one of [Config.Lookups] that finds r or a route of others in its place.
func (c Config) lookup(r Route) Lookup {
	l := Lookup{Dst: r.Dst.Addr()}
	if r.Table == c.Steering.Table {
		l.Mark = c.Steering.Mark
	}
	return l
}

func (r Route) sameHop(o Route) bool { return r.Index == o.Index && r.Gateway == o.Gateway }

// Severity is what a [Problem] means for the modes that are switched on.
type Severity uint8

// The severities, the lightest first.
const (
	// Note: everything works, but an operator should know.
	Note Severity = iota
	// Waiting: a device or address is not there yet; what needs it is left out until it appears.
	Waiting
	// Conflict: an object of others is in the way, or the configuration contradicts itself or the node.
	Conflict
)

// Severities lists all severities, for metrics that export every label from the start.
func Severities() []Severity { return []Severity{Note, Waiting, Conflict} }

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"note", "waiting", "conflict"}[s] }

// Problem is one line for the operator: what is wrong, and what to change.
type Problem struct {
	Severity Severity
	Text     string
}

// String returns the severity and the line.
func (p Problem) String() string { return p.Severity.String() + ": " + p.Text }

// RefusedError is the reason why routing does not start, or does not use a new configuration.
type RefusedError struct {
	Problems []Problem // at least one, in the order found
}

// Error returns one line per problem.
func (e *RefusedError) Error() string {
	return strings.Join(each(e.Problems, func(p Problem) string { return "routing: " + p.Text }), "\n")
}

// problems collects lines, each once.
type problems []Problem

func (ps *problems) add(s Severity, format string, args ...any) {
	p := Problem{s, fmt.Sprintf(format, args...)}
	if !slices.Contains(*ps, p) {
		*ps = append(*ps, p)
	}
}

func (ps *problems) conflict(format string, args ...any) { ps.add(Conflict, format, args...) }
func (ps *problems) waiting(format string, args ...any)  { ps.add(Waiting, format, args...) }
func (ps *problems) note(format string, args ...any)     { ps.add(Note, format, args...) }

// refusal returns the problems from severity s up as an error, nil if there are none.
func refusal(ps []Problem, s Severity) error {
	var out []Problem
	for _, p := range ps {
		if p.Severity >= s {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return &RefusedError{out}
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package draw makes a picture of one Service out of what package inspect read from the kernel: its addresses, what is done
// with packets to them, and the endpoints by zone and node. It is pure, and lays the picture out itself: [Picture.SVG] for
// the eye, [Picture.DOT] for other programs.
package draw

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Place is where an endpoint runs; empty strings are not known.
type Place struct{ Node, Zone string }

// Options are what the kernel does not tell.
type Options struct {
	// Node is the name of this node, if it is known.
	Node string
	// Places are those of endpoints as a source tells them, by address. Nil says that there is no source: then endpoints
	// are here or elsewhere, which is all that the kernel knows.
	Places map[netip.Addr]Place
}

// Picture is a Service, ready to be drawn.
type Picture struct {
	Title string
	// Notes say what the picture does not show.
	Notes []string
	Bands []Band
}

// Band is one port of the Service in one family.
type Band struct {
	Title string
	// Problems are those of the Service port.
	Problems []string
	Fronts   []Box
	Programs []Box
	Zones    []Zone
	Edges    []Edge
}

// Box is a rectangle with text. The first line is its heading.
type Box struct {
	Lines []string
	// Refuses says that packets end there.
	Refuses bool
	// Own says that it is this node.
	Own bool
}

// Zone holds the boxes of its nodes; an empty name is drawn without a frame.
type Zone struct {
	Name  string
	Nodes []Box
}

// Edge leads from a front to a program, or from a program to a node. Both are indexes; nodes are counted through all zones.
type Edge struct {
	FromFront bool
	From, To  int
	// Text stands beside it. Dashed ones are for some senders only.
	Text   string
	Dashed bool
}

// shown bounds the endpoints of a node, and the nodes of a port, that are drawn; the rest is counted.
const (
	shownEndpoints = 12
	shownNodes     = 24
)

// New makes the picture of the Service ports given, which should be of one Service.
func New(service string, ports []inspect.ServicePort, o Options) *Picture {
	p := &Picture{Title: "Service " + service}
	if o.Places == nil {
		p.Notes = append(p.Notes, "The kernel knows neither nodes nor zones, only which endpoints are on this node.",
			"With the proxy's --manifests, --kubeconfig or --config they are shown.")
	}
	dashed := false
	for i := range ports {
		b := newBand(&ports[i], o)
		dashed = dashed || slices.ContainsFunc(b.Edges, func(e Edge) bool { return e.Dashed })
		p.Bands = append(p.Bands, b)
	}
	if dashed {
		p.Notes = append(p.Notes, "Dashed: only what this node and its pods send.")
	}
	return p
}

// familyNames are as people call what nft calls ip and ip6.
func familyName(f string) string {
	if f == "ip6" {
		return "IPv6"
	}
	return "IPv4"
}

func newBand(s *inspect.ServicePort, o Options) Band {
	b := Band{Title: fmt.Sprintf("port %s, %s, %s", cmp.Or(s.Port, "(without a name)"), s.Protocol, familyName(s.Family)), Problems: s.Problems}
	if a := s.Affinity; a != nil {
		b.Title += fmt.Sprintf(", clients stay %d s", a.TimeoutSeconds)
		for _, view := range []string{"cluster", "local"} {
			if n, ok := a.Clients[view]; ok {
				b.Title += fmt.Sprintf(" (%s view: %d remembered)", view, n)
			}
		}
	}
	if s.Flows != nil {
		b.Title += fmt.Sprintf(", tracked connections: %d", s.Flows.Total)
	}
	nodes := b.place(s, o)
	for i := range s.Frontends {
		f := &s.Frontends[i]
		b.Fronts = append(b.Fronts, frontBox(f))
		program := programBox(f)
		at := slices.IndexFunc(b.Programs, func(x Box) bool { return slices.Equal(x.Lines, program.Lines) })
		if at < 0 {
			at = len(b.Programs)
			b.Programs = append(b.Programs, program)
			b.lead(at, s, f, nodes)
		}
		b.Edges = append(b.Edges, Edge{FromFront: true, From: i, To: at})
	}
	return b
}

func frontBox(f *inspect.Frontend) Box {
	host := cmp.Or(f.Address, "*")
	b := Box{Lines: []string{f.Kind, net.JoinHostPort(host, strconv.Itoa(int(f.Port)))}}
	if f.Flows != nil {
		b.Lines = append(b.Lines, fmt.Sprintf("connections: %d", *f.Flows))
	}
	if f.Restricted {
		b.Lines = append(b.Lines, "admitted sources:")
		for _, r := range f.SourceRanges[:min(len(f.SourceRanges), shownEndpoints)] {
			b.Lines = append(b.Lines, "  "+r)
		}
		if more := len(f.SourceRanges) - shownEndpoints; more > 0 {
			b.Lines = append(b.Lines, fmt.Sprintf("  and %d more", more))
		}
		if len(f.SourceRanges) == 0 {
			b.Lines = append(b.Lines, "  none")
		}
	}
	return b
}

// programBox says what is done with packets.
func programBox(f *inspect.Frontend) Box {
	policy := "externalTrafficPolicy"
	if f.Kind == "ClusterIP" {
		policy = "internalTrafficPolicy"
	}
	b := Box{Lines: []string{"any policy"}}
	if f.Policy != "" {
		b.Lines[0] = policy + " " + f.Policy
	}
	if f.Program != "" {
		b.Lines = append(b.Lines, "chain "+f.Program)
	}
	switch f.State {
	case inspect.Refused:
		b.Refuses = true
		b.Lines = append(b.Lines, "refused: no endpoint")
	case inspect.Dropped:
		b.Refuses = true
		b.Lines = append(b.Lines, "dropped: none on this node")
	case inspect.Internal:
		b.Lines = append(b.Lines, "from outside: dropped,", "none on this node")
	}
	if f.HandedTo != "" {
		b.Lines = append(b.Lines, "handed over to "+f.HandedTo)
	}
	if f.Steered {
		b.Lines = append(b.Lines, "this node's own packets:", "left to the gateway")
	}
	if f.HostEndpoint != "" {
		b.Lines = append(b.Lines, "this node's own packets:", "to "+f.HostEndpoint)
	}
	return b
}

// homes are the node box of each endpoint.
type homes map[string]int

// place makes the boxes of nodes with their endpoints.
func (b *Band) place(s *inspect.ServicePort, o Options) homes {
	here := slices.Concat(s.Endpoints.Local, s.Endpoints.Hairpin)
	byPlace := map[Place][]string{}
	var all []string
	for _, e := range slices.Concat(s.Endpoints.Cluster, s.Endpoints.Local) {
		if e != "" && !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	for _, e := range all {
		p := o.at(e, slices.Contains(here, e))
		byPlace[p] = append(byPlace[p], e)
	}
	places := make([]Place, 0, len(byPlace))
	for p := range byPlace {
		places = append(places, p)
	}
	own := func(p Place) bool { return p.Node == o.ownName() }
	slices.SortFunc(places, func(x, y Place) int {
		if x.Zone == y.Zone && own(x) != own(y) {
			return map[bool]int{true: -1, false: 1}[own(x)]
		}
		return cmp.Or(cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.Node, y.Node))
	})
	at, n := homes{}, 0
	for i, p := range places {
		if len(b.Zones) == 0 || b.Zones[len(b.Zones)-1].Name != p.Zone {
			b.Zones = append(b.Zones, Zone{Name: p.Zone})
		}
		z := &b.Zones[len(b.Zones)-1]
		if i >= shownNodes && !own(p) {
			n = b.others(z, at, byPlace[p], n)
			continue
		}
		box := Box{Lines: []string{p.Node}, Own: own(p)}
		if box.Own && p.Node != thisNode {
			box.Lines[0] += " (" + thisNode + ")"
		}
		for j, e := range byPlace[p] {
			at[e] = n
			if j < shownEndpoints {
				box.Lines = append(box.Lines, e+countOf(s, e))
			}
		}
		if more := len(byPlace[p]) - shownEndpoints; more > 0 {
			box.Lines = append(box.Lines, fmt.Sprintf("and %d more", more))
		}
		z.Nodes = append(z.Nodes, box)
		n++
	}
	return at
}

// others counts the endpoints of nodes that are not drawn in a box at the end of their zone.
func (b *Band) others(z *Zone, at homes, endpoints []string, n int) int {
	if len(z.Nodes) == 0 || z.Nodes[len(z.Nodes)-1].Lines[0] != moreNodes {
		z.Nodes = append(z.Nodes, Box{Lines: []string{moreNodes}})
		n++
	}
	for _, e := range endpoints {
		at[e] = n - 1
	}
	return n
}

const (
	thisNode   = "this node"
	otherNodes = "other nodes"
	moreNodes  = "more nodes"
)

func (o *Options) ownName() string {
	if o.Places == nil {
		return thisNode
	}
	return cmp.Or(o.Node, thisNode)
}

// at tells where an endpoint is, by the source or else by the kernel.
func (o *Options) at(endpoint string, here bool) Place {
	if a, err := netip.ParseAddrPort(endpoint); err == nil {
		if p, ok := o.Places[a.Addr()]; ok && p.Node != "" {
			return p
		}
	}
	if here {
		return Place{Node: o.ownName()}
	}
	return Place{Node: otherNodes}
}

// countOf is the number of connections that an endpoint has, as text.
func countOf(s *inspect.ServicePort, endpoint string) string {
	if s.Flows == nil {
		return ""
	}
	return fmt.Sprintf("  (%d)", s.Flows.Endpoints[endpoint])
}

// lead draws the ways of a program to the nodes that its packets may go to.
func (b *Band) lead(program int, s *inspect.ServicePort, f *inspect.Frontend, at homes) {
	if f.HandedTo != "" || f.State == inspect.Refused || f.State == inspect.Dropped {
		return
	}
	full, part := s.Endpoints.Cluster, []string(nil)
	if f.Policy == "Local" {
		full = s.Endpoints.Local
		if f.Kind != "ClusterIP" {
			part = s.Endpoints.Cluster
		}
	}
	done := map[int]bool{}
	for _, view := range []struct {
		list   []string
		dashed bool
	}{{full, false}, {part, true}} {
		for _, e := range view.list {
			if n, ok := at[e]; ok && !done[n] {
				done[n] = true
				b.Edges = append(b.Edges, Edge{From: program, To: n, Dashed: view.dashed})
			}
		}
	}
}

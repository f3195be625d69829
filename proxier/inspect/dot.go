// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// Place is where an endpoint runs; an empty string is unknown.
type Place struct{ Node, Zone string }

// DOTOptions are what the kernel does not know.
type DOTOptions struct {
	// Node is the name of this node, if it is known.
	Node string
	// Places has the endpoints of a source by address. Nil means that there is no source: then the graph has only what the
	// kernel knows, which endpoints are on this node.
	Places map[netip.Addr]Place
}

// Limits of a graph that is still readable; what is above is counted.
const (
	shownEndpoints = 12 // of a node, and of source ranges
	shownNodes     = 24 // of a Service port
)

const (
	thisNode   = "this node"
	otherNodes = "other nodes"
	moreNodes  = "more nodes"
)

// DOT writes the ports of one Service as a graph in the language of Graphviz: addresses, programs, and endpoints by zone and node.
func DOT(w io.Writer, service string, ports []ServicePort, o DOTOptions) error {
	out := bufio.NewWriter(w)
	title := []string{"Service " + service}
	if o.Places == nil {
		title = append(title, "The kernel knows neither nodes nor zones, only which endpoints are on this node.",
			"With the proxy's --manifests, --kubeconfig or --config they are shown.")
	}
	title = append(title, "Dashed: packets of this node and of pods only.")
	fmt.Fprintf(out, "digraph service {\n  rankdir=LR;\n  label=%s;\n  labelloc=t;\n", quote(title, `\n`))
	fmt.Fprint(out, "  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"monospace\", fontsize=10];\n")
	for i := range ports {
		g := &graph{out: out, port: &ports[i], id: i, options: o, nodeOf: map[string]int{}}
		g.write()
	}
	fmt.Fprintln(out, "}")
	return out.Flush() // with the first error
}

// quote is a string of DOT with several lines, each ended by its alignment: \l left, \n centred.
func quote(lines []string, end string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(escape.Replace(Printable(l)) + end)
	}
	return `"` + b.String() + `"`
}

// graph is the cluster of one Service port. Its boxes are f for frontends, p for programs and n for nodes.
type graph struct {
	out     io.Writer
	port    *ServicePort
	id      int
	options DOTOptions
	nodes   int
	nodeOf  map[string]int // box of an endpoint
}

func (g *graph) write() {
	s := g.port
	title := fmt.Sprintf("port %s, %s, %s", cmp.Or(s.Port, "(without a name)"), s.Protocol, map[string]string{"ip": "IPv4", "ip6": "IPv6"}[s.Family])
	if a := s.Affinity; a != nil {
		title += fmt.Sprintf(", sessionAffinity for %d s", a.TimeoutSeconds)
		for _, view := range []string{"cluster", "local"} {
			if n, ok := a.Clients[view]; ok {
				title += fmt.Sprintf(" (%s view: %d clients)", view, n)
			}
		}
	}
	if s.Flows != nil {
		title += fmt.Sprintf(", tracked connections: %d", s.Flows.Total)
	}
	fmt.Fprintf(g.out, "  subgraph cluster_%d {\n    label=%s; labeljust=l; color=gray;\n", g.id, quote(append([]string{title}, s.Problems...), `\l`))
	g.zones()
	var programs []string
	for i := range s.Frontends {
		f := &s.Frontends[i]
		fmt.Fprintf(g.out, "    f%d_%d [label=%s, fillcolor=\"#e8f0fe\"];\n", g.id, i, quote(f.addressLines(), `\l`))
		lines := quote(f.programLines(), `\l`)
		p := slices.Index(programs, lines)
		if p < 0 {
			p = len(programs)
			programs = append(programs, lines)
			color := "#f1f3f4"
			if f.State == Refused || f.State == Dropped {
				color = "#fce8e6"
			}
			fmt.Fprintf(g.out, "    p%d_%d [label=%s, fillcolor=%q];\n", g.id, p, lines, color)
			g.edges(p, f)
		}
		fmt.Fprintf(g.out, "    f%d_%d -> p%d_%d;\n", g.id, i, g.id, p)
	}
	fmt.Fprintln(g.out, "  }")
}

func (f *Frontend) addressLines() []string {
	lines := []string{f.Kind, f.address()}
	if f.Flows != nil {
		lines = append(lines, fmt.Sprintf("connections: %d", *f.Flows))
	}
	if f.Restricted {
		lines = append(append(lines, "admitted sources:"), f.SourceRanges[:min(len(f.SourceRanges), shownEndpoints)]...)
		if more := len(f.SourceRanges) - shownEndpoints; more > 0 {
			lines = append(lines, fmt.Sprintf("and %d more", more))
		}
		if len(f.SourceRanges) == 0 {
			lines = append(lines, "none")
		}
	}
	return lines
}

// programLines say what happens to packets.
func (f *Frontend) programLines() []string {
	policy := "externalTrafficPolicy"
	if f.Kind == "ClusterIP" {
		policy = "internalTrafficPolicy"
	}
	lines := []string{"any policy"}
	if f.Policy != "" {
		lines[0] = policy + " " + f.Policy
	}
	if f.Program != "" {
		lines = append(lines, "chain "+f.Program)
	}
	switch f.State {
	case Refused:
		lines = append(lines, "refused: no endpoint")
	case Dropped:
		lines = append(lines, "dropped: no endpoint on this node")
	case Internal:
		lines = append(lines, "from outside: dropped,", "no endpoint on this node")
	}
	if f.HandedTo != "" {
		lines = append(lines, "handed over to "+f.HandedTo)
	}
	if f.Steered {
		lines = append(lines, "this node's own packets:", "left to the balancer behind the device")
	}
	if f.HostEndpoint != "" {
		lines = append(lines, "this node's own packets:", "to "+f.HostEndpoint)
	}
	return lines
}

// zones writes the boxes of nodes, by zone; the own node is the first of its zone.
func (g *graph) zones() {
	e := &g.port.Endpoints
	here, byPlace := slices.Concat(e.Local, e.Hairpin), map[Place][]string{}
	own := thisNode
	if g.options.Places != nil {
		own = cmp.Or(g.options.Node, thisNode)
	}
	seen := map[string]bool{"": true} // an empty slot
	for _, text := range slices.Concat(e.Cluster, e.Local) {
		if seen[text] {
			continue
		}
		seen[text] = true
		at := Place{Node: otherNodes}
		if slices.Contains(here, text) {
			at.Node = own
		}
		a, _ := netip.ParseAddrPort(text)
		if p := g.options.Places[a.Addr()]; p.Node != "" {
			at = p
		}
		byPlace[at] = append(byPlace[at], text)
	}
	places := make([]Place, 0, len(byPlace))
	for p := range byPlace {
		places = append(places, p)
	}
	rank := func(p Place) int { return map[bool]int{true: 0, false: 1}[p.Node == own] }
	slices.SortFunc(places, func(x, y Place) int {
		return cmp.Or(cmp.Compare(x.Zone, y.Zone), cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Node, y.Node))
	})
	for i := 0; i < len(places); {
		zone, rest := places[i].Zone, []string(nil)
		if zone != "" {
			fmt.Fprintf(g.out, "    subgraph cluster_%d_%d {\n    label=%s; style=\"rounded,filled\"; color=\"#e6f4ea\";\n", g.id, i, quote([]string{"zone " + zone}, ""))
		}
		for ; i < len(places) && places[i].Zone == zone; i++ {
			p := places[i]
			switch {
			case p.Node == own && own != thisNode:
				g.box(own+" ("+thisNode+")", byPlace[p], ", penwidth=2")
			case p.Node == own:
				g.box(own, byPlace[p], ", penwidth=2")
			case i < shownNodes:
				g.box(p.Node, byPlace[p], "")
			default:
				rest = append(rest, byPlace[p]...)
			}
		}
		if len(rest) > 0 {
			g.box(moreNodes, rest, "")
		}
		if zone != "" {
			fmt.Fprintln(g.out, "    }")
		}
	}
}

// box writes a node with its endpoints.
func (g *graph) box(name string, endpoints []string, style string) {
	lines := []string{name}
	for i, e := range endpoints {
		g.nodeOf[e] = g.nodes
		if i >= shownEndpoints {
			continue
		}
		if g.port.Flows != nil {
			e += fmt.Sprintf("  (%d)", g.port.Flows.Endpoints[e])
		}
		lines = append(lines, e)
	}
	if more := len(endpoints) - shownEndpoints; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	fmt.Fprintf(g.out, "    n%d_%d [label=%s%s];\n", g.id, g.nodes, quote(lines, `\l`), style)
	g.nodes++
}

// edges lead from a program to the nodes that its packets may go to: dashed, where only some senders' do.
func (g *graph) edges(program int, f *Frontend) {
	if f.HandedTo != "" || f.State == Refused || f.State == Dropped {
		return
	}
	all, some := g.port.Endpoints.Cluster, []string(nil)
	if f.Policy == "Local" {
		all = g.port.Endpoints.Local
		if f.Kind != "ClusterIP" {
			some = g.port.Endpoints.Cluster
		}
	}
	done := map[int]bool{}
	lead := func(list []string, style string) {
		for _, e := range list {
			if n, ok := g.nodeOf[e]; ok && !done[n] {
				done[n] = true
				fmt.Fprintf(g.out, "    p%d_%d -> n%d_%d%s;\n", g.id, program, g.id, n, style)
			}
		}
	}
	lead(all, "")
	lead(some, " [style=dashed]")
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package draw

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// DOT writes the picture in Graphviz's language.
func (p *Picture) DOT(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "digraph service {\n  rankdir=LR;\n  label=%s;\n  labelloc=t;\n", quote(append([]string{p.Title}, p.Notes...), `\n`))
	fmt.Fprint(out, "  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"monospace\", fontsize=10];\n")
	for i := range p.Bands {
		p.Bands[i].dot(out, i)
	}
	fmt.Fprintln(out, "}")
	return out.Flush() // with the first error
}

// quote is a string of DOT of several lines, each ended by what aligns it: \l left, \n centred.
func quote(lines []string, end string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(escape.Replace(l) + end)
	}
	return `"` + b.String() + `"`
}

func (b *Band) dot(out *bufio.Writer, i int) {
	fmt.Fprintf(out, "  subgraph cluster_%d {\n    label=%s; labeljust=l; color=gray;\n", i, quote(append([]string{b.Title}, b.Problems...), `\l`))
	for j, x := range b.Fronts {
		fmt.Fprintf(out, "    f%d_%d [label=%s, fillcolor=\"#e8f0fe\"];\n", i, j, quote(x.Lines, `\l`))
	}
	for j, x := range b.Programs {
		fmt.Fprintf(out, "    p%d_%d [label=%s, fillcolor=%q];\n", i, j, quote(x.Lines, `\l`), map[bool]string{true: "#fce8e6", false: "#f1f3f4"}[x.Refuses])
	}
	n := 0
	for j, z := range b.Zones {
		if z.Name != "" {
			fmt.Fprintf(out, "    subgraph cluster_%d_%d {\n    label=%s; style=\"rounded,filled\"; color=\"#e6f4ea\";\n", i, j, quote([]string{"zone " + z.Name}, ""))
		}
		for _, x := range z.Nodes {
			fmt.Fprintf(out, "    n%d_%d [label=%s%s];\n", i, n, quote(x.Lines, `\l`), map[bool]string{true: ", penwidth=2"}[x.Own])
			n++
		}
		if z.Name != "" {
			fmt.Fprintln(out, "    }")
		}
	}
	for _, e := range b.Edges {
		from, to := fmt.Sprintf("p%d_%d", i, e.From), fmt.Sprintf("n%d_%d", i, e.To)
		if e.FromFront {
			from, to = fmt.Sprintf("f%d_%d", i, e.From), fmt.Sprintf("p%d_%d", i, e.To)
		}
		fmt.Fprintf(out, "    %s -> %s%s;\n", from, to, map[bool]string{true: " [style=dashed]"}[e.Dashed])
	}
	fmt.Fprintln(out, "  }")
}

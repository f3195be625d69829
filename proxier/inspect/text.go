// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// shown is how many endpoints the table names before it counts the rest.
const shown = 3

// column is one column of the text forms.
type column struct {
	title string
	cell  func(*ServicePort, *Frontend) string
}

func columns(wide, flows bool) []column {
	cols := []column{
		{"SERVICE PORT", func(s *ServicePort, _ *Frontend) string { return s.Name }},
		{"PROTO", func(s *ServicePort, _ *Frontend) string { return s.Protocol }},
		{"KIND", func(_ *ServicePort, f *Frontend) string { return f.Kind }},
		{"ADDRESS", func(_ *ServicePort, f *Frontend) string { return f.address() }},
		{"POLICY", func(_ *ServicePort, f *Frontend) string { return orDash(f.Policy) }},
		{"STATE", func(_ *ServicePort, f *Frontend) string { return string(f.State) }},
	}
	if flows {
		cols = append(cols, column{"FLOWS", func(_ *ServicePort, f *Frontend) string { return f.flows() }})
	}
	if !wide {
		return append(cols, column{"ENDPOINTS", func(s *ServicePort, f *Frontend) string { return few(s.view(f)) }})
	}
	return append(cols,
		column{"PROGRAM", func(_ *ServicePort, f *Frontend) string { return orDash(f.Program) }},
		column{"SOURCES", func(_ *ServicePort, f *Frontend) string { return f.sources() }},
		column{"AFFINITY", func(s *ServicePort, _ *Frontend) string { return s.affinity() }},
		column{"ENDPOINTS", func(s *ServicePort, _ *Frontend) string { return orDash(strings.Join(s.Endpoints.Cluster, ",")) }},
		column{"ON THIS NODE", func(s *ServicePort, _ *Frontend) string { return orDash(strings.Join(s.Endpoints.here(), ",")) }},
	)
}

// Text writes the form for the eye: what the tables are, one line per frontend, and what is wrong. wide shows
// all there is.
func Text(w io.Writer, d *Dump, wide bool) error {
	out := bufio.NewWriter(w)
	for i := range d.Tables {
		d.Tables[i].write(out)
	}
	for _, l := range d.Routing {
		fmt.Fprintf(out, "routing: %s %s %s\n", l.Family, l.Kind, l.Text)
	}
	if c := d.Conntrack; c != nil {
		fmt.Fprintf(out, "flows: counted in %d conntrack entries%s\n", c.Scanned,
			map[bool]string{false: "; the table was resized meanwhile, so they are about right"}[c.Exact])
	}
	fmt.Fprintln(out)
	ports := d.ServicePorts
	cols := columns(wide, d.Conntrack != nil)
	widths := measure(cols, ports)
	titles := make([]string, len(cols))
	for i := range cols {
		titles[i] = cols[i].title
	}
	line(out, titles, widths)
	each(cols, ports, func(cells []string) { line(out, cells, widths) })
	for i := range ports {
		for _, problem := range ports[i].Problems {
			fmt.Fprintf(out, "problem: %s %s: %s\n", ports[i].Family, ports[i].Name, problem)
		}
	}
	return out.Flush()
}

// each calls fn with the cells of every frontend; the slice is reused.
func each(cols []column, ports []ServicePort, fn func(cells []string)) {
	cells := make([]string, len(cols))
	for i := range ports {
		for j := range ports[i].Frontends {
			for k := range cols {
				cells[k] = cols[k].cell(&ports[i], &ports[i].Frontends[j])
			}
			fn(cells)
		}
	}
}

func measure(cols []column, ports []ServicePort) []int {
	widths := make([]int, len(cols))
	for i := range cols {
		widths[i] = len(cols[i].title)
	}
	each(cols, ports, func(cells []string) {
		for i := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cells[i]))
		}
	})
	return widths
}

func line(out *bufio.Writer, cells []string, widths []int) {
	for i, cell := range cells {
		_, _ = out.WriteString(cell) // Flush returns the first error
		if i == len(cells)-1 {
			break
		}
		for n := widths[i] + 2 - utf8.RuneCountInString(cell); n > 0; n-- {
			_ = out.WriteByte(' ')
		}
	}
	_ = out.WriteByte('\n')
}

// write prints what concerns the table as a whole.
func (t *Table) write(out *bufio.Writer) {
	name := fmt.Sprintf("table %s nftproxy: ", t.Family)
	switch {
	case !t.Exists:
		fmt.Fprintln(out, name+"there is none")
		return
	case t.AsWritten:
		fmt.Fprint(out, name+"chains and maps: as this version writes them")
	default:
		fmt.Fprint(out, name+"chains and maps: differ from what this version writes")
	}
	elements := 0
	for _, n := range t.Elements {
		elements += n
	}
	fmt.Fprintf(out, " (%d chains, %d rules, %d sets and maps, %d elements)\n", t.Chains, t.Rules, t.Sets, elements)
	for _, d := range t.Differences {
		fmt.Fprintln(out, "  differs: "+d)
	}
	if t.Orphans > 0 {
		fmt.Fprintf(out, "  differs: %d frontends have elements but no Service\n", t.Orphans)
	}
	if t.Unsteady {
		fmt.Fprintln(out, "  it changed while it was read: what belongs together may not fit below")
	}
	masquerade := "mark " + t.MasqueradeMark
	if t.MasqueradeAll {
		masquerade += " for all ClusterIP traffic"
	}
	fmt.Fprintf(out, "  masquerade: %s; pods of this node: %s\n", masquerade, orDash(few(t.Pods)))
	fmt.Fprintf(out, "  NodePorts at: %s; Service CIDRs: %s\n", orDash(few(t.NodePortAddresses)), orDash(few(t.ServiceCIDRs)))
}

func (f *Frontend) address() string {
	host := f.Address
	if host == "" {
		host = "*"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(f.Port)))
}

func (f *Frontend) flows() string {
	if f.Flows == nil {
		return "-"
	}
	return strconv.Itoa(*f.Flows)
}

func (f *Frontend) sources() string {
	switch {
	case !f.Restricted:
		return "all"
	case len(f.SourceRanges) == 0:
		return "none"
	}
	return strings.Join(f.SourceRanges, ",")
}

// view are the endpoints of the view that the frontend's own traffic gets, or what it is handed over to.
func (s *ServicePort) view(f *Frontend) []string {
	if f.HandedTo != "" {
		return []string{f.HandedTo}
	}
	if f.Policy == "Local" && f.State != Internal {
		return s.Endpoints.Local
	}
	return s.Endpoints.Cluster
}

// here are the endpoints that are known to be on this node.
func (e *Endpoints) here() []string {
	if len(e.Local) > 0 {
		return e.Local
	}
	return e.Hairpin
}

func (s *ServicePort) affinity() string {
	if s.Affinity == nil {
		return "-"
	}
	text := fmt.Sprintf("%ds", s.Affinity.TimeoutSeconds)
	var views []string
	for v := range s.Affinity.Clients {
		views = append(views, v)
	}
	slices.Sort(views)
	for _, v := range views {
		text += fmt.Sprintf(" %s:%d", v, s.Affinity.Clients[v])
	}
	return text
}

// few names the first of a list and counts the rest.
func few(list []string) string {
	switch {
	case len(list) == 0:
		return "-"
	case len(list) <= shown:
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more", strings.Join(list[:shown], ","), len(list)-shown)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

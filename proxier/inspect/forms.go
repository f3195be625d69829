// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v2"
)

// JSON writes a document, a Dump or a Drift. That of 30,000 Services takes some 80 MB of memory.
func JSON(w io.Writer, document any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(document)
}

// YAML writes a Dump with its fields in the order of JSON; sigs.k8s.io/yaml would sort them. It encodes one Service port after
// the other: the library takes 40 times the memory of the text, and a dump often runs in the proxy's memory limit.
func YAML(w io.Writer, d *Dump) error {
	out := bufio.NewWriter(w)
	head := *d
	head.ServicePorts = []ServicePort{}
	text, err := toYAML[yaml.MapSlice](head)
	if len(d.ServicePorts) > 0 {
		text = append(bytes.TrimSuffix(text, []byte(" []\n")), '\n')
	}
	for i := 0; err == nil && i < len(d.ServicePorts); i++ {
		_, _ = out.Write(text) // Flush returns the first error
		text, err = toYAML[[]yaml.MapSlice](d.ServicePorts[i : i+1])
	}
	if err != nil {
		return fmt.Errorf("encode %d Service ports: %w", len(d.ServicePorts), err)
	}
	_, _ = out.Write(text)
	return out.Flush()
}

// toYAML encodes what JSON makes of a value, decoded as T.
func toYAML[T any](v any) ([]byte, error) {
	var fields T
	text, err := json.Marshal(v)
	if err == nil {
		err = yaml.Unmarshal(text, &fields)
	}
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(fields)
}

// Text writes a Dump for people: the state of the tables, one line per frontend, and the problems. wide shows everything.
func Text(w io.Writer, d *Dump, wide bool) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, d.Stamp)
	for i := range d.Tables {
		d.Tables[i].write(out)
	}
	for _, l := range d.Routing {
		fmt.Fprintf(out, "routing: %s %s\n", l.Family, Printable(l.Text)) // the text begins with the kind
	}
	if c := d.Conntrack; c != nil {
		fmt.Fprintf(out, "flows: counted in %d conntrack entries%s\n", c.Scanned,
			map[bool]string{false: "; the table was resized meanwhile, so the counts are approximate"}[c.Exact])
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells []string) { fmt.Fprintln(table, strings.Join(cells, "\t")) }
	titles := []string{"SERVICE PORT", "PROTO", "KIND", "ADDRESS", "POLICY", "STATE"}
	if d.Conntrack != nil {
		titles = append(titles, "FLOWS")
	}
	if wide {
		titles = append(titles, "PROGRAM", "SOURCES", "AFFINITY", "ENDPOINTS", "ON THIS NODE")
	} else {
		titles = append(titles, "ENDPOINTS")
	}
	row(titles)
	for i := range d.ServicePorts {
		s := &d.ServicePorts[i]
		for j := range s.Frontends {
			row(s.cells(&s.Frontends[j], wide, d.Conntrack != nil))
		}
	}
	_ = table.Flush() // into out, which keeps the error
	for i := range d.ServicePorts {
		s := &d.ServicePorts[i]
		for _, problem := range s.Problems {
			fmt.Fprintf(out, "problem: %s %s: %s\n", s.Family, s.Name, problem)
		}
	}
	return out.Flush()
}

// cells are those of a frontend's line.
func (s *ServicePort) cells(f *Frontend, wide, flows bool) []string {
	cells := []string{s.Name, s.Protocol, f.Kind, f.address(), orDash(f.Policy), string(f.State)}
	if flows {
		n := "-"
		if f.Flows != nil {
			n = strconv.Itoa(*f.Flows)
		}
		cells = append(cells, n)
	}
	if !wide {
		endpoints := s.Endpoints.Cluster
		switch {
		case f.HandedTo != "":
			endpoints = []string{f.HandedTo}
		case f.Policy == "Local" && f.State != Internal:
			endpoints = s.Endpoints.Local
		}
		return append(cells, few(endpoints))
	}
	sources, affinity := "all", "-"
	if f.Restricted {
		sources = "none"
		if len(f.SourceRanges) > 0 {
			sources = strings.Join(f.SourceRanges, ",")
		}
	}
	if a := s.Affinity; a != nil {
		affinity = fmt.Sprintf("%ds", a.TimeoutSeconds)
		for _, v := range slices.Sorted(maps.Keys(a.Clients)) {
			affinity += fmt.Sprintf(" %s:%d", v, a.Clients[v])
		}
	}
	here := s.Endpoints.Local
	if len(here) == 0 {
		here = s.Endpoints.Hairpin
	}
	return append(cells, orDash(f.Program), sources, affinity, orDash(strings.Join(s.Endpoints.Cluster, ",")), orDash(strings.Join(here, ",")))
}

// write prints what belongs to the table as a whole.
func (t *Table) write(out io.Writer) {
	if !t.Exists {
		fmt.Fprintf(out, "table %s nftproxy: there is none\n", t.Family)
		return
	}
	state, elements := "as this version writes them", 0
	if !t.AsWritten {
		state = "differ from what this version writes"
	}
	for _, n := range t.Elements {
		elements += n
	}
	fmt.Fprintf(out, "table %s nftproxy: chains and maps: %s (%d chains, %d rules, %d sets and maps, %d elements)\n",
		t.Family, state, t.Chains, t.Rules, t.Sets, elements)
	for _, d := range t.Differences {
		fmt.Fprintln(out, "  differs: "+d)
	}
	if t.Orphans > 0 {
		fmt.Fprintf(out, "  differs: frontends that have elements but belong to no Service: %d\n", t.Orphans)
	}
	if t.Unsteady {
		fmt.Fprintln(out, "  the table changed while it was read: parts of what follows may not fit together")
	}
	masquerade := "mark " + t.MasqueradeMark
	if t.MasqueradeAll {
		masquerade += " for all ClusterIP traffic"
	}
	fmt.Fprintf(out, "  masquerade: %s; pods: %s\n", masquerade, few(t.Pods))
	fmt.Fprintf(out, "  NodePorts at: %s; Service CIDRs: %s\n", few(t.NodePortAddresses), few(t.ServiceCIDRs))
}

func (f *Frontend) address() string {
	host := f.Address
	if host == "" {
		host = "*"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(f.Port)))
}

// shown is the number of list items that the table names; it counts the rest.
const shown = 3

// few names the first items of a list and counts the rest.
func few(list []string) string {
	switch {
	case len(list) == 0:
		return "-"
	case len(list) <= shown:
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more", strings.Join(list[:shown], ","), len(list)-shown)
}

// DriftText writes a Drift for people: the tables, then the Service ports that differ.
func DriftText(w io.Writer, d *Drift) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, d.Stamp)
	for i := range d.Tables {
		t := &d.Tables[i]
		fmt.Fprintf(out, "table %s nftproxy: compared with %d Service ports, %d elements\n", t.Family, t.ServicePorts, t.Elements)
		writeDifferences(out, t.Skeleton, t.Differences)
	}
	for i := range d.ServicePorts {
		s := &d.ServicePorts[i]
		fmt.Fprintf(out, "%s %s (%s): ", s.Name, s.Protocol, s.Family)
		switch s.State {
		case Missing:
			fmt.Fprintf(out, "missing: the kernel has nothing of it (elements: %d)\n", len(s.Differences))
		case Extra:
			fmt.Fprintf(out, "extra: the source does not have it (elements: %d)\n", len(s.Differences))
		default:
			fmt.Fprintln(out, "different")
			writeDifferences(out, s.Skeleton, s.Differences)
		}
	}
	if d.Drifted {
		fmt.Fprintf(out, "Drift: Service ports that differ: %d (- is in the kernel and should not be, + should be and is not).\n", len(d.ServicePorts))
	} else {
		fmt.Fprintln(out, "No drift: the kernel has what the source asks for.")
	}
	return out.Flush()
}

func writeDifferences(out io.Writer, skeleton []string, list []Difference) {
	for _, text := range skeleton {
		fmt.Fprintf(out, "  %s\n", text)
	}
	side := func(sign string, d *Difference, datum string) {
		if datum != "" {
			datum = ": " + datum
		}
		fmt.Fprintf(out, "  %s %s %s%s\n", sign, d.Set, d.Key, datum)
	}
	for i := range list {
		d := &list[i]
		if d.Change != Missing {
			side("-", d, d.Have)
		}
		if d.Change != Extra {
			side("+", d, d.Want)
		}
	}
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// DriftText writes a Drift for the eye: what is wrong with the tables, then Service by Service.
func DriftText(w io.Writer, d *Drift) error {
	out := bufio.NewWriter(w)
	for i := range d.Tables {
		d.Tables[i].write(out)
	}
	for i := range d.ServicePorts {
		d.ServicePorts[i].write(out)
	}
	if !d.Drifted {
		fmt.Fprintln(out, "No drift: the kernel has what is wanted.")
	} else {
		fmt.Fprintf(out, "Drift: Service ports that differ: %d.\n", len(d.ServicePorts))
	}
	return out.Flush()
}

// DriftJSON writes a Drift as one document.
func DriftJSON(w io.Writer, d *Drift) error {
	if d.ServicePorts == nil {
		d.ServicePorts = []ServiceDrift{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return fmt.Errorf("encode %d Service ports: %w", len(d.ServicePorts), err)
	}
	return nil
}

func (t *TableDrift) write(out *bufio.Writer) {
	fmt.Fprintf(out, "table %s nftproxy: compared with %d Service ports, %d elements\n", t.Family, t.ServicePorts, t.Elements)
	for _, text := range t.Skeleton {
		fmt.Fprintf(out, "  %s\n", text)
	}
	writeDifferences(out, t.Differences)
}

func (s *ServiceDrift) write(out *bufio.Writer) {
	fmt.Fprintf(out, "%s %s (%s): ", s.Name, s.Protocol, s.Family)
	switch s.State {
	case Missing:
		fmt.Fprintf(out, "missing: nothing of it is in the kernel (elements: %d)\n", len(s.Differences))
		return
	case Extra:
		fmt.Fprintf(out, "extra: the source knows nothing of it (elements: %d)\n", len(s.Differences))
		return
	}
	fmt.Fprintln(out, "different")
	for _, text := range s.Skeleton {
		fmt.Fprintf(out, "  %s\n", text)
	}
	writeDifferences(out, s.Differences)
}

func writeDifferences(out *bufio.Writer, list []Difference) {
	for _, d := range list {
		fmt.Fprintf(out, "  %s: %s %s", d.Change, d.Set, d.Key)
		switch {
		case d.Change == Different:
			fmt.Fprintf(out, ": %s, not %s", orDash(d.Have), orDash(d.Want))
		case d.Have+d.Want != "":
			fmt.Fprintf(out, ": %s", d.Have+d.Want)
		}
		fmt.Fprintln(out)
	}
}

// Persisting returns what of a later look was there in an earlier one too: what a running proxy was about to do is gone by
// then, or about something else.
func (d *Drift) Persisting(earlier *Drift) *Drift {
	out := *d
	out.Tables, out.ServicePorts = nil, nil
	out.Drifted = false
	before := map[[3]string]*ServiceDrift{}
	for i := range earlier.ServicePorts {
		s := &earlier.ServicePorts[i]
		before[[3]string{s.Name, s.Family, s.Protocol}] = s
	}
	for _, s := range d.ServicePorts {
		was := before[[3]string{s.Name, s.Family, s.Protocol}]
		if was == nil {
			continue
		}
		s.Skeleton, s.Differences = both(s.Skeleton, was.Skeleton), both(s.Differences, was.Differences)
		if len(s.Skeleton)+len(s.Differences) > 0 {
			out.ServicePorts = append(out.ServicePorts, s)
		}
	}
	for i, t := range d.Tables {
		t.Skeleton = both(t.Skeleton, earlier.Tables[i].Skeleton)
		t.Differences = both(t.Differences, earlier.Tables[i].Differences)
		out.Drifted = out.Drifted || len(t.Skeleton)+len(t.Differences) > 0
		out.Tables = append(out.Tables, t)
	}
	out.Drifted = out.Drifted || len(out.ServicePorts) > 0
	return &out
}

// both returns what is in both lists, in the order of the first.
func both[T comparable](list, other []T) (out []T) {
	there := make(map[T]bool, len(other))
	for _, v := range other {
		there[v] = true
	}
	for _, v := range list {
		if there[v] {
			out = append(out, v)
		}
	}
	return out
}

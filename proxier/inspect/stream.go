// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/nftproxy/nftproxy/routing"
)

// JSON writes a Dump, one Service port after the other, so that a large one needs no second copy in memory.
func JSON(w io.Writer, d *Dump) error {
	out := bufio.NewWriter(w)
	head, err := json.MarshalIndent(d.header(), "", "  ")
	if err != nil {
		return fmt.Errorf("encode %d tables: %w", len(d.Tables), err)
	}
	// The list goes before the brace that ends the header.
	fmt.Fprintf(out, "%s,\n  \"servicePorts\": [", bytes.TrimSuffix(head, []byte("\n}")))
	separator := "\n    "
	for i := range d.ServicePorts {
		text, err := json.MarshalIndent(&d.ServicePorts[i], "    ", "  ")
		if err != nil {
			return fmt.Errorf("encode %s: %w", d.ServicePorts[i].Name, err)
		}
		fmt.Fprintf(out, "%s%s", separator, text)
		separator = ",\n    "
	}
	fmt.Fprint(out, "\n  ]\n}\n")
	return out.Flush()
}

// header is all of a Dump but the Service ports.
type header struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Tables     []Table        `json:"tables"`
	Routing    []routing.Line `json:"routing,omitempty"`
	Conntrack  *Conntrack     `json:"conntrack,omitempty"`
}

func (d *Dump) header() header { return header{APIVersion, Kind, d.Tables, d.Routing, d.Conntrack} }

// Select returns the Service ports of one Service.
func Select(ports []ServicePort, namespace, service string) []ServicePort {
	var out []ServicePort
	for _, p := range ports {
		if p.Namespace == namespace && p.Service == service {
			out = append(out, p)
		}
	}
	return out
}

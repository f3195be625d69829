// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// JSON writes a Dump, one Service port after the other, so that a large one needs no second copy in memory.
func JSON(w io.Writer, tables []Table, ports []ServicePort) error {
	out := bufio.NewWriter(w)
	head, err := json.MarshalIndent(tables, "  ", "  ")
	if err != nil {
		return fmt.Errorf("encode %d tables: %w", len(tables), err)
	}
	fmt.Fprintf(out, "{\n  \"apiVersion\": %q,\n  \"kind\": %q,\n  \"tables\": %s,\n  \"servicePorts\": [", APIVersion, Kind, head)
	separator := "\n    "
	for i := range ports {
		text, err := json.MarshalIndent(&ports[i], "    ", "  ")
		if err != nil {
			return fmt.Errorf("encode %s: %w", ports[i].Name, err)
		}
		fmt.Fprintf(out, "%s%s", separator, text)
		separator = ",\n    "
	}
	fmt.Fprint(out, "\n  ]\n}\n")
	return out.Flush()
}

// YAML writes a Dump, one Service port after the other.
func YAML(w io.Writer, tables []Table, ports []ServicePort) error {
	out := bufio.NewWriter(w)
	head, err := yaml.Marshal(map[string]any{"apiVersion": APIVersion, "kind": Kind, "tables": tables})
	if err != nil {
		return fmt.Errorf("encode %d tables: %w", len(tables), err)
	}
	list := "servicePorts:\n"
	if len(ports) == 0 {
		list = "servicePorts: []\n"
	}
	fmt.Fprintf(out, "%s%s", head, list)
	for i := range ports {
		text, err := yaml.Marshal(ports[i : i+1])
		if err != nil {
			return fmt.Errorf("encode %s: %w", ports[i].Name, err)
		}
		_, _ = out.Write(text) // Flush returns the first error
	}
	return out.Flush()
}

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

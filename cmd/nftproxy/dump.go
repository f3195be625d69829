// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/routing"
)

const aboutDump = `dump reads the tables of this node from the kernel and prints, for each Service
port, its addresses, policy and endpoints. It asks neither the API server nor the
proxy, so it works when they are down. It needs CAP_NET_ADMIN.

The first lines say whether chains, rules and maps are as this version writes
them. The schema of -o json and -o yaml is nftproxy.io/v1alpha1, kind Dump.`

// newDumpCommand returns `nftproxy dump`.
func newDumpCommand(out io.Writer) *cobra.Command {
	var output, service string
	cmd := &cobra.Command{
		Use: "dump", Short: "Print what the kernel is programmed with, Service by Service", Long: aboutDump, Args: cobra.NoArgs,
		Example: "  nftproxy dump\n  nftproxy dump -o wide --service default/web\n  nftproxy dump -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, err := dumpForm(output)
			if err != nil {
				return err
			}
			cmd.SilenceUsage = true
			return dump(cmd.Context(), out, write, service)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, wide, json or yaml.")
	cmd.Flags().StringVar(&service, "service", "", "Only this Service, as NAMESPACE/NAME.")
	return cmd
}

// dumpForm returns what writes a dump in the form that -o names.
func dumpForm(name string) (func(io.Writer, *inspect.Dump) error, error) {
	switch name {
	case "table", "":
		return func(w io.Writer, d *inspect.Dump) error { return inspect.Text(w, d, false) }, nil
	case "wide":
		return func(w io.Writer, d *inspect.Dump) error { return inspect.Text(w, d, true) }, nil
	case "json":
		return inspect.JSON, nil
	case "yaml":
		return inspect.YAML, nil
	}
	return nil, fmt.Errorf("-o %s: must be table, wide, json or yaml", name)
}

// dump prints the kernel's tables.
func dump(ctx context.Context, out io.Writer, write func(io.Writer, *inspect.Dump) error, service string) error {
	namespace, name, slash := strings.Cut(service, "/")
	if service != "" && !slash {
		return fmt.Errorf("--service %s: must be NAMESPACE/NAME", service)
	}
	d := &inspect.Dump{APIVersion: inspect.APIVersion, Kind: inspect.Kind}
	kernel, err := nft.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = kernel.Close() }()
	for _, f := range nft.Families() {
		table, ports, err := collect(kernel, f)
		if err != nil {
			return permission(err)
		}
		d.Tables = append(d.Tables, table)
		d.ServicePorts = append(d.ServicePorts, ports...)
	}
	if d.Routing, err = routingLines(ctx); err != nil {
		return permission(err)
	}
	if service != "" {
		if d.ServicePorts = inspect.Select(d.ServicePorts, namespace, name); len(d.ServicePorts) == 0 {
			return fmt.Errorf("no table has a Service %s", service)
		}
	}
	inspect.Sort(d.ServicePorts)
	return write(out, d)
}

// collect reads one family's table and the numbers of its sticky clients.
func collect(kernel *nft.Kernel, f nft.Family) (inspect.Table, []inspect.ServicePort, error) {
	s, err := kernel.Snapshot(f)
	if err != nil {
		return inspect.Table{}, nil, err
	}
	clients := map[uint32]int{}
	for _, a := range s.Affinities() {
		n := 0
		err := kernel.Elements(f, nft.AffinityMap(a.ID), func(_, _ []byte) { n++ })
		if err != nil && !errors.Is(err, syscall.ENOENT) { // its Service may have gone since
			return inspect.Table{}, nil, fmt.Errorf("clients of %s: %w", a.Owner, err)
		}
		clients[a.ID] = n
	}
	table, ports := inspect.Collect(s, clients)
	return table, ports, nil
}

func routingLines(ctx context.Context) ([]routing.Line, error) {
	kernel, err := routing.Open()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	return routing.Dump(ctx, kernel)
}

// permission says what to do about an EPERM.
func permission(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w (needs CAP_NET_ADMIN; try as root, in the node's network namespace)", err)
	}
	return err
}

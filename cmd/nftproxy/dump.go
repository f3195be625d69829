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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/routing"
)

const aboutDump = `dump reads the tables of this node from the kernel and prints, for each Service
port, its addresses, policy and endpoints. It asks neither the API server nor the
proxy, so it works when they are down. It needs CAP_NET_ADMIN.

The first lines say whether chains, rules and maps are as this version writes
them. The schema of -o json and -o yaml is nftproxy.io/v1alpha1, kind Dump.

-o svg and -o dot draw one Service. The kernel knows neither nodes nor zones; when a
source is named, by the proxy's own flags, the picture has them.

With --diff it also lists a source, named by the proxy's own flags, and prints what
the kernel lacks, what it has beside that, and what is different, Service by
Service (-o json: kind Drift). It exits with 0 if there is no drift, 1 if there is,
and 2 if it could not be found out.`

const dumpExamples = `  nftproxy dump
  nftproxy dump -o wide --service default/web
  nftproxy dump -o json
  nftproxy dump -o svg --service default/web > web.svg
  nftproxy dump --flows --service default/web
  nftproxy dump --diff --config=/var/lib/kube-proxy/config.conf`

// dumper is what `nftproxy dump` is asked for.
type dumper struct {
	output, service string
	name            kube.Name // of the Service, empty for all
	isDiff, flows   bool
	settle          time.Duration
	options         *config.Options // of the source
	flags           *pflag.FlagSet
}

// newDumpCommand returns `nftproxy dump`.
func newDumpCommand(out io.Writer) *cobra.Command {
	d := &dumper{options: config.NewOptions()}
	cmd := &cobra.Command{
		Use: "dump", Short: "Print what the kernel is programmed with, Service by Service", Long: aboutDump, Example: dumpExamples,
		Args: func(cmd *cobra.Command, args []string) error { return trouble(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.flags = cmd.Flags()
			return trouble(d.run(cmd.Context(), out))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return trouble(err) })
	cmd.Flags().StringVarP(&d.output, "output", "o", "table", "table, wide, json or yaml; of one Service also svg or dot, a picture.")
	cmd.Flags().StringVar(&d.service, "service", "", "Only this Service, as NAMESPACE/NAME.")
	cmd.Flags().BoolVar(&d.flows, "flows", false, "Count the tracked connections of each Service. The conntrack table is streamed: about 1 s of processor time for 1,000,000 entries.")
	cmd.Flags().BoolVar(&d.isDiff, "diff", false, "Compare with a source (--config, --kubeconfig, --master or --manifests, and the proxy's other flags).")
	cmd.Flags().DurationVar(&d.settle, "settle", time.Second, "With --diff, how long a difference lasts before it counts: a running proxy is a little behind its source.")
	addSourceFlags(d.options, cmd.Flags())
	completeFlags(cmd)
	return cmd
}

// trouble makes an error exit with 2, so that it cannot be taken for drift.
func trouble(err error) error {
	if err == nil || errors.Is(err, errDrift) {
		return err
	}
	return &exitError{2, err}
}

// run does what is asked for.
func (d *dumper) run(ctx context.Context, out io.Writer) error {
	if d.service != "" {
		var slash bool
		if d.name.Namespace, d.name.Name, slash = strings.Cut(d.service, "/"); !slash {
			return fmt.Errorf("--service %s: must be NAMESPACE/NAME", d.service)
		}
	}
	if d.isDiff {
		return d.diff(ctx, out)
	}
	write, err := d.form(ctx)
	if err != nil {
		return err
	}
	return d.dump(ctx, out, write)
}

// form returns what writes a dump in the form that -o names.
func (d *dumper) form(ctx context.Context) (func(io.Writer, *inspect.Dump) error, error) {
	switch d.output {
	case "table", "":
		return func(w io.Writer, doc *inspect.Dump) error { return inspect.Text(w, doc, false) }, nil
	case "wide":
		return func(w io.Writer, doc *inspect.Dump) error { return inspect.Text(w, doc, true) }, nil
	case "json":
		return inspect.JSON, nil
	case "yaml":
		return inspect.YAML, nil
	case "svg", "dot":
		return d.picture(ctx)
	}
	return nil, fmt.Errorf("-o %s: must be %s", d.output, strings.Join(dumpForms, ", "))
}

// dumpForms are the values of -o.
var dumpForms = []string{"table", "wide", "json", "yaml", "svg", "dot"}

// dump prints the kernel's tables.
func (d *dumper) dump(ctx context.Context, out io.Writer, write func(io.Writer, *inspect.Dump) error) error {
	doc := &inspect.Dump{APIVersion: inspect.APIVersion, Kind: inspect.Kind}
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
		doc.Tables = append(doc.Tables, table)
		doc.ServicePorts = append(doc.ServicePorts, ports...)
	}
	if doc.Routing, err = routingLines(ctx); err != nil {
		return permission(err)
	}
	if d.service != "" {
		if doc.ServicePorts = inspect.Select(doc.ServicePorts, d.name.Namespace, d.name.Name); len(doc.ServicePorts) == 0 {
			return fmt.Errorf("no table has a Service %s", d.service)
		}
	}
	inspect.Sort(doc.ServicePorts)
	if d.flows {
		if err := countFlows(ctx, doc); err != nil {
			return permission(err)
		}
	}
	return write(out, doc)
}

// collect reads one family's table and the numbers of its sticky clients.
func collect(kernel *nft.Kernel, f nft.Family) (inspect.Table, []inspect.ServicePort, error) {
	s, steady, err := kernel.Glimpse(f)
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
	table.Unsteady = !steady
	return table, ports, nil
}

// countFlows counts the tracked connections of what a document shows.
func countFlows(ctx context.Context, doc *inspect.Dump) error {
	facts, err := readFacts()
	if err != nil {
		return err
	}
	doc.Conntrack = &inspect.Conntrack{Exact: true}
	for _, f := range nft.Families() {
		t := inspect.NewTally(f, doc.ServicePorts, facts.isLocal)
		l, err := ctsync.List(ctx, 0, f == nft.IPv6, t.Begin, t.Count)
		if err != nil {
			return fmt.Errorf("count flows: %w", err)
		}
		doc.Conntrack.Scanned += l.Scanned
		doc.Conntrack.Exact = doc.Conntrack.Exact && l.Exact
	}
	return nil
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

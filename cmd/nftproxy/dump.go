// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	restclient "k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/ctsync"
	conntrack "github.com/nftproxy/nftproxy/ctsync/kernel"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/manifests"
	routingkernel "github.com/nftproxy/nftproxy/routing/kernel"
)

const aboutDump = `dump reads the tables of this node from the kernel and prints, for each Service
port, its addresses, policy and endpoints. It asks neither the API server nor the
proxy, so it works when they are down. It needs CAP_NET_ADMIN.

The first lines say whether chains, rules and maps are as this version writes
them. The schema of -o json and -o yaml is nftproxy.io/v1alpha1, kind Dump.

-o dot writes one Service as a graph for Graphviz. The kernel knows neither nodes nor
zones; with a source, named by the proxy's own flags, the graph has them.

With --diff it also lists a source, named by the proxy's own flags, and prints what
the kernel lacks, what it has too much, and what is different, Service by Service
(-o json: kind Drift).

It exits with 0 if all is well, with 1 if there is drift, a table is missing or differs
from what this version writes, or a Service has a problem, and with 2 if it could not
be found out.`

const dumpExamples = `  nftproxy dump
  nftproxy dump -o wide --service default/web
  nftproxy dump -o json
  nftproxy dump -o dot --service default/web | dot -Tsvg > web.svg
  nftproxy dump --flows --service default/web
  nftproxy dump --diff --config=/var/lib/kube-proxy/config.conf`

// dumper is one call of `nftproxy dump`.
type dumper struct {
	output, service string
	ref             serviceRef // of service
	isDiff, flows   bool
	settle          time.Duration
	options         *config.Options // of the source
	flags           *pflag.FlagSet
}

// dumpForms are the values of -o.
var dumpForms = []string{"table", "wide", "json", "yaml", "dot"}

// newDumpCommand returns `nftproxy dump`.
func newDumpCommand(out io.Writer) *cobra.Command {
	d := &dumper{options: config.NewOptions()}
	cmd := inquiry(&cobra.Command{
		Use: "dump", Short: "Print what the kernel is programmed with, Service by Service", Long: aboutDump, Example: dumpExamples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.flags = cmd.Flags()
			return d.run(cmd.Context(), out)
		},
	})
	cmd.Flags().StringVarP(&d.output, "output", "o", "table", "table, wide, json or yaml; of one Service also dot, a graph.")
	cmd.Flags().StringVar(&d.service, "service", "", "Only this Service, as NAMESPACE/NAME or NAMESPACE/NAME:PORT.")
	cmd.Flags().BoolVar(&d.flows, "flows", false, "Count the tracked connections of each Service. The conntrack table is streamed: about 1 s of processor time for 1,000,000 entries.")
	cmd.Flags().BoolVar(&d.isDiff, "diff", false, "Compare with a source (--config, --kubeconfig, --master or --manifests, and the proxy's other flags).")
	cmd.Flags().DurationVar(&d.settle, "settle", time.Second, "With --diff, how long a difference lasts before it counts: a running proxy is a little behind its source.")
	addSourceFlags(d.options, cmd.Flags())
	completeFlags(cmd, dumpForms)
	_ = cmd.MarkFlagDirname("manifests") // fails only for an unknown flag
	return cmd
}

func (d *dumper) run(ctx context.Context, out io.Writer) (err error) {
	if d.service != "" {
		if d.ref, err = parseService(d.service); err != nil {
			return fmt.Errorf("--service: %w", err)
		}
	}
	switch {
	case d.isDiff:
		return d.diff(ctx, out)
	case d.output == "svg":
		return errors.New("-o svg: pictures are drawn by Graphviz: nftproxy dump -o dot --service NAMESPACE/NAME | dot -Tsvg")
	case !slices.Contains(dumpForms, d.output):
		return fmt.Errorf("-o %s: must be %s", d.output, strings.Join(dumpForms, ", "))
	case d.output == "dot" && d.service == "":
		return errors.New("-o dot shows one Service: --service NAMESPACE/NAME is needed")
	}
	return d.dump(ctx, out)
}

// dump prints the kernel's tables.
func (d *dumper) dump(ctx context.Context, out io.Writer) error {
	doc := &inspect.Dump{APIVersion: inspect.APIVersion, Kind: inspect.Kind, Stamp: newStamp(d.flags), ServicePorts: []inspect.ServicePort{}}
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	wrong := false
	served, _ := families()
	for _, f := range nft.Families() {
		table, ports, err := collect(conn, f)
		if err != nil {
			return err
		}
		wrong = wrong || !table.AsWritten && (table.Exists || slices.Contains(served, f))
		doc.Tables = append(doc.Tables, table)
		doc.ServicePorts = append(doc.ServicePorts, ports...)
	}
	routes, err := routingkernel.Open()
	if err != nil {
		return err
	}
	defer routes.Close()
	if doc.Routing, err = routingkernel.Dump(ctx, routes); err != nil {
		return err
	}
	if d.service != "" {
		if doc.ServicePorts = d.ref.of(doc.ServicePorts); len(doc.ServicePorts) == 0 {
			return fmt.Errorf("no table has a Service %s; if it exists, the log of the proxy says why it is not programmed", d.service)
		}
	}
	inspect.Sort(doc.ServicePorts)
	if d.flows {
		if err := countFlows(ctx, doc); err != nil {
			return err
		}
	}
	switch d.output {
	case "json":
		err = inspect.JSON(out, doc)
	case "yaml":
		err = inspect.YAML(out, doc)
	case "dot":
		err = d.graph(ctx, out, doc)
	default:
		err = inspect.Text(out, doc, d.output == "wide")
	}
	if err != nil {
		return err
	}
	if wrong || slices.ContainsFunc(doc.ServicePorts, func(p inspect.ServicePort) bool { return len(p.Problems) > 0 }) {
		return errAnswerNo
	}
	return nil
}

// collect reads one family's table and the numbers of its remembered clients.
func collect(conn *kernel.Conn, f nft.Family) (inspect.Table, []inspect.ServicePort, error) {
	s, err := conn.Snapshot(f)
	if err != nil {
		return inspect.Table{}, nil, err
	}
	clients := map[uint32]int{}
	for _, a := range s.Affinities() {
		n := 0
		err := conn.Elements(f, nft.AffinityMap(a.ID), func(_, _ []byte) { n++ })
		if err != nil && !errors.Is(err, syscall.ENOENT) { // its Service may have gone since
			return inspect.Table{}, nil, fmt.Errorf("clients of %s: %w", a.Owner, err)
		}
		clients[a.ID] = n
	}
	table, ports := inspect.Collect(s, clients)
	table.Unsteady = !s.Steady
	return table, ports, nil
}

// countFlows counts the tracked connections of the Service ports of a document.
func countFlows(ctx context.Context, doc *inspect.Dump) error {
	facts, err := readFacts()
	if err != nil {
		return err
	}
	tallies := map[nft.Family]*inspect.Tally{}
	for _, f := range nft.Families() {
		tallies[f] = inspect.NewTally(f, doc.ServicePorts, facts.isLocal)
	}
	begin := func() {
		for _, t := range tallies {
			t.Begin()
		}
	}
	scanned, exact, err := conntrack.List(ctx, 0, begin, func(f *ctsync.Flow) { tallies[nft.FamilyOf(f.Dst.Addr())].Count(f) })
	if err != nil {
		return fmt.Errorf("count flows: %w", err)
	}
	doc.Conntrack = &inspect.Conntrack{Scanned: scanned, Exact: exact}
	return nil
}

// graph writes the graph of one Service, with the places of endpoints if the flags name a source.
func (d *dumper) graph(ctx context.Context, out io.Writer, doc *inspect.Dump) error {
	var o inspect.DOTOptions
	if hasSource(d.flags) {
		source, err := startDryRun(ctx, d.options, d.flags)
		if err != nil {
			return err
		}
		defer source.stop()
		o = inspect.DOTOptions{Node: source.NodeName(), Places: map[netip.Addr]inspect.Place{}}
		source.Endpoints(kube.Name{Namespace: d.ref.namespace, Name: d.ref.name}, func(e *kube.Endpoint) {
			o.Places[e.Addr] = inspect.Place{Node: e.Node.String(), Zone: e.Hints.Zone()}
		})
	}
	return inspect.DOT(out, d.service, doc.ServicePorts, o)
}

// sourceFlags are the flags of the proxy that name a source, which dump --help shows. All other flags of the proxy are
// accepted as well, since they too decide what is wanted, but for flagsOfServing.
var (
	sourceFlags    = []string{"config", "nftproxy-config", "manifests", "kubeconfig", "master", "hostname-override", "cluster-cidr"}
	flagsOfServing = []string{"write-config-to", "cleanup", "init-only"}
)

func addSourceFlags(opts *config.Options, fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.AddFlags(all)
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(flagsOfServing, f.Name) {
			f.Hidden = !slices.Contains(sourceFlags, f.Name)
			fs.AddFlag(f)
		}
	})
}

func hasSource(fs *pflag.FlagSet) bool {
	return slices.ContainsFunc([]string{"config", "manifests", "kubeconfig", "master"}, fs.Changed)
}

// dryRun is a source that runs, and what the proxy would program of it.
type dryRun struct {
	*proxier.DryRun
	stop func()
}

// listTimeout limits the wait for a source: the source itself tries an API server that is away for ever.
const listTimeout = 30 * time.Second

// startDryRun starts the source that the flags name and returns when it has listed everything.
func startDryRun(ctx context.Context, opts *config.Options, flags *pflag.FlagSet) (*dryRun, error) {
	cfg, err := opts.Load(flags, machine())
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var from source
	if cfg.Manifests != "" {
		from, err = manifests.New(cfg.Manifests, cfg.NodeName)
	} else {
		load := func() (*restclient.Config, error) { return cfg.Client.REST("nftproxy-dump/" + programVersion()) }
		client, errREST := load()
		if errREST != nil {
			return nil, errREST
		}
		if err := probeServer(client); err != nil {
			return nil, err
		}
		from, err = kube.NewAPI(load, cfg.NodeName)
	}
	if err != nil {
		return nil, err
	}
	o := proxier.NewDryRun(cfg, 0)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); from.Run(ctx, o.Sink()) }()
	stop := func() { cancel(); <-done }
	wait, end := context.WithTimeout(ctx, listTimeout)
	defer end()
	if err := o.Complete(wait); err != nil {
		stop()
		return nil, err
	}
	return &dryRun{o, stop}, nil
}

// probeServer asks an API server once and returns what is wrong with it: the source itself would only try again.
func probeServer(rest *restclient.Config) error {
	client, err := restclient.HTTPClientFor(rest)
	if err != nil {
		return err
	}
	server, _, err := restclient.DefaultServerUrlFor(rest)
	if err != nil {
		return err
	}
	client.Timeout = listTimeout
	reply, err := client.Get(server.JoinPath("api/v1/services").String() + "?limit=1")
	if err != nil {
		return fmt.Errorf("API server %s: %w", server.Host, err)
	}
	_ = reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("API server %s: list of Services: %s", server.Host, reply.Status)
	}
	return nil
}

// looks is how often the kernel is compared before a difference is drift.
const looks = 3

// diff compares the tables with what is wanted, and prints the differences that last for as long as settle: a running proxy
// is a few milliseconds behind its source.
func (d *dumper) diff(ctx context.Context, out io.Writer) error {
	if !slices.Contains([]string{"table", "wide", "json"}, d.output) {
		return fmt.Errorf("--diff -o %s: must be table or json", d.output)
	}
	if !hasSource(d.flags) {
		return errors.New("--diff needs a source to compare with: --config, --kubeconfig, --master or --manifests, as the proxy has them")
	}
	source, err := startDryRun(ctx, d.options, d.flags)
	if err != nil {
		return err
	}
	defer source.stop()
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	drift, err := compare(conn, source)
	for i := 1; i < looks && err == nil && drift.Drifted; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d.settle / (looks - 1)):
		}
		var now *inspect.Drift
		if now, err = compare(conn, source); err == nil {
			drift = now.Persisting(drift)
		}
	}
	if err != nil {
		return err
	}
	if d.service != "" && !drift.Only(d.ref.namespace, d.ref.name, d.ref.port) {
		return fmt.Errorf("neither the source nor the kernel has a Service %s", d.service)
	}
	drift.Stamp = newStamp(d.flags)
	if d.output == "json" {
		err = inspect.JSON(out, drift)
	} else {
		err = inspect.DriftText(out, drift)
	}
	if err != nil {
		return err
	}
	if drift.Drifted {
		return errAnswerNo
	}
	return nil
}

// compare compares all tables once.
func compare(conn *kernel.Conn, source *dryRun) (*inspect.Drift, error) {
	tables, _ := families()
	wanted, err := source.Tables(tables)
	if err != nil {
		return nil, err
	}
	drift := &inspect.Drift{}
	for _, w := range wanted {
		s, err := conn.Snapshot(w.Family) // a difference that an unsteady read makes does not persist
		if err != nil {
			return nil, err
		}
		drift.Compare(s, inspect.Wanted{Config: w.Config, Services: w.Services, Node: w.Node})
	}
	return drift, nil
}

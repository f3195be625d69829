// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// errDrift is the answer of `dump --diff` when the kernel is not as it should be; it has been printed.
var errDrift = errors.New("the kernel differs from what is wanted")

// sourceFlags are those of the root command by which a source is found, and which dump --help shows. The others of the
// proxy are taken as well, since they too decide what is wanted.
var sourceFlags = []string{"config", "nftproxy-config", "manifests", "kubeconfig", "master", "hostname-override", "cluster-cidr"}

// flagsOfServing are those that make the root command do something else than to tell what is wanted.
var flagsOfServing = []string{"write-config-to", "cleanup", "init-only"}

// addSourceFlags registers the flags of the proxy that a source and what is wanted of it depend on.
func addSourceFlags(opts *config.Options, fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.AddFlags(all)
	all.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(flagsOfServing, f.Name) {
			return
		}
		f.Hidden = !slices.Contains(sourceFlags, f.Name)
		fs.AddFlag(f)
	})
}

// hasSource tells whether the flags name a source of objects.
func hasSource(fs *pflag.FlagSet) bool {
	return slices.ContainsFunc([]string{"config", "manifests", "kubeconfig", "master"}, fs.Changed)
}

// observation is a source that runs, and who learns from it.
type observation struct {
	*proxier.Observer
	stop func()
}

// listTimeout bounds the wait for a source: an API server that is away is tried for ever.
const listTimeout = 30 * time.Second

// observe starts the source that the flags tell of and returns when it has listed everything.
func observe(ctx context.Context, opts *config.Options, flags *pflag.FlagSet) (*observation, error) {
	cfg, err := opts.Load(flags, config.Machine{Hostname: os.Hostname, ReadFile: os.ReadFile})
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	p := &parts{cfg: cfg}
	if cfg.Manifests != "" {
		p.source, err = kube.NewManifests(cfg.Manifests, cfg.NodeName)
	} else {
		rest, errREST := cfg.Client.REST("nftproxy-dump/" + programVersion())
		if errREST != nil {
			return nil, errREST
		}
		p.source, err = kube.NewAPI(rest, cfg.NodeName)
	}
	if err != nil {
		return nil, err
	}
	o := proxier.NewObserver(cfg, 0)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); p.source.Run(ctx, o.Sink()) }()
	stop := func() { cancel(); <-done }
	wait, end := context.WithTimeout(ctx, listTimeout)
	defer end()
	if err := o.Complete(wait); err != nil {
		stop()
		return nil, err
	}
	return &observation{o, stop}, nil
}

// looks bounds how often the kernel is compared before what still differs is drift.
const looks = 3

// diff compares the tables with what is wanted, and prints what stays different for as long as settle: a proxy that runs
// is a few milliseconds behind its source.
func (d *dumper) diff(ctx context.Context, out io.Writer) error {
	write := inspect.DriftText
	switch d.output {
	case "table", "wide":
	case "json":
		write = inspect.DriftJSON
	default:
		return fmt.Errorf("--diff -o %s: must be table or json", d.output)
	}
	if !hasSource(d.flags) {
		return errors.New("--diff needs a source to compare with: --config, --kubeconfig, --master or --manifests, as the proxy has them")
	}
	source, err := observe(ctx, d.options, d.flags)
	if err != nil {
		return err
	}
	defer source.stop()
	kernel, err := nft.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = kernel.Close() }()
	drift, err := compare(kernel, source)
	for i := 1; i < looks && err == nil && drift.Drifted; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d.settle / (looks - 1)):
		}
		var now *inspect.Drift
		if now, err = compare(kernel, source); err == nil {
			drift = now.Persisting(drift)
		}
	}
	if err != nil {
		return permission(err)
	}
	if d.service != "" {
		drift.Only(d.name.Namespace, d.name.Name)
	}
	if err := write(out, drift); err != nil {
		return err
	}
	if drift.Drifted {
		return errDrift
	}
	return nil
}

// compare is one look at all tables.
func compare(kernel *nft.Kernel, source *observation) (*inspect.Drift, error) {
	tables, _ := families()
	wanted, err := source.Wanted(tables)
	if err != nil {
		return nil, err
	}
	drift := &inspect.Drift{}
	for _, w := range wanted {
		s, _, err := kernel.Glimpse(w.Family) // what is torn now is not in the next look
		if err != nil {
			return nil, err
		}
		drift.Compare(s, inspect.Wanted{Config: w.Config, Services: w.Services, Node: w.Node})
	}
	return drift, nil
}

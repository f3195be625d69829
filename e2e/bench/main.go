// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures nftproxy against real kube-proxy in nftables mode: one machine, one run, one kube-apiserver, the two
// taking turns in networks of their own. Every answer that is waited for is a real TCP connection of a pod through a ClusterIP.
//
//	make bench          1,000x3, 10,000x3, 30,000x3 and 5,000x50 (Services x endpoints)
//	make bench-quick    1,000x3, within 5 minutes
//
// It prints a table, and writes it to out/ with report.json and plots.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// options say how much is measured.
type options struct {
	rows      []size
	rounds    int           // how often the proxies take turns
	changes   int           // endpoint changes and new Services per round, at most
	least     int           // of each
	phase     time.Duration // no further of them is begun after that
	skip      []string      // phases of a turn
	sustain   time.Duration // how long each rate of churn is kept up
	rates     []int         // endpoint changes per second
	dualStack bool
	out       string
}

// size is a row of the matrix.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		err = bench(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	rows := f.String("rows", "1000x3,10000x3,30000x3,5000x50", "Services x endpoints, separated by commas")
	rates := f.String("rates", "100,1000", "endpoint changes per second under churn, separated by commas")
	f.IntVar(&o.rounds, "rounds", 2, "how often the two proxies take turns")
	f.IntVar(&o.changes, "changes", 25, "endpoint changes and new Services per round, at most")
	f.DurationVar(&o.phase, "phase", time.Minute, "begin no further change after this time, unless there were too few")
	f.IntVar(&o.least, "least", 3, "how many changes are made however long they take")
	skip := f.String("skip", "", "what to leave out, separated by commas: changes, creations, connections, churn, restart")
	f.DurationVar(&o.sustain, "churn", time.Minute, "how long each rate of churn is kept up")
	f.BoolVar(&o.dualStack, "dual-stack", false, "Services of both families; otherwise of IPv4")
	f.StringVar(&o.out, "out", "out", "directory of the report")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, text := range strings.Split(*rows, ",") {
		var s size
		if _, err := fmt.Sscanf(text, "%dx%d", &s.services, &s.endpoints); err != nil || s.services < hot+writers || s.endpoints < 1 {
			return o, fmt.Errorf("-rows: %q is not like 1000x3, with at least %d Services", text, hot+writers)
		}
		o.rows = append(o.rows, s)
	}
	o.skip = strings.Split(*skip, ",")
	for _, text := range strings.Split(*rates, ",") {
		var r int
		if _, err := fmt.Sscanf(text, "%d", &r); err != nil || r < 1 {
			return o, fmt.Errorf("-rates: %q", text)
		}
		o.rates = append(o.rates, r)
	}
	return o, nil
}

// bench measures all rows. The report is written after each, so that an interrupted run has one too.
func bench(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	r := newReport(o, os.Args[1:])
	for _, s := range o.rows {
		row, err := measure(ctx, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		r.rows = append(r.rows, row)
		if err := r.write(o.out); err != nil {
			return err
		}
	}
	fmt.Print(r.markdown())
	progress("written to %s", o.out)
	return nil
}

// measure fills an API server and lets the proxies take turns on it.
func measure(ctx context.Context, o options, sz size) (*row, error) {
	start := time.Now()
	c, err := newCluster(ctx, sz, o.dualStack)
	if err != nil {
		return nil, err
	}
	defer c.cp.Close()
	progress("%s: loaded into the API server in %.1fs", sz, time.Since(start).Seconds())
	row := newRow(sz)
	kinds := []lab.ProxyKind{lab.NFTProxy, lab.KubeProxy}
	for round := range o.rounds {
		// The first turn may be dearer, as caches of the server are cold: each goes first in turn.
		for i := range kinds {
			kind := kinds[(i+round)%len(kinds)]
			if err := turn(ctx, o, c, kind, row.samples[kind]); err != nil {
				return nil, fmt.Errorf("round %d: %s: %w", round+1, kind, err)
			}
		}
	}
	return row, nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

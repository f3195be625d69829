// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures nftproxy against real kube-proxy in nftables mode: one machine, one run, one kube-apiserver, the two
// taking turns in networks of their own. Every answer that is waited for is a real TCP connection of a pod through a ClusterIP.
//
//	make bench                           1,000x3, 10,000x3, 30,000x3 and 5,000x50 (Services x endpoints), 45 minutes
//	make bench-quick                     1,000x3, within 5 minutes
//	go run . -merge out-1,out-2 -out o   one report of several runs
//
// It prints a table, and writes it to out/ with report.json, readme.md, plots, and samples.json, which has every measurement.
// In each phase connections through ClusterIPs are made all the time, and beside them connections to an endpoint; the run ends
// with an error, after everything is written, if one through nftproxy failed or waited longer than 20 ms while none of those to
// the endpoint did.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
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
	peers     []peer        // ours first
	iptables  []size        // rows in which kube-proxy's iptables mode takes part
	large     []size        // one Service with many endpoints
	dualStack bool
	lenient   bool // bad connections do not make the run fail
	merge     []string
	out       string
}

// peer is a proxy that is measured.
type peer struct {
	name string
	kind lab.ProxyKind
	mode string // of kube-proxy; empty is nftables
}

// The proxies. Names are keys in the JSON.
var (
	ours     = peer{name: "nftproxy", kind: lab.NFTProxy}
	nftables = peer{name: "kube-proxy", kind: lab.KubeProxy}
	iptables = peer{name: "kube-proxy-iptables", kind: lab.KubeProxy, mode: "iptables"}
)

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
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	rows := f.String("rows", "1x3,1000x3,10000x3,30000x3,5000x50", "Services x endpoints, separated by commas; the first, of one "+
		"Service, is for connections only")
	large := f.String("large", "1x10000,1x100000", "single Services with many endpoints, one of which changes; \"\" is none")
	rates := f.String("rates", "100,1000", "endpoint changes per second under churn, separated by commas")
	peers := f.String("peers", "nftables,iptables", "kube-proxy's modes beside nftproxy, separated by commas; \"\" is none")
	in := f.String("iptables-rows", "10000x3", "rows in which kube-proxy's iptables mode takes part")
	merge := f.String("merge", "", "measure nothing: make one report of these directories' samples.json, separated by commas; "+
		"what is in several counts from the last of them")
	skip := f.String("skip", "", "what to leave out, separated by commas: changes, creations, connections, churn, restart, "+
		"restart 1%, tables")
	f.IntVar(&o.rounds, "rounds", 2, "how often the proxies take turns; from the second on with cold start, rest and changes only")
	f.IntVar(&o.changes, "changes", 100, "endpoint changes and new Services per round, at most")
	f.DurationVar(&o.phase, "phase", 30*time.Second, "begin no further change after this time, unless there were too few")
	f.IntVar(&o.least, "least", 3, "how many changes are made however long they take; 2 after a cold start of a minute")
	f.DurationVar(&o.sustain, "churn", time.Minute, "how long each rate of churn is kept up")
	f.BoolVar(&o.dualStack, "dual-stack", false, "Services of both families; otherwise of IPv4")
	f.BoolVar(&o.lenient, "lenient", false, "succeed even if connections through nftproxy failed or were slow")
	f.StringVar(&o.out, "out", "out", "directory of the report")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.skip, o.merge = list(*skip), list(*merge)
	var errs [5]error
	o.rows, errs[0] = sizes(*rows)
	o.large, errs[1] = sizes(*large)
	o.iptables, errs[2] = sizes(*in)
	o.peers, errs[3] = peersOf(*peers)
	o.rates, errs[4] = numbers(*rates)
	return o, errors.Join(errs[:]...)
}

// list splits at commas; nothing has no parts.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func sizes(text string) (all []size, err error) {
	for _, part := range list(text) {
		var s size
		if _, err := fmt.Sscanf(part, "%dx%d", &s.services, &s.endpoints); err != nil || s.services < 1 || s.endpoints < 1 {
			return nil, fmt.Errorf("size %q is not like 1000x3", part)
		}
		all = append(all, s)
	}
	return all, nil
}

func numbers(text string) (all []int, err error) {
	for _, part := range list(text) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("rate %q", part)
		}
		all = append(all, n)
	}
	return all, nil
}

func peersOf(text string) ([]peer, error) {
	all := []peer{ours}
	for _, part := range list(text) {
		switch part {
		case "nftables":
			all = append(all, nftables)
		case "iptables":
			all = append(all, iptables)
		default:
			return nil, fmt.Errorf("peer %q is neither nftables nor iptables", part)
		}
	}
	return all, nil
}

// bench measures all rows. The report is written after each, so that an interrupted run has one too.
func bench(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	r := newReport(o, os.Args[1:])
	if len(o.merge) > 0 {
		return finish(o, r, r.merge(o.merge))
	}
	// A thread that waits in system calls of its own must not wait for one of Go's few processors as well.
	runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	for _, sz := range slices.Concat(o.rows, o.large) {
		do := measure
		if slices.Contains(o.large, sz) {
			do = single
		}
		row := r.newRow(sz)
		if err := do(ctx, o, row); err != nil {
			return fmt.Errorf("%s: %w", sz, err)
		}
		r.rows = append(r.rows, row)
		if err := r.write(o.out); err != nil {
			return err
		}
	}
	return finish(o, r, nil)
}

// finish writes and prints the report, and says what it does not stand for.
func finish(o options, r *report, err error) error {
	if err != nil {
		return err
	}
	if err := r.write(o.out); err != nil {
		return err
	}
	fmt.Print(r.markdown())
	progress("written to %s", o.out)
	bad := r.violations()
	for _, b := range bad {
		progress("NOT HELD: %s", b)
	}
	if len(bad) > 0 && !o.lenient {
		return fmt.Errorf("%d claims about connections not held; the report is complete", len(bad))
	}
	return nil
}

// measure fills an API server and lets the proxies take turns on it.
func measure(ctx context.Context, o options, row *row) error {
	start := time.Now()
	c, err := newCluster(ctx, row.size, o.dualStack)
	if err != nil {
		return err
	}
	defer c.cp.Close()
	progress("%s: loaded into the API server in %.1fs", row.size, time.Since(start).Seconds())
	for round := range o.rounds {
		for i := range o.peers {
			// The first turn may be dearer, as caches of the server are cold: each goes first in turn.
			who := o.peers[(i+round)%len(o.peers)]
			into := row.of(who.name)
			if round > 0 && (quantile(into["cold_start"], 0.5) > crawl.Seconds() || row.services < hot+writers || who == iptables) ||
				who == iptables && !slices.Contains(o.iptables, row.size) {
				continue
			}
			if err := turn(ctx, o, c, who, round, into); err != nil {
				return fmt.Errorf("round %d: %s: %w", round+1, who.name, err)
			}
		}
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

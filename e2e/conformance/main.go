// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command conformance runs upstream's own end-to-end tests of Services (k8s.io/kubernetes/test/e2e, [sig-network]) against a
// running cluster, and writes what became of each as a table, nftproxy beside kube-proxy.
//
//	conformance run -suite smoke|full -proxy nftproxy -bin DIR -kubeconfig FILE   runs the tests, keeps the results
//	conformance list -suite full -bin DIR                                       says what would run, and why not the rest
//	conformance table -doc docs/conformance.md                                  writes the table of what is kept
//
// suite.sh beside it builds what is needed, starts the cluster, and takes it down again; the Makefile calls that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// options are the flags.
type options struct {
	suite, proxy, version string
	bin, kubectl          string
	kubeconfig, netns     string
	out, doc, machine     string
	only, note            string
	again                 bool
	procs, attempts       int
	nodes                 int // that take pods; found out by run
	timeout               time.Duration
}

// Suites.
const (
	suiteSmoke = "smoke"
	suiteFull  = "full"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// command does what the first argument says.
func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("run, list or table")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.suite, "suite", suiteFull, "smoke: the Conformance tests of Services; full: all that are about Services and their proxy")
	flags.StringVar(&o.proxy, "proxy", "nftproxy", "the proxy that the cluster runs; names the results")
	flags.StringVar(&o.version, "version", "", "its version, for the table")
	flags.StringVar(&o.machine, "machine", "", "the machine, for the table")
	flags.StringVar(&o.bin, "bin", "", "directory of e2e.test and ginkgo (e2e/conformance/upstream/build.sh)")
	flags.StringVar(&o.kubectl, "kubectl", "kubectl", "the tests call it")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "of the cluster's administrator")
	flags.StringVar(&o.netns, "netns", "", "network namespace in which the cluster is reached; empty for this one")
	flags.StringVar(&o.out, "out", "e2e/conformance/out", "where results and logs are kept")
	flags.StringVar(&o.doc, "doc", "docs/conformance.md", "table to write")
	flags.StringVar(&o.note, "note", "", "sentence for the table, on how the runs were made")
	flags.StringVar(&o.only, "only", "", "regular expression: run only tests that match; results of others are kept")
	flags.BoolVar(&o.again, "again", false, "run only what has not passed in the run that is kept, and add to it")
	flags.IntVar(&o.procs, "procs", 4, "tests at a time")
	flags.IntVar(&o.attempts, "attempts", 2, "how often a test may be tried; every attempt is reported")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "for one run of the suite")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "run":
		return o.run(ctx)
	case "list":
		return o.list(ctx)
	case "table":
		return o.table()
	default:
		return fmt.Errorf("%s: neither run, list nor table", args[0])
	}
}

// tests are those of the suite.
func (o options) tests(ctx context.Context) ([]test, error) {
	var only *regexp.Regexp
	switch o.suite {
	case suiteSmoke:
		only = smoke
	case suiteFull:
	default:
		return nil, fmt.Errorf("suite %q: neither %s nor %s", o.suite, suiteSmoke, suiteFull)
	}
	names, err := o.names(ctx)
	if err != nil {
		return nil, err
	}
	return sortOut(names, only, o.here()...), nil
}

// here are the rules of this machine, whose kernel the nodes share.
func (o options) here() []rule {
	var rules []rule
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
		unix.Close(fd)
	} else if errors.Is(err, unix.EPROTONOSUPPORT) {
		rules = append(rules, noSCTP)
	}
	if o.netns != "" { // e2e/cluster, not kind
		rules = append(rules, noEviction)
	}
	return rules
}

// list prints every test of the suite, with the reason why it is left out.
func (o options) list(ctx context.Context) error {
	tests, err := o.tests(ctx)
	if err != nil {
		return err
	}
	beside, alone := parts(tests)
	for _, t := range tests {
		mark := "run   "
		if t.Skip != "" {
			mark = "leave "
		} else if t.Serial() {
			mark = "alone "
		}
		fmt.Printf("%s %s", mark, t.Name)
		if t.Skip != "" {
			fmt.Printf(" (%s)", t.Skip)
		}
		fmt.Println()
	}
	fmt.Printf("%d tests: %d run beside each other, %d alone, %d are left out\n",
		len(tests), len(beside), len(alone), len(tests)-len(beside)-len(alone))
	return nil
}

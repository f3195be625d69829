// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func main() {
	fast := flag.Bool("fast", false, "play the fast subset only")
	only := flag.String("only", "", "play only scenarios whose \"setup: name\" matches this regular expression")
	upstream := flag.Bool("upstream", false, "print docs/upstream.md instead")
	differences := flag.Bool("differences", false, "print docs/differences.md instead")
	flag.Parse()
	if *differences {
		writeDifferences(os.Stdout)
		return
	}
	if *upstream {
		if err := printUpstream(); err != nil {
			fmt.Fprintln(os.Stderr, "oracle:", err)
			os.Exit(1)
		}
		return
	}
	if err := oracle(*fast, *only); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func oracle(fast bool, only string) error {
	o := options{fast: fast, log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	if only != "" {
		re, err := regexp.Compile(only)
		if err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		o.only = re
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{})
	if err != nil {
		return err
	}
	defer cp.Close()
	cells, err := run(ctx, cp, o)
	if err != nil {
		return err
	}
	if n := report(os.Stdout, cells); n > 0 {
		return fmt.Errorf("%d of %d cells differ without a reason, or from what is expected", n, len(cells))
	}
	if old := unused(cells); !fast && only == "" && len(old) > 0 {
		return fmt.Errorf("%d reasons explain nothing any more: %q", len(old), old)
	}
	return nil
}

// printUpstream needs a network for the addresses of endpoints, but no packets.
func printUpstream() error {
	n, err := lab.New(labOptions(lab.Options{}))
	if err != nil {
		return err
	}
	defer n.Close()
	writeUpstream(os.Stdout, coverage(setups(), func(st *setup) *plan { return st.plan(n) }))
	return nil
}

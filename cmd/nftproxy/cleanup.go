// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft/kernel"
	routingkernel "github.com/nftproxy/nftproxy/routing/kernel"
)

const aboutCleanup = `cleanup removes everything that nftproxy made on this node, and nothing else: its
nftables tables, addresses, routes, rules and neighbours. Services are not served
any more, so start another proxy first or at once after it. It needs CAP_NET_ADMIN.

With --wait-for-kube-proxy it first waits until kube-proxy has written its rules, so
that there is no gap; if it does not in time nothing is removed.

With --kube-proxy it also removes what kube-proxy left in nftables: its own
tables, and its chains in the tables of iptables-nft. Chains of the kubelet stay.
Do not use it while kube-proxy runs.`

// newCleanupCommand returns `nftproxy cleanup`. The flag --cleanup of the root
// command is the same with --kube-proxy, as it is for kube-proxy.
func newCleanupCommand(out io.Writer) *cobra.Command {
	var kubeProxy bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove everything that nftproxy made on this node", Long: aboutCleanup, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			if err := waitForKubeProxy(cmd.Context(), wait); err != nil {
				return permission(err)
			}
			return removeAll(cmd.Context(), out, kubeProxy)
		},
	}
	cmd.Flags().BoolVar(&kubeProxy, "kube-proxy", false, "Also remove what kube-proxy left in nftables.")
	cmd.Flags().DurationVar(&wait, "wait-for-kube-proxy", 0, "How long to wait until kube-proxy serves what is removed; 0 does not wait.")
	cmd.MarkFlagsMutuallyExclusive("kube-proxy", "wait-for-kube-proxy")
	return cmd
}

// cleanup is what the flag --cleanup asks for.
func cleanup(ctx context.Context) error { return removeAll(ctx, os.Stdout, true) }

// removeAll removes what was made and tells what that was.
func removeAll(ctx context.Context, out io.Writer, kubeProxy bool) error {
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ours, err := conn.RemoveTables()
	if err != nil {
		return permission(fmt.Errorf("remove our tables: %w", err))
	}
	report := newRemoval(out)
	report.removed(ours)
	traces, err := conn.RemoveTraces()
	report.removed(traces)
	if err != nil {
		return permission(fmt.Errorf("remove what a trace left: %w", err))
	}
	routes, err := routingkernel.Open()
	if err != nil {
		return err
	}
	defer routes.Close()
	n, err := routingkernel.Cleanup(ctx, routes)
	report.count(n, "addresses, routes, rules and neighbours of ours")
	if err != nil {
		return permission(fmt.Errorf("remove our routing: %w", err))
	}
	if kubeProxy {
		theirs, err := conn.RemoveKubeProxy()
		report.removed(theirs)
		if err != nil {
			return permission(err)
		}
	}
	return report.done()
}

// removal prints one line per kind of thing that was removed.
type removal struct {
	out   io.Writer
	lines int
	err   error
}

func newRemoval(out io.Writer) *removal { return &removal{out: out} }

func (r *removal) line(format string, args ...any) {
	r.lines++
	if _, err := fmt.Fprintf(r.out, format+"\n", args...); err != nil && r.err == nil {
		r.err = err
	}
}

func (r *removal) count(n int, what string) {
	if n > 0 {
		r.line("removed %d %s", n, what)
	}
}

func (r *removal) removed(what kernel.Removed) {
	for _, t := range what.Tables {
		r.line("removed table %s", t)
	}
	r.count(what.Chains, "chains of kube-proxy in tables of iptables-nft")
	r.count(what.Rules, "rules that led to them")
	for _, c := range what.Kept {
		r.line("kept chain %s: rules that are not kube-proxy's lead to it", c)
	}
}

func (r *removal) done() error {
	if r.lines == 0 {
		r.line("nothing to remove")
	}
	return r.err
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	routingkernel "github.com/nftproxy/nftproxy/routing/kernel"
)

const aboutCleanup = `cleanup removes everything that nftproxy made on this node, and nothing else: its
nftables tables, addresses, routes, rules and neighbours. Services are not served
any more, so start another proxy first or at once after it. It needs CAP_NET_ADMIN.

While nftproxy runs in this network namespace it refuses to, since the proxy would
write its tables again; --force does it anyway. --dry-run shows what would be removed.

With --wait-for-kube-proxy it first waits until kube-proxy has written its rules and
nftproxy has ended, so that there is no gap; if they do not in time nothing is removed.

With --kube-proxy it also removes what kube-proxy left in nftables: its own
tables, and its chains in the tables of iptables-nft. Chains of the kubelet stay.
Do not use it while kube-proxy runs.`

// cleaner is one call of `nftproxy cleanup`.
type cleaner struct {
	kubeProxy, force, dryRun bool
	wait                     time.Duration
	out                      io.Writer
	lines                    int
}

// newCleanupCommand returns `nftproxy cleanup`. The flag --cleanup of the root command is the same with --kube-proxy, as it is
// for kube-proxy.
func newCleanupCommand(out io.Writer) *cobra.Command {
	c := cleaner{out: out}
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove everything that nftproxy made on this node", Long: aboutCleanup, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return permission(c.run(cmd.Context())) },
	}
	cmd.Flags().BoolVar(&c.kubeProxy, "kube-proxy", false, "Also remove what kube-proxy left in nftables.")
	cmd.Flags().BoolVar(&c.force, "force", false, "Remove also while nftproxy runs here.")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "Only print what would be removed.")
	cmd.Flags().DurationVar(&c.wait, "wait-for-kube-proxy", 0, "How long to wait until kube-proxy serves what is removed; 0 does not wait.")
	cmd.MarkFlagsMutuallyExclusive("kube-proxy", "wait-for-kube-proxy")
	return cmd
}

// cleanup is the flag --cleanup.
func cleanup(ctx context.Context) error {
	c := cleaner{kubeProxy: true, out: os.Stdout}
	return permission(c.run(ctx))
}

func (c *cleaner) run(ctx context.Context) error {
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := c.ready(ctx, conn); err != nil {
		return err
	}
	conn.DryRun = c.dryRun
	removed, err := conn.RemoveTables()
	c.print(removed)
	if err != nil {
		return fmt.Errorf("remove our tables: %w", err)
	}
	removed, err = conn.RemoveTraces()
	c.print(removed)
	if err != nil {
		return fmt.Errorf("remove the tables of a killed trace: %w", err)
	}
	if err := c.routing(ctx); err != nil {
		return fmt.Errorf("remove our routing: %w", err)
	}
	if c.kubeProxy {
		removed, err = conn.RemoveKubeProxy()
		c.print(removed)
		if err != nil {
			return err
		}
	}
	if c.lines == 0 {
		_, err = fmt.Fprintln(c.out, "nothing to remove")
	}
	return err
}

func (c *cleaner) routing(ctx context.Context) error {
	routes, err := routingkernel.Open()
	if err != nil {
		return err
	}
	defer routes.Close()
	n := 0
	if c.dryRun {
		lines, err := routingkernel.Dump(ctx, routes)
		c.count(len(lines), "addresses, routes, rules and neighbours of ours")
		return err
	}
	n, err = routingkernel.Cleanup(ctx, routes)
	c.count(n, "addresses, routes, rules and neighbours of ours")
	return err
}

// successorPoll is the pause between two looks for kube-proxy's rules: short against the second that it takes to start.
const successorPoll = 100 * time.Millisecond

// ready waits for kube-proxy if that is asked for, and refuses while a proxy serves the namespace.
func (c *cleaner) ready(ctx context.Context, conn *kernel.Conn) error {
	if c.force || c.dryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(c.wait, time.Nanosecond))
	defer cancel()
	for {
		var err error
		pid, held := lockHolder(lockName)
		if held {
			err = fmt.Errorf("nftproxy (process %d) serves this network namespace and would write its tables again: stop it first, or use --force", pid)
		} else if c.wait > 0 {
			held, err = successorMissing(conn)
		}
		if !held {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(successorPoll):
		}
	}
}

// successorMissing returns whether kube-proxy has not yet written rules of a family in which we serve, and that as an error.
func successorMissing(conn *kernel.Conn) (bool, error) {
	for _, f := range nft.Families() {
		ours, err := conn.Read(f)
		if err != nil {
			return false, fmt.Errorf("read our table: %w", err)
		}
		if !slices.ContainsFunc(ours.Elements, func(e nft.Element) bool { return e.Set == nft.Services }) {
			continue // nothing to succeed to
		}
		serves, err := conn.KubeProxyServes(f)
		if err != nil {
			return false, err
		}
		if !serves {
			return true, fmt.Errorf("kube-proxy has written no rules of family %s, nothing was removed", f)
		}
	}
	return false, nil
}

func (c *cleaner) line(format string, args ...any) {
	c.lines++
	_, _ = fmt.Fprintf(c.out, format+"\n", args...) // what is removed does not come back by an error
}

func (c *cleaner) verb() string {
	if c.dryRun {
		return "would remove"
	}
	return "removed"
}

func (c *cleaner) count(n int, what string) {
	if n > 0 {
		c.line("%s %d %s", c.verb(), n, what)
	}
}

func (c *cleaner) print(what kernel.Removed) {
	for _, t := range what.Tables {
		c.line("%s table %s", c.verb(), t)
	}
	c.count(what.Chains, "chains of kube-proxy in tables of iptables-nft")
	c.count(what.Rules, "rules that led to them")
	for _, k := range what.Kept {
		c.line("kept chain %s: rules that are not kube-proxy's lead to it", k)
	}
}

// takeOverPauses are the pauses before each removal of what kube-proxy left. Where one DaemonSet follows another, the
// former's process may still run for 30 s (terminationGracePeriodSeconds) and write again what was removed: they cover
// twice that.
func takeOverPauses() []time.Duration {
	return []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}
}

// takeOver removes what kube-proxy left, once our own tables serve: so there is no gap, and no packet passes the rules of two
// proxies for long. A failure is only logged: it must not keep us from serving.
func takeOver(ctx context.Context) {
	for _, pause := range takeOverPauses() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			removeLeftovers(klog.FromContext(ctx), "of kube-proxy", (*kernel.Conn).RemoveKubeProxy)
		}
	}
}

// removeLeftovers removes what an earlier process left behind. A failure is only logged.
func removeLeftovers(log klog.Logger, whose string, remove func(*kernel.Conn) (kernel.Removed, error)) {
	conn, err := kernel.Open(0)
	if err != nil {
		log.Error(err, "Cannot look for leftovers "+whose)
		return
	}
	defer func() { _ = conn.Close() }()
	gone, err := remove(conn)
	if len(gone.Tables)+gone.Chains+gone.Rules > 0 {
		log.Info("Removed leftovers "+whose, "tables", gone.Tables, "chains", gone.Chains, "rules", gone.Rules, "kept", gone.Kept)
	}
	if err != nil {
		log.Error(err, "Cannot remove leftovers "+whose+"; run `nftproxy cleanup --kube-proxy` when nftproxy is stopped")
	}
}

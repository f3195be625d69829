// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// takeOverPauses are the pauses before each look for what kube-proxy left. Where one DaemonSet follows another, the
// former's process may still run for 30 s (terminationGracePeriodSeconds) and write anew what was removed: the looks
// cover twice that.
func takeOverPauses() []time.Duration {
	return []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}
}

// takeOver removes what kube-proxy left, once our own tables serve: so there is
// no gap, and no packet meets two proxies for long. A failure is logged only: it
// must not stop us from serving what kube-proxy did not know.
func takeOver(ctx context.Context) {
	for _, pause := range takeOverPauses() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			removeLeftovers(klog.FromContext(ctx))
		}
	}
}

func removeLeftovers(log klog.Logger) {
	conn, err := kernel.Open(0)
	if err != nil {
		log.Error(err, "Leftovers of kube-proxy could not be looked for")
		return
	}
	defer func() { _ = conn.Close() }()
	gone, err := conn.RemoveKubeProxy()
	if len(gone.Tables)+gone.Chains+gone.Rules > 0 {
		log.Info("Removed leftovers of kube-proxy", "tables", gone.Tables, "chains", gone.Chains, "rules", gone.Rules, "kept", gone.Kept)
	}
	if err != nil {
		log.Error(err, "Leftovers of kube-proxy could not be removed; run `nftproxy cleanup --kube-proxy` when nftproxy is stopped")
	}
}

// removeTraces removes what a trace that was killed left behind, which only happens before Linux 5.12. It has no effect any
// more, so that a failure is logged only.
func removeTraces(log klog.Logger) {
	conn, err := kernel.Open(0)
	if err != nil {
		log.Error(err, "Leftovers of a trace could not be looked for")
		return
	}
	defer func() { _ = conn.Close() }()
	gone, err := conn.RemoveTraces()
	if len(gone.Tables) > 0 {
		log.Info("Removed leftovers of a trace", "tables", gone.Tables)
	}
	if err != nil {
		log.Error(err, "Leftovers of a trace could not be removed")
	}
}

// successorPoll is the pause between two looks for kube-proxy's rules: short against the second that it takes to start.
const successorPoll = 100 * time.Millisecond

var errNoSuccessor = errors.New("kube-proxy has written no rules, nothing was removed")

// waitForKubeProxy waits until kube-proxy serves each family that we serve, or for the given time. With 0 it does not.
func waitForKubeProxy(ctx context.Context, limit time.Duration) error {
	if limit <= 0 {
		return nil
	}
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, f := range nft.Families() {
		ours, err := conn.Read(f)
		if err != nil {
			return fmt.Errorf("read our table: %w", err)
		}
		if !slices.ContainsFunc(ours.Elements, func(e nft.Element) bool { return e.Set == nft.Services }) {
			continue // nothing to succeed to
		}
		if err := awaitSuccessor(ctx, conn, f); err != nil {
			return err
		}
	}
	return nil
}

func awaitSuccessor(ctx context.Context, conn *kernel.Conn, f nft.Family) error {
	for {
		serves, err := conn.KubeProxyServes(f)
		if err != nil || serves {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("family %s: %w: %w", f, errNoSuccessor, context.Cause(ctx))
		case <-time.After(successorPoll):
		}
	}
}

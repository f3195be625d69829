// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// prepareNode does what needs more than CAP_NET_ADMIN: conntrack sysctls, whose
// failure is fatal as in kube-proxy, and the OOM score, whose failure is not.
func prepareNode(ctx context.Context, cfg *config.Config) error {
	log := klog.FromContext(ctx)
	sys := sysctl.System{Root: "/"}
	if err := sys.SetOOMScore(cfg.OOMScoreAdj); err != nil {
		log.V(2).Info("OOM score not set", "err", err)
	}
	changes, err := sys.ApplyConntrack(cfg.Conntrack, sys.CPUs(runtime.NumCPU()))
	for _, c := range changes {
		log.Info("Set parameter", "path", c.Path, "before", c.Before, "now", c.Now)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("conntrack parameters: %w (is the module nf_conntrack loaded?)", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS): // containers see /proc/sys read-only
		return fmt.Errorf("conntrack parameters: %w (run --init-only with full privileges first, or set conntrack.maxPerCore to 0)", err)
	case err != nil:
		return fmt.Errorf("conntrack parameters: %w", err)
	}
	return nil
}

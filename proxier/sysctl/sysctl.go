// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets the kernel parameters that kube-proxy sets: conntrack
// limits and timeouts, and the process's OOM score. What to write is computed
// by pure functions; a Writer does the reading and writing below a root that
// tests choose.
package sysctl

import "time"

// Conntrack are the conntrack settings of KubeProxyConfiguration.
type Conntrack struct {
	// MaxPerCore entries per CPU; 0 leaves nf_conntrack_max alone, whatever Min.
	MaxPerCore int
	// Min is the least nf_conntrack_max.
	Min int
	// TCPEstablished and TCPCloseWait are written when greater than 0.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal writes nf_conntrack_tcp_be_liberal=1; false leaves it alone.
	TCPBeLiberal bool
	// UDP and UDPStream are written when greater than 0.
	UDP, UDPStream time.Duration
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	"github.com/nftproxy/nftproxy/routing"
)

// Own are nftproxy's own settings, parsed from the document
// `apiVersion: nftproxy.io/v1alpha1, kind: NFTProxyConfiguration`.
type Own struct {
	// StrictSourceRanges closes a family for which loadBalancerSourceRanges has
	// no range while the other family has one. kube-proxy leaves it open; false
	// does the same.
	StrictSourceRanges bool
	// AffinityMapSize is the number of clients that the affinity map of one
	// Service port remembers per family.
	AffinityMapSize int
	// MaxServiceElements bounds the elements that one Service may ask for in both
	// families, MaxElements those of all Services; 0 is no bound.
	MaxServiceElements, MaxElements int
	// CountConnections counts new connections to each address of each Service.
	CountConnections bool
	// BatchWindow is how far apart two transactions are at least.
	BatchWindow time.Duration
	// StaleFlows says which conntrack entries are deleted beside those of UDP.
	StaleFlows StaleFlows
	// Routing are the settings of addresses, routes and rules, normalized. What
	// the run finds out (node addresses, ServiceCIDR objects) is for the loop to
	// add before it normalizes again.
	Routing routing.Config
}

// StaleFlows says what happens to flows of endpoints that no longer serve. UDP
// flows are always deleted.
type StaleFlows struct {
	TCP   bool // delete established TCP flows to endpoints that are gone
	SCTP  bool // likewise for SCTP
	Reset bool // answer such TCP flows with a reset; needs TCP
}

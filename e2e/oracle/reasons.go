// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/nftproxy/nftproxy/e2e/lab"
)

// reason explains differences to an operator.
type reason struct {
	text string // its first word is what the table shows
	is   func(c *cell) bool
}

// known are the differences that are meant, or cannot be helped.
var known = []reason{
	{
		"service-cidr: kube-proxy learns of ServiceCIDRs after it wrote its first rules and applies them with its next full sync, up " +
			"to an hour later (its nodes differ in this by chance); nftproxy drops what is sent to ClusterIPs that no Service has from the start",
		func(c *cell) bool {
			return (c.at == clusterIP || c.at == unallocated) && c.ours.names == "dropped" && c.theirs.names == "unreachable"
		},
	},
	{
		"last-endpoint: when a Service loses its last endpoint, kube-proxy leaves its UDP flows in conntrack, and the endpoint that is " +
			"gone gets their packets for as long as they come; nftproxy ends the flows, and the client is refused",
		func(c *cell) bool {
			return c.scenario == "a flow whose endpoint goes" && c.step == "none" && c.ours.names == "refused"
		},
	},
	{
		"strict-ranges: loadBalancerSourceRanges of one family only leave the other open with kube-proxy; nftproxy closes it " +
			"(strictSourceRanges: false does as kube-proxy)",
		func(c *cell) bool {
			return c.scenario == "source ranges of IPv4 only" && c.family == lab.IPv6 && c.at == lbIP && c.ours.names == "dropped"
		},
	},
}

// reasonFor is the text of the reason for a difference, empty if there is none.
func reasonFor(c *cell) string {
	if c.ours == c.theirs {
		return ""
	}
	for _, r := range known {
		if r.is(c) {
			return r.text
		}
	}
	return ""
}

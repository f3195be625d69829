// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// reason explains differences to an operator.
type reason struct {
	text string // its first word is what the table shows
	is   func(c *cell) bool
	// chance means that kube-proxy does either, so that a run may not need the reason.
	chance bool
}

// known are the differences that are meant, or cannot be helped.
var known = []reason{
	{
		text: "service-cidr: kube-proxy receives ServiceCIDRs after it has written its first rules and applies them with its next full sync, up " +
			"to an hour later, so that its nodes differ by chance; nftproxy drops packets to ClusterIPs that no Service has from the start",
		is: func(c *cell) bool {
			return (c.at == clusterIP || c.at == unallocated) && c.ours.names == "dropped" && c.theirs.names == "unreachable"
		},
		chance: true,
	},
	{
		text: "last-endpoint: when a Service loses its last endpoint, kube-proxy leaves its UDP flows in conntrack, and the former endpoint " +
			"receives their packets for as long as the client sends; nftproxy deletes the flows, and the client is refused",
		is: func(c *cell) bool {
			return c.scenario == "a flow whose endpoint goes" && c.step == "none" && c.ours.names == "refused"
		},
	},
	{
		text: "deleted-service: when a Service is deleted, kube-proxy leaves its UDP flows in conntrack, and its endpoints receive their packets for " +
			"as long as the client sends; nftproxy deletes the flows, and the next packet is treated like that of a new flow",
		is: func(c *cell) bool {
			return c.scenario == "a flow whose Service goes" && c.step == "deleted" && c.proto == lab.UDP &&
				(c.ours.names == "dropped" || c.ours.names == "refused" || c.ours.names == "unreachable")
		},
	},
	{
		text: "missed-cleanup: kube-proxy looks for stale UDP flows once, after a change of endpoints. If the Service is created after its endpoints, or " +
			"the dump of conntrack is interrupted, such flows remain; nftproxy repeats the search",
		is: func(c *cell) bool {
			return strings.HasPrefix(c.scenario, "a flow ") && c.step != "" && c.proto == lab.UDP && c.want != "" && c.ours.names == c.want
		},
		chance: true,
	},
	{
		text: "late-address: kube-proxy reads the node's addresses with each full sync, up to an hour apart; nftproxy serves NodePorts on a new " +
			"address at once",
		is: func(c *cell) bool {
			return c.at == latePort && c.ours.names == "pod-1-1" && c.theirs.names == "refused"
		},
	},
	{
		text: "conflict: of two Services with the same external IP and port, kube-proxy serves the one that it processes last, in no defined order; nftproxy " +
			"serves the older one, and the other one gets an Event",
		is: func(c *cell) bool {
			return c.setup == "conflicts" && c.at == externalIP && c.ours.names == "pod-1-1" && c.theirs.names == "pod-2-1"
		},
		chance: true,
	},
	{
		text: "strict-ranges: if all loadBalancerSourceRanges are of one family, kube-proxy leaves the other family open; nftproxy closes it " +
			"(strictSourceRanges: false opens it)",
		is: func(c *cell) bool {
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

// unused are the reasons that no cell needed, though kube-proxy always does as they say. They are out of date.
func unused(cells []*cell) (out []string) {
	needed := map[string]bool{}
	for _, c := range cells {
		needed[c.reason] = true
	}
	for _, r := range known {
		if !r.chance && !needed[r.text] {
			out = append(out, r.text)
		}
	}
	return out
}

// writeDifferences writes docs/differences.md.
func writeDifferences(w io.Writer) {
	fmt.Fprint(w, `# Packets that nftproxy treats differently from kube-proxy

Written by `+"`go run ./e2e/oracle -differences`"+`; a test fails if it is out of date.

The oracle (`+"`make oracle`"+`, e2e/oracle) sends real packets through nftproxy and through kube-proxy v1.36.3 in nftables mode, in
identical networks with the same API server. It compares which endpoint answers, which source address it sees, and what is refused or
dropped. These are all the differences it finds:

| | |
|---|---|
`)
	for _, r := range known {
		name, text, _ := strings.Cut(r.text, ": ")
		fmt.Fprintf(w, "| %s | %s |\n", name, text)
	}
	fmt.Fprint(w, `
The oracle treats a TCP reset and an ICMP port unreachable alike, as clients do. nftproxy refuses TCP with a
reset, which the kernel does not rate-limit, and kube-proxy with ICMP.

kube-proxy may miss the zone of its Node at start, because it watches Nodes a moment before it registers the handler, and then
ignores topology hints until the label changes. The oracle changes the label once after the start, so that this is not in the table.
`)
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command oracle holds nftproxy against real kube-proxy: what a Service means is what kube-proxy v1.36 in nftables mode does
// with real packets, unless a written reason says why nftproxy does something else.
//
//	go run ./e2e/oracle              # all setups: about two minutes on two cores
//	go run ./e2e/oracle -fast        # what go test runs
//	go run ./e2e/oracle -only 'etp'  # scenarios whose "setup: name" matches
//	go run ./e2e/oracle -upstream    # docs/upstream.md: which upstream test is covered by which scenario
//	go run ./e2e/oracle -differences # docs/differences.md: the reasons
//
// # How it works
//
// A setup is one configuration of the proxies. For each there are two equal networks (package lab) that share one control
// plane: nftproxy runs on the nodes of one, kube-proxy on those of the other, and both read the same objects. Addresses are
// equal in both, so one object suits both.
//
// A scenario is a Service with its endpoints, in one or more steps; a step changes objects. All scenarios of a setup live in
// the cluster at the same time, and take their steps together: that is what makes hundreds of cells a matter of seconds. A
// new Service, written last, shows when a proxy has seen everything written before it: watches keep the order.
//
// A cell is one sender, one address, one protocol, one family. Many connections are made; recorded is the set of endpoints
// that answered with the kind of source each of them saw, and what became of the others. A cell in which the two differ is
// observed again with more connections and longer timeouts before it counts as a difference: sets that are sampled, and
// timeouts on a busy machine, may look different and be equal.
//
// # Reading the table
//
//	setup: scenario [step]  sender  address  protocol  family  outcome
//
// "pod-1-1 as own" reads: pod-1-1 answered, and saw the sender's own address. "as node-1/pods0" is masqueraded to node-1's
// address on the interface pods0. "refused" is a TCP RST or an ICMP port unreachable, whichever it is: clients see the same.
// "unreachable" comes from the lab's router: no proxy took the packet for a Service. A row that begins with "!" is a
// difference without a reason, or an outcome other than the scenario expects of both.
package main

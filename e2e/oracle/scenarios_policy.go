// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

// policies are internal and external traffic policy Local.
func (p *plan) policies() {
	s := p.service("etp-here", etpLocal)
	p.scenario("ETP Local, endpoints on node-1", s, on(s, p.pod(1, 1), p.pod(1, 2)),
		row{from: []string{outside}, at: []string{nodePort1, lbIP, externalIP}, want: "pod-1-1 pod-1-2"},
		row{from: clients, at: []string{nodePort2}, want: "dropped"},
		row{from: []string{second}, at: []string{lbIP, externalIP}, want: "dropped"},
		// Kubernetes issue 131765: the node without an endpoint takes its own senders to the others.
		row{from: []string{podB, hostB}, at: []string{lbIP, externalIP, nodePort2}, want: "pod-1-1 pod-1-2"},
		row{from: withSelf, at: allAddresses}).
		as("service.go: should support externalTrafficPolicy=Local for type=NodePort")
	s = p.service("etp-both", etpLocal)
	p.scenario("ETP Local, endpoints on both nodes", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: withSelf, at: allAddresses}).
		as("loadbalancer.go: should work for type=LoadBalancer", "loadbalancer.go: should target all nodes with endpoints")
	s = p.service("etp-none", etpLocal)
	p.scenario("ETP Local, no endpoints", s, on(s),
		row{from: everyone, at: allAddresses, want: "refused"})
	s = p.service("itp-here", itpLocal)
	p.scenario("ITP Local, endpoint on node-1", s, on(s, p.pod(1, 1)),
		row{from: []string{podA, hostA, itself, outside}, at: []string{clusterIP}, want: "pod-1-1"},
		row{from: []string{podB, hostB, second}, at: []string{clusterIP}, want: "dropped"},
		row{from: withSelf, at: external, want: "pod-1-1"}).
		as("service.go: should respect internalTrafficPolicy=Local Pod to Pod",
			"service.go: should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod")
	s = p.service("itp-hostnet", itpLocal)
	p.scenario("ITP Local, hostNetwork endpoint on node-1", s, on(s, p.node(1)),
		row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "node-1"},
		row{from: []string{podB, hostB}, at: []string{clusterIP}, want: "dropped"}).
		as("service.go: should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)")
	s = p.service("etp-hostnet", etpLocal)
	p.scenario("ETP Local, hostNetwork endpoint on node-1", s, on(s, p.node(1)), row{from: everyone, at: allAddresses})
	s = p.service("itp-none", itpLocal)
	p.scenario("ITP Local, no endpoints", s, on(s),
		row{from: everyone, at: someOfAll, want: "refused"})
	s = p.service("both-local", itpLocal, etpLocal)
	p.scenario("ITP and ETP Local, endpoint on node-1", s, on(s, p.pod(1, 1)),
		row{from: withSelf, at: allAddresses})
}

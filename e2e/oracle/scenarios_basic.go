// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// basics are Services of the Cluster policy: whom every kind of sender reaches through every kind of address.
func (p *plan) basics() {
	s := p.service("both")
	p.scenario("endpoints on both nodes", s, on(s, p.pod(1, 1), p.pod(1, 2), p.pod(2, 1)),
		row{from: withSelf, at: allAddresses, want: "pod-1-1 pod-1-2 pod-2-1"},
		row{from: everyone, at: []string{unusedPort}, want: "refused"},
		row{from: everyone, at: []string{unallocated}, want: "dropped"},
		row{from: []string{podA, podB, outside}, at: []string{clusterIP}, protos: []lab.Proto{lab.SCTP}, want: "refused", ask: unasked},
		row{from: everyone, at: []string{unusedLBPort, gatewayPort, secondPort}},
		row{from: inner, at: []string{loopbackPort}},
		row{from: one, at: someOfAll, want: "200", ask: large}).
		as(granular("networking.go", "http", "udp")...).as(granular("dual_stack.go", "http", "udp")...).
		as("service.go: should serve a basic endpoint from pods",
			"service.go: should be able to create a functioning NodePort service",
			"service.go: should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]",
			"service.go: should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node",
			"networking.go: should function for multiple endpoint-Services with same selector",
			"networking.go: should support basic nodePort: udp functionality",
			"networking.go: should be able to handle large requests: http", "networking.go: should be able to handle large requests: udp",
			"dual_stack.go: should be able to handle large requests: http", "dual_stack.go: should be able to handle large requests: udp",
			"dual_stack.go: should create service with ipv4,v6 cluster ip", "dual_stack.go: should create service with ipv6,v4 cluster ip")
	s = p.service("here")
	p.scenario("one endpoint, on node-1", s, on(s, p.pod(1, 1)),
		row{from: withSelf, at: allAddresses, want: "pod-1-1"}).
		as("service.go: should allow pods to hairpin back to themselves through services")
	s = p.service("none")
	p.scenario("no endpoints", s, on(s),
		row{from: everyone, at: allAddresses, want: "refused"})
	s = p.service("no-slices")
	p.scenario("no slices", s, lab.Objects(s),
		row{from: one, at: someOfAll, want: "refused"})
	s = p.service("hostnet")
	p.scenario("hostNetwork endpoints", s, on(s, p.node(1), p.node(2)),
		row{from: everyone, at: allAddresses, want: "node-1 node-2"}).
		as("networking.go: should function for service endpoints using hostNetwork",
			"dual_stack.go: should function for service endpoints using hostNetwork")
	s = p.serving("sctp", []corev1.ServicePort{lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080), lab.Port(lab.SCTP, 80, 8080)})
	p.scenario("SCTP beside TCP and UDP on one port", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: allAddresses, protos: []lab.Proto{lab.SCTP}, want: "pod-1-1 pod-2-1"},
		row{from: one, at: someOfAll, want: "pod-1-1 pod-2-1"}).
		as("service.go: should allow creating a basic SCTP service with pod and endpoints [LinuxOnly]").
		as(granular("networking.go", "sctp")...).as("dual_stack.go: should function for pod-Service: sctp")
}

// granular are the names that upstream gives to one check by every kind of sender.
func granular(file string, protos ...string) (out []string) {
	for _, proto := range protos {
		for _, sender := range []string{"pod", "node", "endpoint"} {
			out = append(out, file+": should function for "+sender+"-Service: "+proto)
		}
	}
	return out
}

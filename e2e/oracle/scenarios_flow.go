// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// affinity is session affinity by the client's address.
func (p *plan) affinity() {
	three := func() []lab.Endpoint { return []lab.Endpoint{p.pod(1, 1), p.pod(1, 2), p.pod(2, 1)} }
	s := p.service("sticky", sticky(time.Hour))
	all := []string{clusterIP, nodePort1, lbIP, externalIP}
	p.scenario("session affinity", s, on(s, three()...),
		row{from: []string{outside}, at: []string{clusterIP}, want: "sticks", ask: sticks(clusterIP)},
		row{from: []string{outside}, at: []string{nodePort1}, want: "sticks", ask: sticks(nodePort1)},
		row{from: []string{outside}, at: []string{lbIP}, want: "sticks", ask: sticks(lbIP)},
		row{from: []string{outside}, at: []string{"across all of them"}, ask: sticks(all...)},
		row{from: []string{podA, hostA, itself}, at: []string{clusterIP}, want: "sticks", ask: sticks(clusterIP)},
		row{from: []string{podA, hostA, itself}, at: []string{lbIP}, want: "sticks", ask: sticks(lbIP)}).
		as("service.go: should have session affinity work for service with type clusterIP [LinuxOnly]",
			"service.go: should have session affinity work for NodePort service [LinuxOnly]",
			"networking.go: should function for client IP based session affinity: http [LinuxOnly]",
			"networking.go: should function for client IP based session affinity: udp [LinuxOnly]",
			"dual_stack.go: should function for client IP based session affinity: http [LinuxOnly]",
			"dual_stack.go: should function for client IP based session affinity: udp [LinuxOnly]",
			"loadbalancer.go: should have session affinity work for LoadBalancer service with Cluster traffic policy").
		then("an endpoint goes", nil, on(s, p.pod(1, 2), p.pod(2, 1)),
			row{from: []string{outside}, at: []string{clusterIP, nodePort1, lbIP}, want: "stays", ask: stays("pod-1-2", "pod-2-1")}).
		then("and another comes", nil, on(s, p.pod(1, 2), p.pod(2, 1), p.pod(2, 2)),
			row{from: []string{outside}, at: []string{clusterIP, nodePort1, lbIP}, want: "stays", ask: stays("pod-1-2", "pod-2-1", "pod-2-2")})

	off := p.service("switched")
	onAgain := with(off, sticky(time.Hour))
	rows := func(want string) []row {
		return []row{
			{from: []string{outside}, at: []string{clusterIP}, want: want, ask: sticks(clusterIP)},
			{from: []string{outside}, at: []string{nodePort1}, want: want, ask: sticks(nodePort1)},
			{from: []string{outside}, at: []string{lbIP}, want: want, ask: sticks(lbIP)}}
	}
	p.scenario("session affinity that is switched", off, on(off, three()...), rows("spreads")...).
		as("service.go: should be able to switch session affinity for service with type clusterIP [LinuxOnly]",
			"service.go: should be able to switch session affinity for NodePort service [LinuxOnly]",
			"loadbalancer.go: should be able to switch session affinity for LoadBalancer service with Cluster traffic policy").
		then("on", onAgain, lab.Objects(onAgain), rows("sticks")...).
		then("off", off, lab.Objects(off), rows("spreads")...)

	s = p.service("sticky-local", sticky(time.Hour), etpLocal)
	p.scenario("session affinity with ETP Local", s, on(s, p.pod(1, 1), p.pod(1, 2), p.pod(2, 1)),
		row{from: []string{outside}, at: []string{lbIP}, want: "sticks", ask: sticks(lbIP)},
		row{from: []string{outside}, at: []string{nodePort1}, want: "sticks", ask: sticks(nodePort1)}).
		as("loadbalancer.go: should have session affinity work for LoadBalancer service with Local traffic policy",
			"loadbalancer.go: should be able to switch session affinity for LoadBalancer service with Local traffic policy")

	short := p.service("short", sticky(2*time.Second))
	p.scenario("session affinity of two seconds", short, on(short, three()...),
		row{from: []string{outside}, at: []string{clusterIP}, want: "spreads", ask: outlasts(3*time.Second, 1)},
		row{from: []string{outside}, at: []string{nodePort1, lbIP}, want: "sticks", ask: outlasts(time.Second, 4)}).
		as("service.go: should have session affinity timeout work for service with type clusterIP [LinuxOnly]",
			"service.go: should have session affinity timeout work for NodePort service [LinuxOnly]").slowly()
}

// flows are kept while endpoints change beneath them.
func (p *plan) flows() {
	s := p.service("cycles")
	from := []string{podA, podB, hostA, outside}
	at := []string{clusterIP, nodePort1, lbIP}
	p.scenario("a flow whose endpoint goes", s, on(s, p.pod(1, 1)),
		row{from: from, at: at, want: "pod-1-1", ask: flow}).
		as("conntrack.go: should be able to preserve UDP traffic when server pod cycles for a NodePort service",
			"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service",
			"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork",
			"loadbalancer.go: should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes",
			"loadbalancer.go: should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes").
		then("another one serves", nil, on(s, p.pod(2, 1)),
			row{from: from, at: at, protos: udp, want: "pod-2-1", ask: flow},
			row{from: from, at: at, protos: tcp, want: "pod-1-1", ask: flow}).
		then("on the same node", nil, on(s, p.pod(2, 2)),
			row{from: from, at: at, protos: udp, want: "pod-2-2", ask: flow}).
		then("none", nil, on(s), row{from: from, at: at, protos: udp, want: "refused", ask: flow})
	s = p.cluster("cycles-local", itpLocal)
	p.scenario("a flow under ITP Local whose endpoint goes", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "pod-1-1", ask: flow}).
		as("conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service with InternalTrafficPolicy set to Local").
		then("another one serves", nil, on(s, p.pod(1, 2), p.pod(2, 1)),
			row{from: []string{podA, hostA}, at: []string{clusterIP}, protos: udp, want: "pod-1-2", ask: flow})
	s = p.service("gets-ready")
	p.scenario("a flow before its endpoint is ready", s, on(s, unready(p.pod(1, 1))),
		row{from: from, at: at, protos: udp, want: "refused", ask: flow}).
		as("conntrack.go: should be able to preserve UDP traffic when initial unready endpoints get ready").
		then("ready", nil, on(s, p.pod(1, 1)), row{from: from, at: at, protos: udp, want: "pod-1-1", ask: flow})
	s = p.service("target-port")
	moved := with(s, func(s *corev1.Service) { s.Spec.Ports[1].TargetPort.IntVal = 8081 })
	p.scenario("a flow whose target port changes", s, on(s, p.pod(1, 1)), row{from: from, at: at, protos: udp, want: "pod-1-1", ask: flow}).
		as("conntrack.go: should be able to cleanup conntrack entries when UDP service target port changes for a NodePort service").
		then("another target port", moved, on(moved, p.pod(1, 1)), row{from: from, at: at, protos: udp, want: "pod-1-1:8081", ask: flow})
	s = p.service("winds-down")
	e := []string{podA, hostA, outside}
	p.scenario("a flow whose endpoint terminates", s, on(s, p.pod(1, 1)), row{from: e, at: at, want: "pod-1-1", ask: flow}).
		then("and still serves, beside a ready one", nil, on(s, terminating(p.pod(1, 1)), p.pod(2, 1)), row{from: e, at: at, ask: flow}).
		then("and serves no more", nil, on(s, ended(p.pod(1, 1)), p.pod(2, 1)),
			row{from: e, at: at, protos: udp, want: "pod-2-1", ask: flow}, row{from: e, at: at, protos: tcp, want: "pod-1-1", ask: flow})
	s = p.service("vanishes")
	p.scenario("a flow whose Service goes", s, on(s, p.pod(1, 1)), row{from: e, at: at, want: "pod-1-1", ask: flow}).
		then("deleted", nil, nil, row{from: e, at: at, protos: tcp, want: "pod-1-1", ask: flow}, row{from: e, at: at, protos: udp, ask: flow}).
		without(on(s)...)
	s = p.service("turns-local")
	local := with(s, etpLocal, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32001 })
	p.scenario("a flow when ETP becomes Local", s, on(s, p.pod(2, 1)),
		row{from: clients, at: []string{nodePort1, nodePort2}, want: "pod-2-1", ask: flow}).
		then("Local", local, lab.Objects(local), row{from: clients, at: []string{nodePort1, nodePort2}, ask: flow})
	s = p.service("late")
	p.scenario("a flow before its Service", s, nil, row{from: []string{podA, outside}, at: at, protos: udp, ask: flow}).
		then("the Service is created", nil, on(s, p.pod(1, 1)), row{from: []string{podA, outside}, at: []string{clusterIP, nodePort1}, protos: udp, want: "pod-1-1", ask: flow})
}

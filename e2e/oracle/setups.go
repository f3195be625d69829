// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// setups are all configurations.
func setups() []*setup {
	detect := func(mode string, more map[string]any) map[string]any {
		all := map[string]any{"detectLocalMode": mode}
		if more != nil {
			all["detectLocal"] = more
		}
		return all
	}
	return []*setup{
		{name: "default", fill: func(p *plan) {
			p.basics()
			p.policies()
			p.conditions()
			p.topology()
			p.slicing()
			p.odd()
			p.extremes()
			p.types()
			p.changes()
			p.policiesChange()
			p.urls()
			p.affinity()
			p.flows()
			p.sources()
			p.addresses()
		}},
		{name: "NodeCIDR", slow: true, config: detect("NodeCIDR", nil), fill: (*plan).detection},
		{name: "BridgeInterface", slow: true, fill: (*plan).detection,
			config: detect("BridgeInterface", map[string]any{"bridgeInterface": lab.PodBridge})},
		{name: "InterfaceNamePrefix", slow: true, fill: (*plan).detection, options: lab.Options{Routed: true},
			config: detect("InterfaceNamePrefix", map[string]any{"interfaceNamePrefix": "veth"})},
		{name: "no detection", slow: true, config: map[string]any{"clusterCIDR": ""}, fill: (*plan).detection},
		{name: "masqueradeAll", slow: true, fill: (*plan).detection,
			config: map[string]any{"nftables": map[string]any{"minSyncPeriod": "50ms", "masqueradeAll": true}}},
		{name: "nodePortAddresses, IPv4 only", slow: true, fill: (*plan).nodePorts,
			config: map[string]any{"nodePortAddresses": []string{"192.0.2.0/24"}}},
		{name: "nodePortAddresses, both", slow: true, fill: (*plan).nodePorts,
			config: map[string]any{"nodePortAddresses": []string{"192.0.2.0/24", "10.244.0.0/16", "fd00:2::/64"}}},
		{name: "addresses that come", slow: true, fill: (*plan).comingAddresses,
			config: map[string]any{"nodePortAddresses": []string{"192.0.2.0/24", "fd00:2::/64"}}},
		{name: "strictSourceRanges: false", slow: true, fill: (*plan).sources,
			own: "{apiVersion: nftproxy.io/v1alpha1, kind: NFTProxyConfiguration, strictSourceRanges: false}"},
		{name: "a Node that changes", slow: true, fill: (*plan).changingNode},
		{name: "conflicts", slow: true, fill: (*plan).conflicts},
		{name: "nodePortAddresses, all", slow: true, fill: (*plan).nodePorts,
			config: map[string]any{"nodePortAddresses": []string{"0.0.0.0/0", "::/0"}}},
		{name: "bridged pods call iptables", slow: true, fill: (*plan).detection, options: lab.Options{BridgeNetfilter: true}},
	}
}

// nodePorts asks for node ports at all addresses of a node.
func (p *plan) nodePorts() {
	at := []string{nodePort1, nodePort2, secondPort, gatewayPort}
	s := p.service("np")
	p.scenario("endpoints on both nodes", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: at}, row{from: inner, at: []string{loopbackPort}})
	s = p.service("np-local", etpLocal)
	p.scenario("ETP Local, endpoint on node-1", s, on(s, p.pod(1, 1)), row{from: everyone, at: at},
		row{from: []string{outside}, at: []string{"health check of node-1"}, protos: tcp, ask: healthCheck(1)})
	s = p.service("np-none")
	p.scenario("no endpoints", s, on(s), row{from: everyone, at: at})
}

// detection is what depends on who counts as a pod of the node: masquerade and the short cut of the Local policies.
func (p *plan) detection() {
	s := p.service("both")
	p.scenario("endpoints on both nodes", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		// Whether an outside client's ClusterIP connection survives depends on masquerade, without which answers pass it by.
		row{from: clients, at: []string{clusterIP}},
		row{from: append(slices.Clone(inner), itself), at: []string{clusterIP}, want: "pod-1-1 pod-2-1"},
		row{from: withSelf, at: []string{nodePort1, lbIP}, want: "pod-1-1 pod-2-1"})
	s = p.service("etp-there", etpLocal)
	p.scenario("ETP Local, endpoint on node-2", s, on(s, p.pod(2, 1)),
		row{from: everyone, at: []string{clusterIP, nodePort1, nodePort2, lbIP}})
	s = p.service("itp", itpLocal)
	p.scenario("ITP Local, endpoint on node-1", s, on(s, p.pod(1, 1)),
		row{from: everyone, at: []string{clusterIP}})
}

// comingAddresses is a NodePort on an address that a node gets while it serves.
func (p *plan) comingAddresses() {
	s := p.service("np")
	rows := []row{{from: []string{outside, hostA, podA}, at: []string{secondPort}, want: "pod-1-1", ask: eventually}}
	sc := p.scenario("a NodePort and a new address", s, on(s, p.pod(1, 1)), rows...).
		then("node-1 has it", nil, nil, append(rows, row{from: []string{outside, hostA, podA}, at: []string{latePort}, want: "pod-1-1", ask: eventually})...)
	sc.steps[1].do = func(n *lab.Net) error {
		return errors.Join(n.Node(1).AddAddr("eth0", lateAddr(lab.IPv4)), n.Node(1).AddAddr("eth0", lateAddr(lab.IPv6)))
	}
}

// changingNode is a Node whose zone changes. It is node-1; node-2 stays in zone b.
func (p *plan) changingNode() {
	s := p.service("zones")
	in := func(zone ...string) []lab.Object {
		if len(zone) == 0 {
			return lab.Objects(lab.NewNode(p.net.Node(1)))
		}
		return lab.Objects(lab.NewNode(p.net.Node(1), "topology.kubernetes.io/zone", zone[0]))
	}
	on1 := row{from: []string{podA, hostA, outside}, at: []string{clusterIP, nodePort1}, ask: eventually}
	want := func(names string) row { r := on1; r.want = names; return r }
	p.scenario("hints by zone", s, on(s, hints(p.pod(1, 1), []string{"a"}), hints(p.pod(2, 1), []string{"b"})), want("pod-1-1")).
		then("node-1 moves to zone b", nil, in("b"), want("pod-2-1")).
		then("node-1 is in no zone", nil, in(), want("pod-1-1 pod-2-1")).
		then("node-1 is in a zone without endpoints", nil, in("c"), want("pod-1-1 pod-2-1")).
		then("node-1 is back in zone a", nil, in("a"), want("pod-1-1"))
}

// conflicts are Services that ask for the same address and port, the older one first.
func (p *plan) conflicts() {
	same := func(of *corev1.Service) mod {
		return func(s *corev1.Service) { s.Spec.ExternalIPs = of.Spec.ExternalIPs }
	}
	older := p.service("conflict-1") // of one age, names decide
	newer := p.service("conflict-2", same(older))
	p.scenario("the older Service", older, on(older, p.pod(1, 1)), row{from: one, at: allAddresses, want: "pod-1-1"}).
		then("beside one with its external IP", nil, nil, row{from: one, at: allAddresses, want: "pod-1-1"}).
		then("when the other goes", nil, nil, row{from: one, at: allAddresses, want: "pod-1-1"})
	p.scenario("the newer Service", newer, nil).
		then("with the external IP of an older one", newer, on(newer, p.pod(2, 1)),
			row{from: one, at: []string{clusterIP, nodePort1, lbIP}, want: "pod-2-1"}).
		then("gone", nil, nil).without(on(newer)...)
	s := p.service("bystander")
	p.scenario("a Service that is written after both", s, nil).
		then("exists", s, on(s, p.pod(1, 2)), row{from: one, at: allAddresses, want: "pod-1-2"})
	s = p.service("own-twice")
	s.Spec.ExternalIPs = []string{ingress(s)[0], ingress(s)[1], s.Spec.ExternalIPs[0], s.Spec.ExternalIPs[1]}
	p.scenario("an external IP that is the LoadBalancer IP of the same Service", s, on(s, p.pod(1, 1)),
		row{from: one, at: []string{clusterIP, nodePort1, lbIP, externalIP}, want: "pod-1-1"})
}

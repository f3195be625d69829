// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

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

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// sources are loadBalancerSourceRanges. The clients are 172.18.0.201 and .202, node-1 is .11, pods are 10.244.0.0/16.
func (p *plan) sources() {
	add := func(name string, at []string, r ...string) *scenario {
		s := p.service("ranges-"+string(rune('a'+len(p.scenarios)%26)), ranges(r...))
		return p.scenario(name, s, on(s, p.pod(1, 1), p.pod(2, 1)),
			row{from: everyone, at: at}, row{from: []string{outside}, at: []string{clusterIP, nodePort1, externalIP}, want: "pod-1-1 pod-2-1"})
	}
	lb := []string{lbIP}
	add("source ranges of both families", lb, "172.18.0.201/32", "fd00:18::201/128").
		as("loadbalancer.go: should only allow access from service loadbalancer source ranges")
	add("source ranges that overlap and adjoin", lb, "172.18.0.200/31", "172.18.0.192/28", "172.18.0.200/30", "172.18.0.208/28",
		"fd00:18::200/120", "fd00:18::201/128")
	add("source ranges of IPv4 only", lb, "172.18.0.201/32")
	add("source ranges with the node's address", lb, "172.18.0.11/32", "fd00:18::11/128")
	add("source ranges of the pods", lb, "10.244.0.0/16", "fd00:244::/32")
	add("source ranges of node-1's pods", lb, "10.244.1.0/24", "fd00:244:1::/64")
	add("source ranges of everything", lb, "0.0.0.0/0", "::/0")
	add("source ranges that nobody is in", lb, "192.0.2.0/24", "fd01::/64")
	s := p.service("ranges-etp", ranges("172.18.0.201/32", "fd00:18::201/128"), etpLocal)
	p.scenario("source ranges with ETP Local", s, on(s, p.pod(1, 1)), row{from: everyone, at: []string{lbIP}})
	s = p.service("ranges-none", ranges("172.18.0.201/32", "fd00:18::201/128"))
	p.scenario("source ranges, no endpoints", s, on(s), row{from: everyone, at: []string{lbIP}})
	s = p.service("ranges-living")
	closed := with(s, ranges("172.18.0.201/32", "fd00:18::201/128"))
	p.scenario("source ranges that change", s, on(s, p.pod(1, 1)), row{from: clients, at: lb, want: "pod-1-1"}).
		then("one client", closed, lab.Objects(closed), row{from: []string{outside}, at: lb, want: "pod-1-1"}, row{from: []string{second}, at: lb, want: "dropped"}).
		then("none", s, lab.Objects(s), row{from: clients, at: lb, want: "pod-1-1"})
}

// addresses are frontends out of the ordinary.
func (p *plan) addresses() {
	ingress := func(change func(f lab.Family, i *corev1.LoadBalancerIngress)) mod {
		return func(s *corev1.Service) {
			for i, f := range lab.Families() {
				change(f, &s.Status.LoadBalancer.Ingress[i])
			}
		}
	}
	own := func(f lab.Family, i *corev1.LoadBalancerIngress) { i.IP = lab.NodeIP(f, 1).String() }
	// Port 80 of the node's address is as good as any: nothing listens there.
	s := p.service("lb-on-node", ingress(own))
	p.scenario("LoadBalancer IP that is node-1's address", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: []string{lbIP}, want: "pod-1-1 pod-2-1"})
	s = p.serving("lb-on-node-local", []corev1.ServicePort{lab.Port(lab.TCP, 81, 8080), lab.Port(lab.UDP, 81, 8080)}, ingress(own), etpLocal)
	p.scenario("LoadBalancer IP that is node-1's address, ETP Local", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: []string{lbIP}})
	s = p.serving("lb-on-node-ranges", []corev1.ServicePort{lab.Port(lab.TCP, 82, 8080), lab.Port(lab.UDP, 82, 8080)}, ingress(own),
		ranges("172.18.0.11/32", "fd00:18::11/128"))
	p.scenario("LoadBalancer IP that is node-1's address, with source ranges", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: []string{lbIP}})
	s = p.serving("ext-on-node", []corev1.ServicePort{lab.Port(lab.TCP, 83, 8080), lab.Port(lab.UDP, 83, 8080)}, func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{lab.NodeIP(lab.IPv4, 1).String(), lab.NodeIP(lab.IPv6, 1).String()}
	})
	p.scenario("external IP that is node-1's address", s, on(s, p.pod(1, 1), p.pod(2, 1)),
		row{from: everyone, at: []string{externalIP}, want: "pod-1-1 pod-2-1"})
	s = p.service("lb-proxy", ingress(func(_ lab.Family, i *corev1.LoadBalancerIngress) {
		mode := corev1.LoadBalancerIPModeProxy
		i.IPMode = &mode
	}))
	p.scenario("LoadBalancer IP of mode Proxy", s, on(s, p.pod(1, 1)), row{from: one, at: []string{lbIP}, want: "unreachable"},
		row{from: one, at: []string{nodePort1}, want: "pod-1-1"})
	s = p.service("lb-modeless", ingress(func(_ lab.Family, i *corev1.LoadBalancerIngress) { i.IPMode = nil }))
	p.scenario("LoadBalancer IP without a mode", s, on(s, p.pod(1, 1)), row{from: one, at: []string{lbIP}, want: "pod-1-1"})
	s = p.service("no-np", func(s *corev1.Service) {
		no := false
		s.Spec.AllocateLoadBalancerNodePorts = &no
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	})
	p.scenario("LoadBalancer without node ports", s, on(s, p.pod(1, 1)), row{from: everyone, at: []string{lbIP, externalIP}, want: "pod-1-1"}).
		as("loadbalancer.go: should be able to create LoadBalancer Service without NodePort and change it")
	s = p.cluster("ext-local", func(s *corev1.Service) { lab.WithExternalIP(s, 250) }, etpLocal)
	p.scenario("ClusterIP Service with external IPs, ETP Local", s, on(s, p.pod(1, 1)),
		row{from: everyone, at: []string{clusterIP, externalIP}})
	for i, f := range lab.Families() {
		s = p.service("only-"+string(rune('4'+2*i)), func(s *corev1.Service) { singleStack(s, i) })
		p.scenario("a Service of "+f.String()+" only", s, on(s, p.pod(1, 1)),
			row{from: one, at: someOfAll, families: []lab.Family{f}, want: "pod-1-1"},
			row{from: one, at: []string{nodePort1}, families: []lab.Family{lab.Families()[1-i]}}).
			as(map[lab.Family]string{lab.IPv4: "dual_stack.go: should create service with ipv4 cluster ip", lab.IPv6: "dual_stack.go: should create service with ipv6 cluster ip"}[f])
	}
}

// singleStack leaves the i-th family.
func singleStack(s *corev1.Service, i int) {
	single := corev1.IPFamilyPolicySingleStack
	s.Spec.IPFamilyPolicy = &single
	s.Spec.IPFamilies = s.Spec.IPFamilies[i : i+1]
	s.Spec.ClusterIPs = s.Spec.ClusterIPs[i : i+1]
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	s.Spec.ExternalIPs = s.Spec.ExternalIPs[i : i+1]
	s.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress[i : i+1]
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// externalName makes the Service an alias: no address of its own.
func externalName(s *corev1.Service) {
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: s.Spec.Ports, SessionAffinity: s.Spec.SessionAffinity}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
	s.Status = corev1.ServiceStatus{}
}

// asks lets a step ask the addresses that the Service has in another one.
func (sc *scenario) asks(s *corev1.Service) *scenario {
	sc.steps[len(sc.steps)-1].svc = s
	return sc
}

// types are Services that change their type.
func (p *plan) types() {
	s := p.service("np-to-name")
	e := on(s, p.pod(1, 1))
	name := with(s, externalName)
	p.scenario("from LoadBalancer to ExternalName", s, e, row{from: one, at: someOfAll, want: "pod-1-1"}).
		as("service.go: should be able to change the type from NodePort to ExternalName").
		then("ExternalName", s, lab.Objects(name), row{from: everyone, at: allAddresses})
	c := p.cluster("name-to-cluster")
	none := with(c, externalName)
	p.scenario("from ExternalName to ClusterIP", none, lab.Objects(none, lab.NewSlices(c, p.pod(1, 1))), row{from: one, at: []string{clusterIP}}).asks(c).
		as("service.go: should be able to change the type from ExternalName to ClusterIP",
			"service.go: should be able to change the type from ClusterIP to ExternalName").
		then("ClusterIP", c, lab.Objects(c), row{from: one, at: []string{clusterIP}, want: "pod-1-1"}).
		then("ExternalName again", nil, lab.Objects(none), row{from: one, at: []string{clusterIP}})
	n := p.service("name-to-np")
	none = with(n, externalName)
	p.scenario("from ExternalName to LoadBalancer", none, lab.Objects(none, lab.NewSlices(n, p.pod(1, 1))), row{from: one, at: someOfAll}).asks(n).
		as("service.go: should be able to change the type from ExternalName to NodePort").
		then("LoadBalancer", n, lab.Objects(n), row{from: one, at: someOfAll, want: "pod-1-1"})
	n = p.service("cluster-to-lb", samePort)
	c = with(n, onlyCluster)
	p.scenario("from ClusterIP to LoadBalancer", c, lab.Objects(c, lab.NewSlices(n, p.pod(1, 1))), row{from: one, at: someOfAll}).asks(n).
		as("service.go: should be able to update service type to NodePort listening on same port number but different protocols",
			"loadbalancer.go: should be able to change the type and ports of a TCP service",
			"loadbalancer.go: should be able to change the type and ports of a UDP service").
		then("LoadBalancer", n, lab.Objects(n), row{from: everyone, at: allAddresses, want: "pod-1-1"}).
		then("ClusterIP again", n, lab.Objects(c), row{from: one, at: someOfAll})
}

// onlyCluster leaves the ClusterIP.
func onlyCluster(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeClusterIP
	s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = nil, "", 0
	s.Status = corev1.ServiceStatus{}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

// samePort gives all ports, of different protocols, one node port.
func samePort(s *corev1.Service) {
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = s.Spec.Ports[0].NodePort
	}
}

// changes are Services whose labels, ports and endpoints change.
func (p *plan) changes() {
	s := p.service("proxy-name", label("service.kubernetes.io/service-proxy-name", "other"))
	plain := with(s, func(s *corev1.Service) { s.Labels = nil })
	p.scenario("label service-proxy-name", s, on(s, p.pod(1, 1)), row{from: one, at: someOfAll}).
		as("service.go: should implement service.kubernetes.io/service-proxy-name").
		then("without the label", plain, lab.Objects(plain), row{from: one, at: someOfAll, want: "pod-1-1"}).
		then("with it again", s, lab.Objects(s), row{from: one, at: someOfAll})
	s = p.service("headless")
	plainSlices := lab.Objects(lab.NewSlices(s, p.pod(1, 1)))
	labelled := lab.Objects(lab.NewSlices(s, p.pod(1, 1)))
	for _, o := range labelled {
		o.(*discoveryv1.EndpointSlice).Labels["service.kubernetes.io/headless"] = ""
	}
	p.scenario("slices labelled headless", s, lab.Objects(s, labelled), row{from: one, at: someOfAll, want: "refused"}).
		as("service.go: should implement service.kubernetes.io/headless").
		then("without the label", nil, plainSlices, row{from: one, at: someOfAll, want: "pod-1-1"}).
		then("with it again", nil, labelled, row{from: one, at: someOfAll, want: "refused"})
	s = p.service("port-change")
	moved := with(s, func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{s.Spec.Ports[0], lab.Port(lab.UDP, 81, 8081)}
		s.Spec.Ports[1].NodePort = 30002 + s.Spec.Ports[0].NodePort - 30000
	})
	p.scenario("ports that change", s, on(s, p.pod(1, 1)), row{from: one, at: someOfAll, want: "pod-1-1"}).
		as("service.go: should be updated after adding or deleting ports").
		then("another port and target port for UDP", moved, on(moved, p.pod(1, 1)),
			row{from: one, at: someOfAll, protos: udp, want: "pod-1-1:8081"},
			row{from: one, at: someOfAll, protos: tcp, want: "pod-1-1"}).
		then("asked at the port before", s, nil, row{from: one, at: someOfAll, protos: udp})
	s = p.service("up-down")
	p.scenario("a Service that goes and comes", s, on(s, p.pod(1, 1), p.pod(2, 1)), row{from: one, at: someOfAll, want: "pod-1-1 pod-2-1"}).
		as("service.go: should be able to up and down services", "service.go: should work after the service has been recreated").
		then("deleted", nil, nil, row{from: everyone, at: allAddresses}).without(lab.Objects(s)...).
		then("recreated", nil, lab.Objects(s), row{from: everyone, at: allAddresses, want: "pod-1-1 pod-2-1"})
	s = p.service("scaled")
	p.scenario("endpoints that change", s, on(s, p.pod(1, 1)), row{from: one, at: someOfAll, want: "pod-1-1"}).
		as("networking.go: should update endpoints: http", "networking.go: should update endpoints: udp",
			"networking.go: should update nodePort: http", "networking.go: should update nodePort: udp",
			"dual_stack.go: should update endpoints: http", "dual_stack.go: should update endpoints: udp").
		then("three", nil, on(s, p.pod(1, 1), p.pod(1, 2), p.pod(2, 1)), row{from: one, at: someOfAll, want: "pod-1-1 pod-1-2 pod-2-1"}).
		then("another one", nil, on(s, p.pod(2, 2)), row{from: one, at: someOfAll, want: "pod-2-2"}).
		then("none", nil, on(s), row{from: one, at: someOfAll, want: "refused"}).
		as("service.go: should be rejected when no endpoints exist")
}

// policiesChange switches the policies of living Services.
func (p *plan) policiesChange() {
	s := p.service("etp-switch")
	local := with(s, etpLocal, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 })
	p.scenario("ETP that changes", s, on(s, p.pod(1, 1)),
		row{from: clients, at: []string{nodePort1, nodePort2, lbIP}, want: "pod-1-1"}).
		as("service.go: should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
			"loadbalancer.go: should only target nodes with endpoints", "loadbalancer.go: should work from pods").
		then("Local", local, lab.Objects(local),
			row{from: []string{outside}, at: []string{nodePort1, lbIP}, want: "pod-1-1"},
			row{from: clients, at: []string{nodePort2}, want: "dropped"},
			row{from: inner, at: []string{nodePort1, nodePort2, lbIP, externalIP}},
			row{from: clients, at: []string{"health check of node-1"}, protos: tcp, want: "200", ask: healthCheck(1)},
			row{from: clients, at: []string{"health check of node-2"}, protos: tcp, want: "503", ask: healthCheck(2)}).
		then("only terminating", nil, on(local, terminating(p.pod(1, 1))),
			row{from: []string{outside}, at: []string{nodePort1, lbIP}, want: "pod-1-1"},
			row{from: clients, at: []string{"health check of node-1"}, protos: tcp, want: "503", ask: healthCheck(1)}).
		as("service.go: should fail health check node port if there are only terminating endpoints").
		then("Cluster again", s, on(s, p.pod(1, 1)),
			row{from: clients, at: []string{nodePort1, nodePort2, lbIP}, want: "pod-1-1"},
			row{from: clients, at: []string{"health check of node-1"}, protos: tcp, want: "refused", ask: healthCheckOf(local, 1)})
	s = p.service("itp-switch")
	local = with(s, itpLocal)
	p.scenario("ITP that changes", s, on(s, p.pod(1, 1)), row{from: inner, at: []string{clusterIP}, want: "pod-1-1"}).
		then("Local", local, lab.Objects(local),
			row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "pod-1-1"},
			row{from: []string{podB, hostB}, at: []string{clusterIP}, want: "dropped"}).
		then("Cluster again", s, lab.Objects(s), row{from: inner, at: []string{clusterIP}, want: "pod-1-1"})
}

// healthCheckOf asks the port that the Service had in another step.
func healthCheckOf(s *corev1.Service, node int) measure {
	ask := healthCheck(node)
	return func(on *side, c *cell, effort int) outcome {
		before := *c
		before.svc = s
		return ask(on, &before, effort)
	}
}

// urls are what upstream asks of the proxy itself.
func (p *plan) urls() {
	s := p.cluster("urls")
	path := func(url string) measure { return get(func(*cell) string { return url }) }
	status := func(url string) measure {
		return func(on *side, c *cell, effort int) outcome {
			o := path(url)(on, c, effort)
			return outcome{o.names, o.names + map[bool]string{true: " with lastUpdated"}[strings.Contains(o.text, "lastUpdated")]}
		}
	}
	p.scenario("the proxy's own URLs", s, on(s, p.pod(1, 1)),
		row{from: []string{hostA, hostB}, at: []string{"/healthz"}, protos: tcp, families: []lab.Family{lab.IPv4}, want: "200", ask: status("http://127.0.0.1:10256/healthz")},
		row{from: []string{hostA, hostB}, at: []string{"/livez"}, protos: tcp, families: []lab.Family{lab.IPv4}, want: "200", ask: status("http://127.0.0.1:10256/livez")},
		row{from: []string{hostA, hostB}, at: []string{"/proxyMode"}, protos: tcp, families: []lab.Family{lab.IPv4}, want: "200", ask: path("http://127.0.0.1:10249/proxyMode")},
		row{from: []string{outside}, at: []string{"/healthz from outside"}, protos: tcp, families: []lab.Family{lab.IPv4}, want: "200", ask: status("http://172.18.0.11:10256/healthz")}).
		as("networking.go: should check kube-proxy urls")
}

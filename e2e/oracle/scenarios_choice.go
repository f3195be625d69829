// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// The conditions of endpoints.
func terminating(e lab.Endpoint) lab.Endpoint { return e.With(false, true, true) }
func ended(e lab.Endpoint) lab.Endpoint       { return e.With(false, false, true) }
func unready(e lab.Endpoint) lab.Endpoint     { return e.With(false, false, false) }

// conditions are endpoints that are not simply ready.
func (p *plan) conditions() {
	s := p.service("mixed-ready")
	p.scenario("ready, unready and terminating endpoints", s,
		on(s, p.pod(1, 1), unready(p.pod(1, 2)), terminating(p.pod(2, 1)), ended(p.pod(2, 2))),
		row{from: one, at: someOfAll, want: "pod-1-1"}).
		as("service.go: should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false")
	s = p.service("draining")
	p.scenario("only terminating endpoints serve", s, on(s, terminating(p.pod(1, 1)), terminating(p.pod(2, 1)), ended(p.pod(1, 2)), unready(p.pod(2, 2))),
		row{from: everyone, at: someOfAll, want: "pod-1-1 pod-2-1"}).
		as("service.go: should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster",
			"service.go: should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster")
	s = p.service("ended")
	p.scenario("terminating endpoints that do not serve", s, on(s, ended(p.pod(1, 1)), unready(p.pod(2, 1))),
		row{from: one, at: someOfAll, want: "refused"}).
		as("service.go: should be rejected for evicted pods (no endpoints exist)")
	s = p.cluster("itp-draining", itpLocal)
	p.scenario("ITP Local, the local endpoint terminates", s, on(s, terminating(p.pod(1, 1)), p.pod(2, 1)),
		row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "pod-1-1"},
		row{from: []string{podB, hostB}, at: []string{clusterIP}, want: "pod-2-1"}).
		as("service.go: should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local")
	s = p.service("etp-draining", etpLocal)
	p.scenario("ETP Local, the local endpoint terminates", s, on(s, terminating(p.pod(1, 1)), p.pod(2, 1)),
		row{from: []string{outside}, at: []string{nodePort1, lbIP, externalIP}, want: "pod-1-1"},
		row{from: clients, at: []string{nodePort2}, want: "pod-2-1"},
		row{from: inner, at: external}).
		as("service.go: should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local")
	s = p.service("published")
	p.scenario("unready endpoints published as ready", s,
		on(s, p.pod(1, 1).With(true, false, false), p.pod(2, 1).With(true, false, true), p.pod(1, 2).With(true, true, true)),
		row{from: one, at: someOfAll, want: "pod-1-1 pod-1-2 pod-2-1"}).
		as("service.go: should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true",
			"service.go: should create endpoints for unready pods")
}

// hints are the hints of an endpoint.
func hints(e lab.Endpoint, forZones []string, forNodes ...string) lab.Endpoint {
	e.Hints = &discoveryv1.EndpointHints{}
	for _, z := range forZones {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range forNodes {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return e
}

func (p *plan) topology() {
	a, b := []string{"a"}, []string{"b"}
	onA, onB := []string{podA, hostA, outside}, []string{podB, hostB, second}
	s := p.service("zones")
	p.scenario("hints by zone", s, on(s, hints(p.pod(1, 1), a), hints(p.pod(1, 2), a), hints(p.pod(2, 1), b)),
		row{from: onA, at: []string{clusterIP, nodePort1, lbIP}, want: "pod-1-1 pod-1-2"},
		row{from: onB, at: []string{clusterIP, nodePort2, lbIP}, want: "pod-2-1"}).
		as("traffic_distribution.go: should route traffic to an endpoint in the same zone when using PreferClose",
			"traffic_distribution.go: should route traffic to an endpoint in the same zone when using PreferSameZone",
			"traffic_distribution.go: should route traffic correctly between pods on multiple nodes when using PreferClose",
			"traffic_distribution.go: should route traffic correctly between pods on multiple nodes when using PreferSameZone",
			"topology_hints.go: should distribute endpoints evenly").
		then("an endpoint lacks hints", nil, on(s, hints(p.pod(1, 1), a), p.pod(1, 2), hints(p.pod(2, 1), b)),
			row{from: one, at: someOfAll, want: "pod-1-1 pod-1-2 pod-2-1"}).
		then("no hint names zone a", nil, on(s, hints(p.pod(1, 1), b), hints(p.pod(2, 1), b)),
			row{from: one, at: someOfAll, want: "pod-1-1 pod-2-1"}).
		then("those of zone a terminate", nil, on(s, hints(terminating(p.pod(1, 1)), a), hints(p.pod(2, 1), b)),
			row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "pod-2-1"})
	s = p.service("nodes")
	p.scenario("hints by node", s,
		on(s, hints(p.pod(1, 1), a, "node-1"), hints(p.pod(1, 2), a, "node-2"), hints(p.pod(2, 1), b, "node-2")),
		row{from: onA, at: []string{clusterIP, nodePort1}, want: "pod-1-1"},
		row{from: onB, at: []string{clusterIP, nodePort2}, want: "pod-1-2 pod-2-1"}).
		as("traffic_distribution.go: should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode").
		then("none for node-1", nil, on(s, hints(p.pod(1, 1), a, "node-2"), hints(p.pod(2, 1), b, "node-2")),
			row{from: onA, at: []string{clusterIP}, want: "pod-1-1"},
			row{from: onB, at: []string{clusterIP}, want: "pod-1-1 pod-2-1"}).
		as("traffic_distribution.go: should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable").
		then("one without hints by node", nil, on(s, hints(p.pod(1, 1), a, "node-1"), hints(p.pod(1, 2), a), hints(p.pod(2, 1), b, "node-2")),
			row{from: onA, at: []string{clusterIP}, want: "pod-1-1 pod-1-2"}).
		then("all of node-1 unready", nil, on(s, hints(unready(p.pod(1, 1)), a, "node-1"), hints(p.pod(2, 1), b, "node-2")),
			row{from: onA, at: []string{clusterIP}, want: "pod-2-1"})
	s = p.service("hints-local", itpLocal, etpLocal)
	p.scenario("hints beside the Local policies", s, on(s, hints(p.pod(1, 1), b), hints(p.pod(1, 2), a), hints(p.pod(2, 1), a)),
		row{from: []string{podA, hostA}, at: []string{clusterIP}, want: "pod-1-1 pod-1-2"},
		row{from: inner, at: external},
		row{from: []string{outside}, at: []string{nodePort1, lbIP}, want: "pod-1-1 pod-1-2"})
}

// slicing is how endpoints come in slices.
func (p *plan) slicing() {
	s := p.service("two-slices")
	more := slice(s, "more", p.pod(1, 2), p.pod(2, 1))
	p.scenario("endpoints in two slices, one of them in both", s, append(on(s, p.pod(1, 1), p.pod(1, 2)), more...),
		row{from: one, at: someOfAll, want: "pod-1-1 pod-1-2 pod-2-1"}).
		as("endpointslice.go: should support a Service with multiple endpoint IPs specified in multiple EndpointSlices").
		then("the second slice is deleted", nil, nil, row{from: one, at: someOfAll, want: "pod-1-1 pod-1-2"}).without(more...)
	s = p.service("reused")
	p.scenario("an address ready in one slice, terminating in the other", s, append(on(s, p.pod(1, 1)), slice(s, "more", ended(p.pod(1, 1)), terminating(p.pod(2, 1)))...),
		row{from: one, at: someOfAll, want: "pod-1-1"})

	s = p.serving("ports", []corev1.ServicePort{lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8081)})
	p.scenario("each protocol on its own target port", s, on(s, p.pod(1, 1)),
		row{from: one, at: someOfAll, protos: tcp, want: "pod-1-1"},
		row{from: one, at: someOfAll, protos: udp, want: "pod-1-1:8081"}).
		as("service.go: should serve multiport endpoints from pods",
			"service.go: should serve endpoints on same port and different protocols",
			"service.go: should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer",
			"service.go: should connect to the ports exposed by restartable init containers")
	s = p.service("named")
	other := slice(s, "other", p.pod(2, 1))
	for _, o := range other {
		for i := range o.(*discoveryv1.EndpointSlice).Ports {
			port := int32(8081)
			o.(*discoveryv1.EndpointSlice).Ports[i].Port = &port
		}
	}
	p.scenario("a named port of different numbers", s, append(on(s, p.pod(1, 1)), other...),
		row{from: one, at: someOfAll, want: "pod-1-1 pod-2-1:8081"}).
		as("service.go: should support named targetPorts that resolve to different ports on different endpoints",
			"service.go: should connect to the named ports exposed by restartable init containers",
			"endpointslice.go: should support a Service with multiple ports specified in multiple EndpointSlices")
	s = p.service("portless")
	empty := lab.NewSlices(s, p.pod(1, 1))
	for _, o := range empty {
		o.Ports = slices.DeleteFunc(o.Ports, func(port discoveryv1.EndpointPort) bool { return *port.Protocol == corev1.ProtocolUDP })
	}
	p.scenario("endpoints for one of two ports", s, lab.Objects(s, empty),
		row{from: one, at: someOfAll, protos: tcp, want: "pod-1-1"},
		row{from: one, at: someOfAll, protos: udp, want: "refused"})
}

// odd are endpoints that the API takes, and no controller makes.
func (p *plan) odd() {
	s := p.service("numberless")
	all := lab.NewSlices(s, p.pod(1, 1))
	for _, o := range all {
		for i := range o.Ports {
			o.Ports[i].Port = nil
		}
	}
	p.scenario("slices without port numbers", s, lab.Objects(s, all), row{from: one, at: someOfAll, want: "refused"})
	s = p.service("nowhere")
	e := p.pod(1, 1)
	e.Node, e.Zone = "", ""
	p.scenario("an endpoint on no node", s, on(s, e), row{from: one, at: someOfAll, want: "pod-1-1"})
	s = p.service("nowhere-local", itpLocal, etpLocal)
	p.scenario("an endpoint on no node, Local policies", s, on(s, e), row{from: everyone, at: someOfAll})
	s = p.service("elsewhere")
	e.Node = "node-9"
	p.scenario("an endpoint on a node that is not there", s, on(s, e), row{from: one, at: someOfAll, want: "pod-1-1"})
}

// extremes are names, numbers and counts at their limits.
func (p *plan) extremes() {
	s := p.serving(strings.Repeat("n", 63), []corev1.ServicePort{lab.Port(lab.TCP, 65535, 8080), lab.Port(lab.UDP, 65535, 8080)}, func(s *corev1.Service) {
		s.Spec.Ports[0].Name, s.Spec.Ports[1].Name = strings.Repeat("t", 63), strings.Repeat("u", 63)
	}, sticky(24*time.Hour))
	p.scenario("longest names, highest port, longest affinity", s, on(s, p.pod(1, 1)), row{from: one, at: someOfAll, want: "pod-1-1"})
	many := p.cluster("many-ports")
	many.Spec.Ports = nil
	for i := range 200 {
		many.Spec.Ports = append(many.Spec.Ports, lab.Port(lab.TCP, uint16(1000+i), 8080), lab.Port(lab.UDP, uint16(1000+i), 8081))
	}
	// A slice holds 100 ports.
	var apply []lab.Object
	for i := 0; i < len(many.Spec.Ports); i += 100 {
		part := with(many, func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[i : i+100] })
		apply = append(apply, slice(part, fmt.Sprint("part-", i), p.pod(1, 1), p.pod(2, 1))...)
	}
	last := with(many, func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[398:] })
	p.scenario("400 ports", last, append(apply, many),
		row{from: everyone, at: []string{clusterIP}, protos: tcp, want: "pod-1-1 pod-2-1"},
		row{from: everyone, at: []string{clusterIP}, protos: udp, want: "pod-1-1:8081 pod-2-1:8081"})
}

// slice makes further slices of a Service, with another name.
func slice(s *corev1.Service, name string, endpoints ...lab.Endpoint) []lab.Object {
	all := lab.NewSlices(s, endpoints...)
	for _, o := range all {
		o.Name += "-" + name
	}
	return lab.Objects(all)
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// A sender is named by what it is; hosts maps it to the lab's host. Pods 4 are never endpoints.
const (
	podA    = "pod on node-1"
	podB    = "pod on node-2"
	hostA   = "process on node-1"
	hostB   = "process on node-2"
	outside = "client by node-1"
	second  = "client by node-2"
	itself  = "endpoint pod-1-1"
)

var hosts = map[string]string{
	podA: "pod-1-4", podB: "pod-2-4", hostA: "node-1", hostB: "node-2", outside: "client-1", second: "client-2", itself: "pod-1-1",
}

// Groups of senders.
var (
	everyone = []string{podA, podB, hostA, hostB, outside, second}
	withSelf = append(slices.Clone(everyone), itself)
	inner    = []string{podA, podB, hostA, hostB}
	clients  = []string{outside, second}
	one      = []string{podA, hostA, outside}
)

// The kinds of addresses of a Service.
const (
	clusterIP    = "ClusterIP"
	nodePort1    = "NodePort of node-1"
	nodePort2    = "NodePort of node-2"
	lbIP         = "LoadBalancer IP"
	externalIP   = "external IP"
	unusedPort   = "ClusterIP, unused port"
	unusedLBPort = "LB IP, unused port"
	gatewayPort  = "NodePort, other address"
	loopbackPort = "NodePort on loopback"
	secondPort   = "NodePort, second address"
	latePort     = "NodePort, late address"
	unallocated  = "unallocated ClusterIP"
)

var (
	allAddresses = []string{clusterIP, nodePort1, nodePort2, lbIP, externalIP}
	external     = []string{nodePort1, nodePort2, lbIP, externalIP}
	someOfAll    = []string{clusterIP, nodePort1, lbIP}
)

var (
	tcpUDP = []lab.Proto{lab.TCP, lab.UDP}
	tcp    = []lab.Proto{lab.TCP}
	udp    = []lab.Proto{lab.UDP}
)

// scenario is a Service in steps.
type scenario struct {
	name     string
	svc      *corev1.Service
	upstream []string // upstream tests that it stands for, as "file: name"
	slow     bool     // not part of the fast subset
	steps    []step
}

// step is a change of objects, and what is asked after it.
type step struct {
	what          string
	apply, remove []lab.Object
	do            func(*lab.Net) error // a change of the network
	svc           *corev1.Service      // as it is in this step
	rows          []row
}

// row is a product of senders, addresses, protocols and families. Nil protocols are TCP and UDP, nil families both.
type row struct {
	from     []string
	at       []string
	protos   []lab.Proto
	families []lab.Family
	// want is what both proxies are expected to do: the names of the backends that answer, or a verdict. Empty is no
	// expectation: the two are compared all the same.
	want string
	// ask observes the cell; nil is reach.
	ask measure
}

// measure observes a cell on one side. effort is from 0: how hard to look.
type measure func(s *side, c *cell, effort int) outcome

// outcome is what a side does. The text has everything, names are for expectations.
type outcome struct{ names, text string }

// cell is one line of the table.
type cell struct {
	setup, scenario, step string
	from, at              string
	proto                 lab.Proto
	family                lab.Family
	svc                   *corev1.Service
	want                  string
	ask                   measure

	ours, theirs outcome
	reason       string
	bad          bool
}

// cells expands a step.
func (s *step) cells(setup string, sc *scenario) (out []*cell) {
	for _, r := range s.rows {
		if r.protos == nil {
			r.protos = tcpUDP
		}
		if r.families == nil {
			r.families = lab.Families()
		}
		if r.ask == nil {
			r.ask = reach
		}
		for _, from := range r.from {
			for _, at := range r.at {
				for _, p := range r.protos {
					for _, f := range r.families {
						out = append(out, &cell{setup: setup, scenario: sc.name, step: s.what, from: from, at: at, proto: p, family: f,
							svc: s.svc, want: r.want, ask: r.ask})
					}
				}
			}
		}
	}
	return out
}

// inFast reports the cells of the fast subset: each protocol with one family.
func (c *cell) inFast() bool { return (c.proto == lab.UDP) == (c.family == lab.IPv6) }

// target is the address and port that the cell asks. An address kind that the Service lacks is a fault of the table.
func (c *cell) target() netip.AddrPort { return address(c.svc, c.at, c.proto, c.family) }

func address(svc *corev1.Service, kind string, proto lab.Proto, f lab.Family) netip.AddrPort {
	var port corev1.ServicePort
	for _, p := range slices.Backward(svc.Spec.Ports) {
		if p.Protocol == corev1.Protocol(proto) {
			port = p
		}
	}
	at := func(a netip.Addr, port int32) netip.AddrPort {
		if !a.IsValid() || port == 0 {
			panic(fmt.Sprintf("Service %s has no %s for %s %s", svc.Name, kind, proto, f))
		}
		return netip.AddrPortFrom(a, uint16(port))
	}
	switch kind {
	case clusterIP:
		return at(ofFamily(svc.Spec.ClusterIPs, f), port.Port)
	case unusedPort:
		return at(ofFamily(svc.Spec.ClusterIPs, f), 79)
	case unallocated:
		return at(lab.ClusterIP(f, 4000), 80)
	case nodePort1:
		return at(lab.NodeIP(f, 1), port.NodePort)
	case nodePort2:
		return at(lab.NodeIP(f, 2), port.NodePort)
	case gatewayPort:
		return at(lab.PodGateway(f, 1), port.NodePort)
	case secondPort:
		return at(secondAddr(f).Addr(), port.NodePort)
	case latePort:
		return at(lateAddr(f).Addr(), port.NodePort)
	case loopbackPort:
		return at(map[lab.Family]netip.Addr{lab.IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), lab.IPv6: netip.IPv6Loopback()}[f], port.NodePort)
	case lbIP:
		return at(ofFamily(ingress(svc), f), port.Port)
	case unusedLBPort:
		return at(ofFamily(ingress(svc), f), 79)
	case externalIP:
		return at(ofFamily(svc.Spec.ExternalIPs, f), port.Port)
	}
	panic("address kind " + kind)
}

// secondAddr is a further address of node-1, which its Node object does not list.
func secondAddr(f lab.Family) netip.Prefix {
	return map[lab.Family]netip.Prefix{lab.IPv4: netip.MustParsePrefix("192.0.2.11/24"), lab.IPv6: netip.MustParsePrefix("fd00:2::11/64")}[f]
}

// lateAddr comes in a step, in the same network.
func lateAddr(f lab.Family) netip.Prefix {
	p := secondAddr(f)
	return netip.PrefixFrom(p.Addr().Next(), p.Bits())
}

func ingress(svc *corev1.Service) (out []string) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			out = append(out, i.IP)
		}
	}
	return out
}

// ofFamily is the first address of the family.
func ofFamily(all []string, f lab.Family) netip.Addr {
	for _, text := range all {
		if a, err := netip.ParseAddr(text); err == nil && lab.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

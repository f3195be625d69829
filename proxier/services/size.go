// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Estimate holds upper bounds of what a Service becomes, from counts alone: no memory is taken for them. A Service of
// 1.5 MB, which is what etcd takes, has room for 50,000 addresses and 20,000 ports, and with ten EndpointSlices of 1,000
// endpoints it becomes billions of elements.
type Estimate struct {
	// Addresses is the number of addresses in the family that has more of them.
	Addresses int
	// Frontends is the number of addresses and NodePorts, with their ports, in both families.
	Frontends int
	// Elements is the number of elements in the tables of both families (see [Output.Size]).
	Elements int
}

// EstimateOf returns the estimate of a Service with its slices. Its cost is linear in the ports of the Service and of
// the slices, and does not depend on endpoints.
func EstimateOf(s *kube.Service, all []*kube.EndpointSlice) (e Estimate) {
	if s == nil {
		return e
	}
	var buf [fewPorts]int
	endpoints := buf[:]
	if len(s.Ports) > len(buf) {
		endpoints = make([]int, len(s.Ports))
	}
	index := indexPorts(s.Ports)
	for _, f := range nft.Families() {
		if !s.ClusterIP(f == nft.IPv6).IsValid() {
			continue
		}
		clear(endpoints)
		for _, slice := range all {
			if slice.IPv6 != (f == nft.IPv6) {
				continue
			}
			for _, sp := range slice.Ports {
				if i := findPort(s.Ports, index, portKey{sp.Name, sp.Proto}); i >= 0 {
					endpoints[i] += len(slice.Endpoints)
				}
			}
		}
		addresses := 1 + countFamily(s.ExternalIPs, f) + countFamily(s.LoadBalancerIPs, f)
		e.Addresses = max(e.Addresses, addresses)
		for i := range s.Ports {
			frontends := addresses
			if s.Ports[i].NodePort != 0 {
				frontends++
			}
			e.Frontends += frontends
			e.Elements += mostElements(s, frontends, endpoints[i])
		}
	}
	return e
}

// mostElements bounds the elements of one port of a Service in one family.
func mostElements(s *kube.Service, frontends, endpoints int) int {
	views, perEndpoint, sources := 1, 1, 0
	if s.ExternalLocal {
		views = 2 // own pods and processes of the node get the cluster view
	}
	if s.Affinity != 0 {
		perEndpoint = 2 // by slot, and by id
	}
	if len(s.LoadBalancerIPs) > 0 && len(s.SourceRanges) > 0 {
		sources = 1 + len(s.SourceRanges) + len(s.LoadBalancerIPs)
	}
	// At a frontend: address and policy, or the refusal; a counter; steering; for each view a program and its endpoints.
	each := 4 + sources + views*(1+perEndpoint*endpoints)
	// Beside them: the port and the one that is handed off, four draws of sticky views, hairpins.
	return 6 + frontends*each + endpoints
}

// countFamily counts addresses.
func countFamily(addrs []netip.Addr, f nft.Family) (n int) {
	for _, a := range addrs {
		if nft.FamilyOf(a) == f {
			n++
		}
	}
	return n
}

// Size is the number of elements that all ports ask for, and one for each port, so that those count that ask for none.
func (o *Output) Size() int {
	n := len(o.Ports)
	for i := range o.Ports {
		n += o.Ports[i].Service.Size()
	}
	return n
}

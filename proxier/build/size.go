// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Frontends counts the addresses of a Service in the family that has more of them, and the frontends that it asks for, both
// too high where it names an address twice. It is what to ask before Claims and Build, whose memory grows with it: a
// Service of 1.5 MB, which is what etcd takes, has room for 50,000 addresses and 10,000 ports, and so for 500,000,000
// frontends.
func Frontends(s *kube.Service) (most, frontends int) {
	if s == nil {
		return 0, 0
	}
	nodePorts := 0
	for i := range s.Ports {
		if s.Ports[i].NodePort != 0 {
			nodePorts++
		}
	}
	for _, f := range nft.Families() {
		if s.ClusterIP(f == nft.IPv6).IsValid() {
			n := addressCount(s, f)
			most = max(most, n)
			frontends += len(s.Ports)*n + nodePorts
		}
	}
	return most, frontends
}

// addressCount is how many a Service has in a family.
func addressCount(s *kube.Service, f nft.Family) int {
	n := 1 // the ClusterIP
	for _, a := range s.ExternalIPs {
		if nft.FamilyOf(a) == f {
			n++
		}
	}
	for _, a := range s.LoadBalancerIPs {
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

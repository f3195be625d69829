// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"net/netip"

	. "github.com/nftproxy/nftproxy/nft"
)

// externalConfigs are configurations with a balancer behind a device. The subnets of the first are IPv4, see in.
func externalConfigs() []Config {
	pods := PodMatch{CIDRs: true}
	subnet := netip.MustParsePrefix
	return []Config{
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{Steering: true, Mark: 0x1745ec, Mask: ^uint32(0)}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{Steering: true, Mark: 0x120000, Mask: 0xff0000}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{HandOff: true}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{Subnet: subnet("169.254.169.0/29"), Device: "mp0"}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{
			Steering: true, Mark: 0x1745ec, Mask: ^uint32(0), HandOff: true, Subnet: subnet("169.254.168.0/24"), Device: "ovn-k8s-mp0.123",
		}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{
			Steering: true, Mark: 0x1745ec, Mask: ^uint32(0), HandOff: true, SteeringHop: netip.MustParseAddr("10.244.1.1"),
			HandOffHop: netip.MustParseAddr("10.244.1.2"), Virtual: netip.MustParseAddr("169.254.169.3"),
		}},
		{MasqueradeBit: 14, Pods: pods, External: ExternalBalancer{HostClusterIPs: true, HandOffHop: netip.MustParseAddr("10.244.1.2")}},
	}
}

// in is the configuration for a family: one with IPv4 subnets gets IPv6 ones of as many host bits.
func inFamily(c Config, f Family) Config {
	if p := c.External.Subnet; p.IsValid() && f == IPv6 {
		c.External.Subnet = netip.PrefixFrom(netip.MustParseAddr("fd69::"), 128-32+p.Bits())
	}
	for _, a := range []*netip.Addr{&c.External.SteeringHop, &c.External.HandOffHop, &c.External.Virtual} {
		if a.Is4() && f == IPv6 {
			*a = netip.AddrFrom16([16]byte{0xfd, 0x69, 15: a.As4()[3]})
		}
	}
	return c
}

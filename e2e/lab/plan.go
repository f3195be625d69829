// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

// Family is an IP family. The lab is always dual stack; loop over Families to test both.
type Family int

// The two families, as their names in addresses and test names.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families is both, for range loops.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// pick returns the text of the family.
func (f Family) pick(v4, v6 string) string {
	if f == IPv4 {
		return v4
	}
	return v6
}

// host is the i-th address of a prefix of either family: 10.244.1.0/24 and 11 give 10.244.1.11. In IPv6 i is the value,
// so 11 is ::b.
func host(p netip.Prefix, i int) netip.Addr {
	a := p.Masked().Addr().AsSlice()
	for k := len(a) - 1; i > 0; k-- {
		i += int(a[k])
		a[k] = byte(i)
		i >>= 8
	}
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

// digits makes IPv6 addresses read as their IPv4 twins: 11 becomes 0x11, so that pod 1 is 10.244.1.11 and fd00:244:1::11.
func (f Family) digits(i int) int {
	if f == IPv4 {
		return i
	}
	v := 0
	for shift := 0; i > 0; shift += 4 {
		v |= (i % 10) << shift
		i /= 10
	}
	return v
}

// NodeCIDR is the network that nodes and outside clients share: 172.18.0.0/24, fd00:18::/64.
func NodeCIDR(f Family) netip.Prefix {
	return netip.MustParsePrefix(f.pick("172.18.0.0/24", "fd00:18::/64"))
}

// GatewayIP is the switch's address in NodeCIDR (.1), default route of nodes and clients, and where the API server answers.
func GatewayIP(f Family) netip.Addr { return host(NodeCIDR(f), 1) }

// NodeIP is the address of the n-th node, from 1: 172.18.0.11, fd00:18::11.
func NodeIP(f Family, n int) netip.Addr { return host(NodeCIDR(f), f.digits(10+n)) }

// ClientIP is the address of the k-th outside client, from 1: 172.18.0.201, fd00:18::201.
func ClientIP(f Family, k int) netip.Addr { return host(NodeCIDR(f), f.digits(200+k)) }

// ClusterCIDR holds the pods of all nodes: 10.244.0.0/16, fd00:244::/32.
func ClusterCIDR(f Family) netip.Prefix {
	return netip.MustParsePrefix(f.pick("10.244.0.0/16", "fd00:244::/32"))
}

// PodCIDR holds the pods of the n-th node: 10.244.1.0/24, fd00:244:1::/64. The first address is the node's.
func PodCIDR(f Family, n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(f.pick("10.244.%d.0/24", "fd00:244:%d::/64"), n))
}

// PodGateway is the n-th node's own address towards its pods: 10.244.1.1, fd00:244:1::1.
func PodGateway(f Family, n int) netip.Addr { return host(PodCIDR(f, n), 1) }

// PodIP is the address of the p-th pod of the n-th node, both from 1: 10.244.1.11, fd00:244:1::11.
func PodIP(f Family, n, p int) netip.Addr { return host(PodCIDR(f, n), f.digits(10+p)) }

// ServiceCIDR holds ClusterIPs: 10.96.0.0/16, fd00:10:96::/112.
func ServiceCIDR(f Family) netip.Prefix {
	return netip.MustParsePrefix(f.pick("10.96.0.0/16", "fd00:10:96::/112"))
}

// ClusterIP is the i-th ClusterIP; 1 is the API server's own Service. i below 65,535: 10.96.1.0 and fd00:10:96::100 are 256.
func ClusterIP(f Family, i int) netip.Addr { return host(ServiceCIDR(f), i) }

// LoadBalancerCIDR holds the addresses for LoadBalancer Services: 203.0.113.0/24, fd00:113::/112.
func LoadBalancerCIDR(f Family) netip.Prefix {
	return netip.MustParsePrefix(f.pick("203.0.113.0/24", "fd00:113::/112"))
}

// LoadBalancerIP is the i-th of them.
func LoadBalancerIP(f Family, i int) netip.Addr { return host(LoadBalancerCIDR(f), f.digits(i)) }

// ExternalCIDR holds the addresses for spec.externalIPs: 198.51.100.0/24, fd00:100::/112.
func ExternalCIDR(f Family) netip.Prefix {
	return netip.MustParsePrefix(f.pick("198.51.100.0/24", "fd00:100::/112"))
}

// ExternalIP is the i-th of them.
func ExternalIP(f Family, i int) netip.Addr { return host(ExternalCIDR(f), f.digits(i)) }

// apiService is the ClusterIP and port of the API server's own Service.
func apiService() netip.AddrPort { return netip.AddrPortFrom(ClusterIP(IPv4, 1), 443) }

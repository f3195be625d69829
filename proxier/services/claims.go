// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Claim is what a packet is matched by: only one Service can have it. It is comparable.
type Claim struct {
	Family nft.Family
	Addr   netip.Addr // of the family; the zero Addr for a NodePort
	Proto  nft.Proto
	Port   uint16 // in host order
	// Source is the field of the Service that the claim comes from. Who has given the address decides about precedence.
	Source ClaimSource
}

// ClaimSource is the field of a Service that an address comes from, in order of precedence.
type ClaimSource uint8

// The sources of claims.
const (
	// FromAllocator is spec.clusterIPs or a NodePort: the API server gives each of them to one Service.
	FromAllocator ClaimSource = iota
	// FromLoadBalancer is status.loadBalancer: a controller of the cluster has given it.
	FromLoadBalancer
	// FromUser is spec.externalIPs: any user of the cluster can write any address (CVE-2020-8554).
	FromUser
)

// String returns "tcp 10.96.0.10:80", or "tcp NodePort 30080 (ip)".
func (c Claim) String() string {
	if !c.Addr.IsValid() {
		return fmt.Sprintf("%s NodePort %d (%s)", c.Proto, c.Port, c.Family)
	}
	return fmt.Sprintf("%s %s", c.Proto, netip.AddrPortFrom(c.Addr, c.Port))
}

// Claims lists what a Service needs for its frontends, each once.
func Claims(s *kube.Service) []Claim {
	if s == nil {
		return nil
	}
	var buf [8]vip
	var out []Claim
	for _, f := range nft.Families() {
		if !s.ClusterIP(f == nft.IPv6).IsValid() {
			continue
		}
		vips := appendVIPs(buf[:0], s, f)
		for i := range s.Ports {
			for j := range vips {
				out = append(out, vips[j].claim(f, &s.Ports[i]))
			}
			if s.Ports[i].NodePort != 0 {
				out = append(out, nodePortClaim(f, &s.Ports[i]))
			}
		}
	}
	return out
}

func (v *vip) claim(f nft.Family, p *kube.ServicePort) Claim {
	return Claim{Family: f, Addr: v.addr, Proto: p.Proto, Port: p.Port, Source: v.source}
}

func nodePortClaim(f nft.Family, p *kube.ServicePort) Claim {
	return Claim{Family: f, Proto: p.Proto, Port: p.NodePort}
}

// key is a Claim in 20 bytes, a third of its size: the index holds one or two for each frontend of the cluster.
type key struct {
	addr  [16]byte // an IPv4 address is mapped into IPv6
	space uint8    // the family, nodePorts where there is no address, and the source
	proto nft.Proto
	port  uint16
}

// Bits of key.space beside the family, which is an NFPROTO number below 16.
const (
	sourceShift = 4
	sourceBits  = 3 << sourceShift
	nodePorts   = 1 << 7 // separates a NodePort from the unspecified address
)

func keyOf(c Claim) key {
	k := key{addr: c.Addr.As16(), space: uint8(c.Family) | uint8(c.Source)<<sourceShift, proto: c.Proto, port: c.Port}
	if !c.Addr.IsValid() {
		k.space |= nodePorts
	}
	return k
}

// bare is the key without its source: what Services compete for.
func (k key) bare() key {
	k.space &^= sourceBits
	return k
}

func (k key) source() ClaimSource { return ClaimSource(k.space & sourceBits >> sourceShift) }

// claim is the inverse of keyOf.
func (k key) claim() Claim {
	c := Claim{Family: nft.Family(k.space &^ (nodePorts | sourceBits)), Proto: k.proto, Port: k.port, Source: k.source()}
	if k.space&nodePorts == 0 {
		if c.Addr = netip.AddrFrom16(k.addr); c.Family == nft.IPv4 {
			c.Addr = c.Addr.Unmap()
		}
	}
	return c
}

// compare defines a total order of keys; those that differ in their source alone are neighbours, the strongest first.
func (k key) compare(o key) int { return cmp.Or(k.compareBare(o), cmp.Compare(k.space, o.space)) }

// compareBare compares without the source.
func (k key) compareBare(o key) int {
	if c := bytes.Compare(k.addr[:], o.addr[:]); c != 0 {
		return c
	}
	a := int(k.bare().space)<<24 | int(k.proto)<<16 | int(k.port)
	b := int(o.bare().space)<<24 | int(o.proto)<<16 | int(o.port)
	return a - b
}

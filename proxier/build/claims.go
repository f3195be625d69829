// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
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
}

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
			p := &s.Ports[i]
			for _, v := range vips {
				out = append(out, Claim{f, v.addr, nft.Proto(p.Proto), p.Port})
			}
			if p.NodePort != 0 {
				out = append(out, Claim{f, netip.Addr{}, nft.Proto(p.Proto), p.NodePort})
			}
		}
	}
	return out
}

// key is a Claim in 20 bytes, a third of its size: there is one in memory, or two, for each frontend of the cluster.
type key struct {
	addr  [16]byte // mapped where it is IPv4
	space uint8    // the family, and nodePorts where there is no address
	proto nft.Proto
	port  uint16
}

// nodePorts sets the key of a NodePort apart from one of the address that is all zeros. NFPROTO numbers are below it.
const nodePorts = 1 << 7

func keyOf(c Claim) key {
	k := key{addr: c.Addr.As16(), space: uint8(c.Family), proto: c.Proto, port: c.Port}
	if !c.Addr.IsValid() {
		k.space |= nodePorts
	}
	return k
}

// claim is the inverse of keyOf.
func (k key) claim() Claim {
	c := Claim{Family: nft.Family(k.space &^ nodePorts), Proto: k.proto, Port: k.port}
	if k.space&nodePorts == 0 {
		if c.Addr = netip.AddrFrom16(k.addr); c.Family == nft.IPv4 {
			c.Addr = c.Addr.Unmap()
		}
	}
	return c
}

// compare orders keys in some way.
func (k key) compare(o key) int {
	for i := range k.addr {
		if k.addr[i] != o.addr[i] {
			return int(k.addr[i]) - int(o.addr[i])
		}
	}
	a := int(k.space)<<24 | int(k.proto)<<16 | int(k.port)
	b := int(o.space)<<24 | int(o.proto)<<16 | int(o.port)
	return a - b
}

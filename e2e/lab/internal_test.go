// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"
)

// TestPlan holds the addresses that the package comment promises, and shows that no two ranges overlap.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		got  netip.Addr
		want string
	}{
		{GatewayIP(IPv4), "172.18.0.1"}, {GatewayIP(IPv6), "fd00:18::1"},
		{NodeIP(IPv4, 1), "172.18.0.11"}, {NodeIP(IPv6, 1), "fd00:18::11"},
		{NodeIP(IPv4, 12), "172.18.0.22"}, {NodeIP(IPv6, 12), "fd00:18::22"},
		{ClientIP(IPv4, 1), "172.18.0.201"}, {ClientIP(IPv6, 1), "fd00:18::201"},
		{PodGateway(IPv4, 2), "10.244.2.1"}, {PodGateway(IPv6, 2), "fd00:244:2::1"},
		{PodIP(IPv4, 2, 3), "10.244.2.13"}, {PodIP(IPv6, 2, 3), "fd00:244:2::13"},
		{ClusterIP(IPv4, 1), "10.96.0.1"}, {ClusterIP(IPv6, 1), "fd00:10:96::1"},
		{ClusterIP(IPv4, 256), "10.96.1.0"}, {ClusterIP(IPv6, 256), "fd00:10:96::100"},
		{ClusterIP(IPv4, 65534), "10.96.255.254"}, {ClusterIP(IPv6, 65534), "fd00:10:96::fffe"},
		{LoadBalancerIP(IPv4, 10), "203.0.113.10"}, {LoadBalancerIP(IPv6, 10), "fd00:113::10"},
		{ExternalIP(IPv4, 7), "198.51.100.7"}, {ExternalIP(IPv6, 7), "fd00:100::7"},
	} {
		if c.got != netip.MustParseAddr(c.want) {
			t.Errorf("want %s, got %s", c.want, c.got)
		}
	}
	for _, f := range Families() {
		ranges := []netip.Prefix{NodeCIDR(f), ClusterCIDR(f), ServiceCIDR(f), LoadBalancerCIDR(f), ExternalCIDR(f)}
		for i, a := range ranges {
			for _, b := range ranges[:i] {
				if a.Overlaps(b) {
					t.Errorf("%s overlaps %s", a, b)
				}
			}
		}
		if pods := PodCIDR(f, 9); !ClusterCIDR(f).Contains(pods.Addr()) || FamilyOf(pods.Addr()) != f {
			t.Errorf("%s is not in %s", pods, ClusterCIDR(f))
		}
	}
}

func TestSCTPPacket(t *testing.T) {
	for _, p := range []sctpPacket{
		{From: 1, To: 65535, Type: chunkInit, Initiate: 7},
		{From: 8080, To: 40000, Tag: 7, Type: chunkInitAck, Initiate: 1 << 31, Cookie: []byte("a|10.0.0.1:1\n")},
		{From: 8080, To: 40000, Tag: 7, Type: chunkInitAck, Initiate: 9, Cookie: []byte("four")},
	} {
		b := p.marshal()
		got, err := unmarshalSCTP(b)
		if err != nil || got.From != p.From || got.To != p.To || got.Tag != p.Tag || got.Type != p.Type ||
			got.Initiate != p.Initiate || !bytes.Equal(got.Cookie, p.Cookie) {
			t.Errorf("want %+v, got %+v, %v", p, got, err)
		}
		if len(b)%4 != 0 {
			t.Errorf("%d bytes: chunks are padded to 4", len(b))
		}
		for i := range b {
			b[i] ^= 0x10
			if _, err := unmarshalSCTP(b); err == nil {
				t.Errorf("byte %d wrong, and it was not noticed", i)
			}
			b[i] ^= 0x10
		}
	}
}

func FuzzUnmarshalSCTP(f *testing.F) {
	f.Add(sctpPacket{From: 1, To: 2, Type: chunkInitAck, Cookie: []byte("a|b")}.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= sctpHeader { // with the right checksum, so that what follows it is read
			copy(b[8:], []byte{0, 0, 0, 0})
			binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		}
		p, err := unmarshalSCTP(b)
		if err == nil && len(p.Cookie) > len(b) {
			t.Errorf("cookie of %d bytes from %d", len(p.Cookie), len(b))
		}
	})
}

func TestParse(t *testing.T) {
	r := parse("web-1|[fd00::1]:80\nmore")
	if r.Verdict != Answered || r.Backend != "web-1" || r.Source != netip.MustParseAddrPort("[fd00::1]:80") {
		t.Errorf("got %+v", r)
	}
	for _, text := range []string{"", "\n", "web", "web|", "web|10.0.0.1\n", "|x:1\n"} {
		if r := parse(text); r.Verdict != Broken || r.Err == nil {
			t.Errorf("%q: got %+v", text, r)
		}
	}
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is the address family of a table. Its value is the kernel's NFPROTO number.
type Family uint8

const (
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6
)

// FamilyOf returns the family of an unmapped address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns nft's name of the family's tables: ip or ip6.
func (f Family) String() string {
	if f == IPv4 {
		return "ip"
	}
	return "ip6"
}

// AddrLen is the length of an address in bytes.
func (f Family) AddrLen() int {
	if f == IPv4 {
		return 4
	}
	return 16
}

// Other returns the other family.
func (f Family) Other() Family {
	if f == IPv4 {
		return IPv6
	}
	return IPv4
}

// Families lists both, IPv4 first.
func Families() []Family { return []Family{IPv4, IPv6} }

// Proto is an IP protocol number (IANA).
type Proto uint8

const (
	TCP  Proto = unix.IPPROTO_TCP
	UDP  Proto = unix.IPPROTO_UDP
	SCTP Proto = unix.IPPROTO_SCTP
)

// String returns the name that nft prints, or "proto" and nothing else for what a Service cannot have.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "proto"
}

// ParseProto is the inverse of String.
func ParseProto(s string) (Proto, bool) {
	for _, p := range []Proto{TCP, UDP, SCTP} {
		if p.String() == s {
			return p, true
		}
	}
	return 0, false
}

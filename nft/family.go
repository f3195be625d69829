// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
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

// Proto is a transport protocol in its IANA number.
type Proto = nl.Proto

// The protocols that a Service can have.
const (
	TCP  = nl.TCP
	UDP  = nl.UDP
	SCTP = nl.SCTP
)

// ParseProto is the inverse of Proto.String for the three protocols of Services.
func ParseProto(s string) (Proto, bool) { return nl.ParseProto(s) }

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package nl is the common ground of the packages that speak netlink: address families and transport protocols in
// the kernel's numbers, attributes, and the retry of interrupted dumps.
//
// In comes the payload of netlink messages, out go numbers, addresses and byte slices; the caller sends and receives.
// The package never opens a socket and knows no message type of any subsystem.
//
// mdlayher/netlink has an attribute encoder and decoder too, but its decoder copies each attribute and its encoder
// allocates for each nested one. A start at 10,000 Services moves 40,000 elements of some ten attributes each.
package nl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Family is an address family. Its value is AF_INET or AF_INET6, which are NFPROTO_IPV4 and NFPROTO_IPV6 as well.
type Family uint8

// The families.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Families lists both families, IPv4 first.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address counts as IPv6: unmap it first.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// AddrLen returns the length of an address in bytes.
func (f Family) AddrLen() int {
	if f == IPv4 {
		return 4
	}
	return 16
}

// Unspecified returns 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Other returns the other family.
func (f Family) Other() Family {
	if f == IPv4 {
		return IPv6
	}
	return IPv4
}

// Proto is a transport protocol in its IANA number.
type Proto uint8

// The protocols that a Service can have.
const (
	TCP  Proto = unix.IPPROTO_TCP
	UDP  Proto = unix.IPPROTO_UDP
	SCTP Proto = unix.IPPROTO_SCTP
)

// String returns the lower case name, or the number of a protocol that no Service can have.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

// ParseProto is the inverse of String for the three protocols of Services.
func ParseProto(s string) (Proto, bool) {
	for _, p := range []Proto{TCP, UDP, SCTP} {
		if p.String() == s {
			return p, true
		}
	}
	return 0, false
}

// dumpAttempts bounds the repetitions of one dump and dumpPause is the pause after the first interruption, which
// doubles up to 64 ms. The pauses of ten attempts add up to 0.2 s: a commit takes milliseconds, so only a program that
// commits without pause interrupts all of them.
const (
	dumpAttempts = 10
	dumpPause    = time.Millisecond
	maxPause     = 64 * time.Millisecond
)

// Retry calls dump until it returns something else than EINTR, which stands for a dump that a change has interrupted
// (NLM_F_DUMP_INTR): such a dump may lack entries or contain some of them twice. dump starts anew on each call, so it
// has to discard what the previous call has collected.
//
// Retry returns the error of dump, the error of ctx, or after ten attempts an error that wraps EINTR.
func Retry(ctx context.Context, dump func() error) error {
	pause := dumpPause
	for range dumpAttempts - 1 {
		err := dump()
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, maxPause)
	}
	err := dump()
	if errors.Is(err, syscall.EINTR) {
		return fmt.Errorf("changes interrupted all of %d dumps: %w", dumpAttempts, err)
	}
	return err
}

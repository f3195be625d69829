// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"
)

// Reasons why a field cannot be used; they arrive wrapped in a [FieldError].
var (
	errAddress   = errors.New("not an IP address")
	errPrefix    = errors.New("not a CIDR")
	errZone      = errors.New("an address with a zone")
	errMapped    = errors.New("an IPv4-mapped prefix wider than /96")
	errSpecial   = errors.New("a loopback, multicast, broadcast or unspecified address")
	errLinkLocal = errors.New("a link-local address")
	errFamily    = errors.New("of a family that the object does not have")
	errPort      = errors.New("not a port number")
	errProto     = errors.New("not TCP, UDP or SCTP")
	errDuplicate = errors.New("given twice, the first one counts")
	errMissing   = errors.New("must be given")
	errUnknown   = errors.New("not a known value")
	errRange     = errors.New("out of range")
)

// problems gathers what is wrong with one object.
type problems struct {
	ref  Ref
	errs []error
}

// add records that a field cannot be used because of err; value is shown unless it is nil.
func (p *problems) add(err error, value any, format string, args ...any) {
	if value != nil {
		err = fmt.Errorf("%#v: %w", value, err)
	}
	p.errs = append(p.errs, &FieldError{p.ref, fmt.Sprintf(format, args...), err})
}

// nameOf returns the name of an object. Namespaces are few, so they are interned, as far as the collector lets them.
func nameOf(o metav1.Object) Name { return Name{Intern(o.GetNamespace()).String(), o.GetName()} }

// parseAddr reads an address as kube-proxy does: leading zeros of an IPv4 octet are decimal (objects older than
// Kubernetes 1.22 may have them), and an IPv4-mapped IPv6 address is the IPv4 address.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
		if !ok {
			return netip.Addr{}, errAddress
		}
		a = ip
	}
	if a.Zone() != "" {
		return netip.Addr{}, errZone
	}
	return a.Unmap(), nil
}

// parsePrefix reads a range likewise and masks it. An IPv4-mapped one becomes the IPv4 range that it covers and is
// refused where it covers more than those.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		_, ipnet, err := netutils.ParseCIDRSloppy(s)
		if err != nil {
			return netip.Prefix{}, errPrefix
		}
		a, _ := netip.AddrFromSlice(ipnet.IP)
		bits, _ := ipnet.Mask.Size()
		p = netip.PrefixFrom(a, bits)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, errMapped
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// parseVIP reads an address that clients may connect to.
func parseVIP(s string) (netip.Addr, error) {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	a, err := parseAddr(s)
	if err == nil && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast) {
		return netip.Addr{}, errSpecial
	}
	return a, err
}

// parseRoutable reads an address that must not be link-local either. The API server refuses the same of endpoints
// and external IPs.
func parseRoutable(s string) (netip.Addr, error) {
	a, err := parseVIP(s)
	if err == nil && a.IsLinkLocalUnicast() {
		return netip.Addr{}, errLinkLocal
	}
	return a, err
}

func parsePort(n int32) (uint16, error) {
	if n < 1 || n > math.MaxUint16 {
		return 0, errPort
	}
	return uint16(n), nil
}

// parseProto reads a protocol. The API server's default is TCP.
func parseProto(s v1.Protocol) (Proto, error) {
	switch s {
	case v1.ProtocolTCP, "":
		return TCP, nil
	case v1.ProtocolUDP:
		return UDP, nil
	case v1.ProtocolSCTP:
		return SCTP, nil
	}
	return 0, errProto
}

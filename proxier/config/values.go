// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	netutils "k8s.io/utils/net"
)

// bindFlag is a flag that holds an IP address with or without a port, or
// nothing.
type bindFlag struct{ to *string }

// Set implements pflag.Value.
func (f *bindFlag) Set(s string) error {
	if s == "" || netutils.ParseIPSloppy(s) != nil {
		*f.to = s
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is neither IP nor IP:port: %w", s, err)
	}
	if netutils.ParseIPSloppy(host) == nil {
		return fmt.Errorf("%q is not an IP address", host)
	}
	if _, err := netutils.ParsePort(port, true); err != nil {
		return fmt.Errorf("%q is not a port: %w", port, err)
	}
	*f.to = s
	return nil
}

// String implements pflag.Value.
func (f *bindFlag) String() string {
	if f.to == nil {
		return ""
	}
	return *f.to
}

// Type implements pflag.Value.
func (f *bindFlag) Type() string { return "ipport" }

// ipFlag is a flag that holds an IP address.
type ipFlag struct{ to *string }

// Set implements pflag.Value.
func (f *ipFlag) Set(s string) error {
	if s == "" {
		return nil
	}
	if netutils.ParseIPSloppy(s) == nil {
		return fmt.Errorf("%q is not an IP address", s)
	}
	*f.to = s
	return nil
}

// String implements pflag.Value.
func (f *ipFlag) String() string {
	if f.to == nil {
		return ""
	}
	return *f.to
}

// Type implements pflag.Value.
func (f *ipFlag) Type() string { return "ip" }

// parseAddr reads an address as kube-proxy does (leading zeros allowed), with
// IPv4-mapped addresses taken for IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return a.Unmap(), ok
}

// parsePrefix reads a CIDR as kube-proxy does; host bits are cut off.
func parsePrefix(s string) (netip.Prefix, bool) {
	ip, ipnet, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, _ := netip.AddrFromSlice(ip)
	bits, _ := ipnet.Mask.Size()
	if addr.Is4In6() && len(ipnet.Mask) == net.IPv4len {
		addr = addr.Unmap()
	}
	p, err := addr.Prefix(bits)
	return p, err == nil
}

// withPort adds the port to a bare address. Anything else is left to
// validation.
func withPort(addr string, port int32) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	if netutils.ParseIPSloppy(addr) == nil {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(int(port)))
}

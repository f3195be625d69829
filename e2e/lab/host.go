// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is a namespace with a name, addresses and a netlink handle.
type Host struct {
	*Namespace
	Name string
	Net  *Net
	// NL is rtnetlink inside the namespace, for what the methods here do not offer.
	NL *netlink.Handle

	addr     map[Family]netip.Addr
	sctpPort atomic.Uint32 // the last one used
}

func newHost(n *Net, name string) (*Host, error) {
	ns, err := NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("%s: rtnetlink: %w", name, err)
	}
	h := &Host{Namespace: ns, Name: name, Net: n, NL: nl, addr: map[Family]netip.Addr{}}
	h.sctpPort.Store(rand.Uint32())
	if err := h.Namespace.sysctls(hostSettings()); err != nil {
		h.close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := h.up("lo"); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *Host) close() {
	h.NL.Close()
	h.Namespace.Close()
}

// IP is the host's main address of a family.
func (h *Host) IP(f Family) netip.Addr { return h.addr[f] }

// At is the host's main address of a family with a port.
func (h *Host) At(f Family, port uint16) netip.AddrPort { return netip.AddrPortFrom(h.addr[f], port) }

func (h *Host) String() string { return h.Name }

// AddAddr adds a further address to an interface, usable at once. The host does not choose it as a source by itself: IPv6
// would prefer the newest, so it is added as deprecated (RFC 6724 rule 3); IPv4 prefers the oldest anyway.
func (h *Host) AddAddr(link string, p netip.Prefix) error {
	return h.addAddr(link, netlink.Addr{IPNet: ipNet(p), ValidLft: math.MaxUint32}) // with a preferred lifetime of 0
}

// addAddr adds an address without duplicate address detection.
func (h *Host) addAddr(link string, a netlink.Addr) error {
	l, err := h.NL.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s: link %s: %w", h.Name, link, err)
	}
	a.Flags |= unix.IFA_F_NODAD
	if err := h.NL.AddrAdd(l, &a); err != nil {
		return fmt.Errorf("%s: add %s to %s: %w", h.Name, a.IPNet, link, err)
	}
	return nil
}

// DelAddr removes it.
func (h *Host) DelAddr(link string, p netip.Prefix) error {
	l, err := h.NL.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s: link %s: %w", h.Name, link, err)
	}
	if err := h.NL.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("%s: remove %s from %s: %w", h.Name, p, link, err)
	}
	return nil
}

// Route sets the route to a prefix: via a gateway, or on the link when via is the zero value. It replaces an older one.
func (h *Host) Route(dst netip.Prefix, via netip.Addr, link string) error {
	r := netlink.Route{Dst: ipNet(dst)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if link != "" {
		l, err := h.NL.LinkByName(link)
		if err != nil {
			return fmt.Errorf("%s: link %s: %w", h.Name, link, err)
		}
		r.LinkIndex = l.Attrs().Index
	}
	if err := h.NL.RouteReplace(&r); err != nil {
		return fmt.Errorf("%s: route %s via %s dev %q: %w", h.Name, dst, via, link, err)
	}
	return nil
}

// AnyIP makes the host answer for all addresses of a prefix as if each were its own: one pod then stands for thousands
// of endpoints. Others still need a route to it.
func (h *Host) AnyIP(p netip.Prefix) error {
	lo, err := h.NL.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("%s: lo: %w", h.Name, err)
	}
	r := netlink.Route{
		Dst: ipNet(p), LinkIndex: lo.Attrs().Index,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	}
	if err := h.NL.RouteReplace(&r); err != nil {
		return fmt.Errorf("%s: local route %s: %w", h.Name, p, err)
	}
	return nil
}

func (h *Host) up(link string) error {
	l, err := h.NL.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s: link %s: %w", h.Name, link, err)
	}
	if err := h.NL.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s: link %s up: %w", h.Name, link, err)
	}
	return nil
}

func everything(f Family) netip.Prefix { return netip.MustParsePrefix(f.pick("0.0.0.0/0", "::/0")) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

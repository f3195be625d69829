// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// eachAttr calls f for every attribute in b, without the flags in its type. Truncated input ends the walk: the
// kernel never sends it, and a partly read message shows as an entry that differs, which is repaired.
func eachAttr(b []byte, f func(typ uint16, v []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// number reads an integer of 1, 2 or 4 bytes in host order, 0 for any other length.
func number(v []byte) uint32 {
	switch len(v) {
	case 1:
		return uint32(v[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(v))
	case 4:
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// ip reads an address; the zero Addr is invalid and stands for any odd length.
func ip(v []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(v)
	return a
}

func text(v []byte) string { return string(bytes.TrimRight(v, "\x00")) }

// decodeLink reads a message of type RTM_NEWLINK.
func decodeLink(b []byte) (Link, bool) {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, false
	}
	flags := number(b[8:12])
	l := Link{Index: int(number(b[4:8])), Up: flags&unix.IFF_UP != 0, Loopback: flags&unix.IFF_LOOPBACK != 0}
	eachAttr(b[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = text(v)
		case unix.IFLA_MTU:
			l.MTU = int(number(v))
		case unix.IFLA_PROP_LIST:
			eachAttr(v, func(typ uint16, v []byte) {
				if typ == unix.IFLA_ALT_IFNAME {
					l.AltNames = append(l.AltNames, text(v))
				}
			})
		}
	})
	return l, true
}

// decodeAddr reads a message of type RTM_NEWADDR: an address of others, or (ours true) one of ours.
func decodeAddr(b []byte) (a Addr, ours, ok bool) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Addr{}, false, false
	}
	flags := uint32(b[2])
	a = Addr{Index: int(number(b[4:8])), Global: b[3] == unix.RT_SCOPE_UNIVERSE}
	var local, address netip.Addr
	var proto, tag uint32
	eachAttr(b[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFA_LOCAL: // on point-to-point links the other end is IFA_ADDRESS
			local = ip(v)
		case unix.IFA_ADDRESS:
			address = ip(v)
		case unix.IFA_FLAGS:
			flags = number(v)
		case ifaProto:
			proto = number(v)
		case ifaRTPriority:
			tag = number(v)
		}
	})
	if !local.IsValid() {
		local = address
	}
	a.Prefix = netip.PrefixFrom(local, int(b[1]))
	a.Tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	a.Deprecated = flags&unix.IFA_F_DEPRECATED != 0
	return a, proto == Protocol || proto == 0 && tag == addressTag, a.Prefix.IsValid()
}

// decodeRoute reads a message of type RTM_NEWROUTE or RTM_DELROUTE. A route that is not of the shape we make (type,
// several next hops, a gateway of the other family) comes back without an interface, so that it equals none of ours.
func decodeRoute(b []byte) (r Route, protocol uint8, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return Route{}, 0, false
	}
	family, odd := Family(b[0]), b[7] != unix.RTN_UNICAST
	dst := zeroAddr(family)
	r = Route{Table: uint32(b[4]), OnLink: number(b[8:12])&unix.RTNH_F_ONLINK != 0}
	eachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.RTA_DST:
			dst = ip(v)
		case unix.RTA_TABLE:
			r.Table = number(v)
		case unix.RTA_OIF:
			r.Index = int(number(v))
		case unix.RTA_GATEWAY:
			r.Gateway = ip(v)
		case unix.RTA_PREFSRC:
			r.Source = ip(v)
		case unix.RTA_PRIORITY:
			r.Metric = number(v)
		case unix.RTA_METRICS:
			eachAttr(v, func(typ uint16, v []byte) {
				if typ == unix.RTAX_MTU {
					r.MTU = number(v)
				}
			})
		case unix.RTA_MULTIPATH, unix.RTA_VIA:
			odd = true
		}
	})
	if odd {
		r.Index = 0
	}
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	return r, b[5], r.Dst.IsValid()
}

func zeroAddr(f Family) netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// decodeRule reads a message of type RTM_NEWRULE. The kernel's own are told apart by their priorities: those before
// 4.17 carry no protocol.
func decodeRule(b []byte) (r ForeignRule, kernel, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return ForeignRule{}, false, false
	}
	r = ForeignRule{Fam: Family(b[0]), Table: uint32(b[4]), Selective: b[3] != 0 || number(b[8:12])&fibRuleInvert != 0}
	eachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) {
		switch typ {
		case fraPriority:
			r.Priority = number(v)
		case fraFwmark:
			r.Mark = number(v)
		case fraFwmask:
			r.Mask = number(v)
		case fraTable:
			r.Table = number(v)
		case fraProtocol:
			r.Protocol = uint8(number(v))
		case fraPrefixlen, fraIfgroup:
			r.Selective = r.Selective || number(v) != ^uint32(0)
		case fraFlow, fraPad:
		default:
			r.Selective = true
		}
	})
	standard := r.Priority == 0 || r.Priority == maxPriority+1 || r.Priority == maxPriority+2
	return r, standard && r.Mask == 0, true
}

// decodeNeighbour reads a message of type RTM_NEWNEIGH or RTM_DELNEIGH.
func decodeNeighbour(b []byte) (n Neighbour, ours, permanent, ok bool) {
	if len(b) < unix.SizeofNdMsg {
		return Neighbour{}, false, false, false
	}
	n.Index = int(number(b[4:8]))
	permanent = number(b[8:10])&unix.NUD_PERMANENT != 0
	eachAttr(b[unix.SizeofNdMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.NDA_DST:
			n.Addr = ip(v)
		case unix.NDA_LLADDR:
			copy(n.MAC[:], v)
		case ndaProtocol:
			ours = number(v) == Protocol
		}
	})
	return n, ours, permanent, n.Addr.IsValid()
}

// netconf is what RTM_GETNETCONF tells about an interface; -1 stands for conf.all.
type netconf struct {
	index      int
	rpFilter   int
	forwarding bool
}

// netconfAll is the index of conf.all (NETCONFA_IFINDEX_ALL).
const netconfAll = -1

func decodeNetconf(b []byte) (netconf, bool) {
	if len(b) < 4 {
		return netconf{}, false
	}
	var c netconf
	eachAttr(b[4:], func(typ uint16, v []byte) {
		switch typ {
		case netconfIfindex:
			c.index = int(int32(number(v)))
		case netconfForward:
			c.forwarding = number(v) != 0
		case netconfRPFilter:
			c.rpFilter = int(number(v))
		}
	})
	return c, c.index != 0
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/routing"
)

// addressTag marks our addresses where the kernel is older than 5.18 and ignores IFA_PROTO. It is stored as
// IFA_RT_PRIORITY (since 4.18), the metric of a prefix route that our addresses do not have. The bytes spell "nftp".
const addressTag = 0x6e667470

// Numbers of linux/if_addr.h, fib_rules.h, neighbour.h, netconf.h, ip.h and rtnetlink.h that the libraries lack.
const (
	ifaRTPriority   = 9
	ifaProto        = 11
	fraPad          = 18
	fibRuleInvert   = 2
	frActToTable    = 1
	ndaProtocol     = 12
	netconfIfindex  = 1
	netconfForward  = 2
	netconfRPFilter = 3
	ipv4DevconfRP   = 8 // IPV4_DEVCONF_RP_FILTER
	iflaInetConf    = 1 // IFLA_INET_CONF, inside IFLA_AF_SPEC / AF_INET
	skipStatistics  = 8 // RTEXT_FILTER_SKIP_STATS: a link is 1 kB smaller without
	rpLoose         = 2
)

// message is one request: type and flags of its header, and all after the header. Integers are in host order,
// addresses in network order.
type message struct {
	typ   uint16
	flags uint16
	body  nl.Buffer
}

// removes reports whether the message removes an entry.
func (m message) removes() bool {
	return slices.Contains([]uint16{unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_DELRULE, unix.RTM_DELNEIGH}, m.typ)
}

// header starts a message with a fixed part of n bytes, the first of which is the family in all of them.
func header(typ, flags uint16, f routing.Family, n int) message {
	m := message{typ, flags, make(nl.Buffer, n, 128)}
	m.body[0] = byte(f)
	return m
}

func dumpLinks() message {
	m := header(unix.RTM_GETLINK, 0, 0, unix.SizeofIfInfomsg)
	m.body.Host32(unix.IFLA_EXT_MASK, skipStatistics)
	return m
}

// lookupMessage asks for the entry of the routing tables that a packet matches.
func lookupMessage(l routing.Lookup) message {
	m := header(unix.RTM_GETROUTE, 0, nl.FamilyOf(l.Dst), unix.SizeofRtMsg)
	m.body[1] = uint8(l.Dst.BitLen())
	binary.NativeEndian.PutUint32(m.body[8:], unix.RTM_F_FIB_MATCH|unix.RTM_F_LOOKUP_TABLE)
	m.body.Addr(unix.RTA_DST, l.Dst)
	if l.Mark != 0 {
		m.body.Host32(unix.RTA_MARK, l.Mark)
	}
	return m
}

// Flags of additions. An addition never replaces: an entry of others in the slot stays, and the kernel returns EEXIST.
// Neighbours are the exception, see encodeNeighbour.
const (
	flagsAdd     = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	flagsReplace = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	flagsRemove  = unix.NLM_F_ACK
)

// encode returns the messages of an operation, in the order in which they must be sent.
func encode(op routing.Op) []message {
	switch e := op.Entry.(type) {
	case routing.Address:
		if old, ok := op.Old.(routing.Address); ok {
			// IPv6 has one address per interface whatever its prefix length, so the old one goes first.
			return []message{encodeAddress(routing.Remove, old), encodeAddress(routing.Add, e)}
		}
		return []message{encodeAddress(op.Verb, e)}
	case routing.Route:
		return []message{encodeRoute(op.Verb, e)}
	case routing.Rule:
		return []message{encodeRule(op.Verb, e)}
	case routing.Neighbour:
		return []message{encodeNeighbour(op.Verb, e)}
	case routing.LooseRPF:
		return []message{encodeLooseRPF(e)}
	}
	return nil // the set of types is closed
}

func encodeAddress(v routing.Verb, a routing.Address) message {
	ip := a.Prefix.Addr()
	m := header(unix.RTM_NEWADDR, flagsAdd, a.Family(), unix.SizeofIfAddrmsg)
	m.body[1] = uint8(a.Prefix.Bits())
	if ip.Is4() {
		m.body[3] = unix.RT_SCOPE_HOST // inet_select_addr skips it for every route that leaves the node
	}
	binary.NativeEndian.PutUint32(m.body[4:], uint32(a.Index))
	m.body.Addr(unix.IFA_LOCAL, ip)
	m.body.Addr(unix.IFA_ADDRESS, ip)
	if v == routing.Remove {
		m.typ, m.flags = unix.RTM_DELADDR, flagsRemove
		return m
	}
	m.body.Host32(unix.IFA_FLAGS, unix.IFA_F_NOPREFIXROUTE|unix.IFA_F_NODAD)
	m.body.Host32(ifaRTPriority, addressTag)
	m.body.Bytes(ifaProto, routing.Protocol)
	if ip.Is6() { // a preferred lifetime of 0 makes it deprecated: RFC 6724 rule 3 avoids it; valid for ever
		m.body.Bytes(unix.IFA_CACHEINFO, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	return m
}

// encodeRoute: a removal contains table, destination, metric and our protocol, and leaves the rest open, so that it
// also matches a route of ours that another program has changed.
func encodeRoute(v routing.Verb, r routing.Route) message {
	m := header(unix.RTM_NEWROUTE, flagsAdd, r.Family(), unix.SizeofRtMsg)
	m.body[1], m.body[5], m.body[7] = uint8(r.Dst.Bits()), routing.Protocol, unix.RTN_UNICAST
	if r.Table <= 255 { // above, only the attribute holds it
		m.body[4] = uint8(r.Table)
	}
	m.body.Addr(unix.RTA_DST, r.Dst.Addr())
	m.body.Host32(unix.RTA_TABLE, r.Table)
	m.body.Host32(unix.RTA_PRIORITY, r.Metric)
	switch v {
	case routing.Remove:
		m.typ, m.flags = unix.RTM_DELROUTE, flagsRemove
		m.body[6], m.body[7] = unix.RT_SCOPE_NOWHERE, unix.RTN_UNSPEC
		return m
	case routing.Replace:
		m.flags = flagsReplace
	}
	if r.OnLink {
		binary.NativeEndian.PutUint32(m.body[8:], unix.RTNH_F_ONLINK)
	}
	m.body.Host32(unix.RTA_OIF, uint32(r.Index))
	if r.Gateway.IsValid() {
		m.body.Addr(unix.RTA_GATEWAY, r.Gateway)
	} else if r.Family() == routing.IPv4 {
		m.body[6] = unix.RT_SCOPE_LINK // IPv6 has no scopes of routes
	}
	if r.Source.IsValid() {
		m.body.Addr(unix.RTA_PREFSRC, r.Source)
	}
	if r.MTU != 0 {
		metrics := m.body.Open(unix.RTA_METRICS)
		m.body.Host32(unix.RTAX_MTU, r.MTU)
		m.body.Close(metrics)
	}
	return m
}

func encodeRule(v routing.Verb, r routing.Rule) message {
	m := header(unix.RTM_NEWRULE, flagsAdd, r.Fam, unix.SizeofRtMsg)
	if v == routing.Remove {
		m.typ, m.flags = unix.RTM_DELRULE, flagsRemove
	}
	m.body[7] = frActToTable
	m.body.Host32(uint16(vnl.FRA_PRIORITY), r.Priority)
	m.body.Host32(uint16(vnl.FRA_FWMARK), r.Mark)
	m.body.Host32(uint16(vnl.FRA_FWMASK), r.Mask)
	m.body.Host32(uint16(vnl.FRA_TABLE), r.Table)
	m.body.Bytes(uint16(vnl.FRA_PROTOCOL), routing.Protocol)
	return m
}

// encodeNeighbour: an addition replaces, because a packet that was sent while our entry was missing has left an entry
// that is being resolved or has failed. Plan leaves permanent ones of others alone.
func encodeNeighbour(v routing.Verb, n routing.Neighbour) message {
	m := header(unix.RTM_NEWNEIGH, flagsReplace, n.Family(), unix.SizeofNdMsg)
	binary.NativeEndian.PutUint32(m.body[4:], uint32(n.Index))
	binary.NativeEndian.PutUint16(m.body[8:], unix.NUD_PERMANENT)
	m.body.Addr(unix.NDA_DST, n.Addr)
	if v == routing.Remove {
		m.typ, m.flags = unix.RTM_DELNEIGH, flagsRemove
		return m
	}
	m.body.Bytes(unix.NDA_LLADDR, n.MAC[:]...)
	m.body.Bytes(ndaProtocol, routing.Protocol)
	return m
}

// encodeLooseRPF sets rp_filter through the link and not through /proc/sys: that works where /proc/sys is read only, as
// it is in containers, and in the network namespace of the socket.
func encodeLooseRPF(l routing.LooseRPF) message {
	m := header(unix.RTM_SETLINK, flagsRemove, 0, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(m.body[4:], uint32(l.Index))
	spec := m.body.Open(unix.IFLA_AF_SPEC)
	inet := m.body.Open(unix.AF_INET)
	conf := m.body.Open(iflaInetConf)
	m.body.Host32(ipv4DevconfRP, rpLoose)
	m.body.Close(conf)
	m.body.Close(inet)
	m.body.Close(spec)
	return m
}

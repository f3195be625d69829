// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Protocol marks what is ours: the protocol of routes (rtm_protocol) and rules (FRA_PROTOCOL), IFA_PROTO of
// addresses and NDA_PROTOCOL of neighbours. It is 'n', a number that neither the kernel's rtnetlink.h nor
// iproute2's rt_protos gives to anybody. To read it in iproute2's output:
//
//	echo "110 nftproxy" >> /etc/iproute2/rt_protos
const Protocol = 'n'

// addressTag marks our addresses where the kernel is older than 5.18 and drops IFA_PROTO without a word. It is
// stored as IFA_RT_PRIORITY (since 4.18), the metric of a prefix route that our addresses do not bring. The bytes
// spell "nftp".
const addressTag = 0x6e667470

// Numbers of linux/if_addr.h, fib_rules.h, neighbour.h, netconf.h and ip.h that x/sys/unix does not name.
const (
	ifaRTPriority    = 9
	ifaProto         = 11
	fraPriority      = 6
	fraFwmark        = 10
	fraFlow          = 11
	fraIfgroup       = 13
	fraPrefixlen     = 14
	fraTable         = 15
	fraFwmask        = 16
	fraPad           = 18
	fraProtocol      = 21
	fibRuleInvert    = 2
	frActToTable     = 1
	ndaProtocol      = 12
	netconfIfindex   = 1
	netconfForward   = 2
	netconfRPFilter  = 3
	ipv4DevconfRP    = 8 // IPV4_DEVCONF_RP_FILTER
	iflaInetConf     = 1 // IFLA_INET_CONF, inside IFLA_AF_SPEC / AF_INET
	skipStatistics   = 8 // RTEXT_FILTER_SKIP_STATS: a link is 1 kB smaller without
	infinityLifeTime = 0xffffffff
)

// message is one request: type and flags of its header, and all behind the header. Integers are in host order,
// addresses in network order, as rtnetlink has it.
type message struct {
	typ   uint16
	flags uint16
	body  []byte
}

// attr appends an attribute and pads it to 4 bytes (NLA_ALIGNTO). Ours are far below the 64 KiB of nla_len.
func (m *message) attr(typ uint16, value []byte) {
	m.body = binary.NativeEndian.AppendUint16(m.body, uint16(4+len(value)))
	m.body = binary.NativeEndian.AppendUint16(m.body, typ)
	m.body = append(m.body, value...)
	for len(m.body)%4 != 0 {
		m.body = append(m.body, 0)
	}
}

func (m *message) u8(typ uint16, v uint8)        { m.attr(typ, []byte{v}) }
func (m *message) u32(typ uint16, v uint32)      { m.attr(typ, u32(v)) }
func (m *message) addr(typ uint16, a netip.Addr) { m.attr(typ, a.AsSlice()) }
func (m *message) nest(typ uint16, f func(*message)) {
	var in message
	f(&in)
	m.attr(typ|unix.NLA_F_NESTED, in.body)
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Flags of additions. An addition never replaces: what holds the slot and is not ours stays, and the kernel says
// EEXIST. Neighbours are the exception, see encodeNeighbour.
const (
	flagsAdd     = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	flagsReplace = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	flagsRemove  = unix.NLM_F_ACK
)

// encode returns the messages for an operation, in the order in which they must be sent.
func encode(op Op) ([]message, error) {
	switch e := op.Entry.(type) {
	case Address:
		return encodeAddress(op, e), nil
	case Route:
		return []message{encodeRoute(op.Verb, e)}, nil
	case Rule:
		return []message{encodeRule(op.Verb, e)}, nil
	case Neighbour:
		return []message{encodeNeighbour(op.Verb, e)}, nil
	case LooseRPF:
		return []message{encodeLooseRPF(e)}, nil
	}
	return nil, fmt.Errorf("encode %T: unknown kind of entry", op.Entry)
}

// encodeAddress: an address whose prefix length changes goes before it comes back, because IPv6 holds one per
// interface whatever its length. Only a change of the configuration does that.
func encodeAddress(op Op, a Address) []message {
	switch op.Verb {
	case Remove:
		return []message{addressMessage(unix.RTM_DELADDR, flagsRemove, a)}
	case Replace:
		old := Address{a.Index, op.Old.(Address).Prefix}
		return []message{addressMessage(unix.RTM_DELADDR, flagsRemove, old), addressMessage(unix.RTM_NEWADDR, flagsAdd, a)}
	}
	return []message{addressMessage(unix.RTM_NEWADDR, flagsAdd, a)}
}

func addressMessage(typ, flags uint16, a Address) message {
	ip := a.Prefix.Addr()
	scope := uint8(unix.RT_SCOPE_UNIVERSE)
	if ip.Is4() {
		scope = unix.RT_SCOPE_HOST // inet_select_addr passes over it for every route that leaves the node
	}
	m := message{typ: typ, flags: flags, body: []byte{uint8(FamilyOf(ip)), uint8(a.Prefix.Bits()), 0, scope}}
	m.body = append(m.body, u32(uint32(a.Index))...)
	m.addr(unix.IFA_LOCAL, ip)
	m.addr(unix.IFA_ADDRESS, ip)
	if typ == unix.RTM_DELADDR {
		return m
	}
	m.u32(unix.IFA_FLAGS, unix.IFA_F_NOPREFIXROUTE|unix.IFA_F_NODAD)
	m.u32(ifaRTPriority, addressTag)
	m.u8(ifaProto, Protocol)
	if ip.Is6() { // preferred 0 makes it deprecated: RFC 6724 rule 3 passes over it; valid for ever
		m.attr(unix.IFA_CACHEINFO, append(append(u32(0), u32(infinityLifeTime)...), make([]byte, 8)...))
	}
	return m
}

// encodeRoute: a removal names table, destination, metric and our protocol, and leaves the rest open, so that it
// also fits what somebody made of our route.
func encodeRoute(v Verb, r Route) message {
	m := message{typ: unix.RTM_NEWROUTE, flags: flagsAdd}
	scope, typ, flags := uint8(unix.RT_SCOPE_UNIVERSE), uint8(unix.RTN_UNICAST), uint32(0)
	switch {
	case v == Remove:
		m.typ, m.flags = unix.RTM_DELROUTE, flagsRemove
		scope, typ = unix.RT_SCOPE_NOWHERE, unix.RTN_UNSPEC
	case r.Dst.Addr().Is4() && !r.Gateway.IsValid():
		scope = unix.RT_SCOPE_LINK // IPv6 knows no scopes of routes
	}
	if v == Replace {
		m.flags = flagsReplace
	}
	if r.OnLink {
		flags = unix.RTNH_F_ONLINK
	}
	table := uint8(unix.RT_TABLE_UNSPEC) // above 255 only the attribute can tell
	if r.Table <= 255 {
		table = uint8(r.Table)
	}
	m.body = []byte{uint8(r.Family()), uint8(r.Dst.Bits()), 0, 0, table, Protocol, scope, typ}
	m.body = append(m.body, u32(flags)...)
	m.addr(unix.RTA_DST, r.Dst.Addr())
	m.u32(unix.RTA_TABLE, r.Table)
	m.u32(unix.RTA_PRIORITY, r.Metric)
	if v != Remove {
		m.nextHop(r)
	}
	return m
}

func (m *message) nextHop(r Route) {
	m.u32(unix.RTA_OIF, uint32(r.Index))
	if r.Gateway.IsValid() {
		m.addr(unix.RTA_GATEWAY, r.Gateway)
	}
	if r.Source.IsValid() {
		m.addr(unix.RTA_PREFSRC, r.Source)
	}
	if r.MTU != 0 {
		m.nest(unix.RTA_METRICS, func(in *message) { in.u32(unix.RTAX_MTU, r.MTU) })
	}
}

func encodeRule(v Verb, r Rule) message {
	m := message{typ: unix.RTM_NEWRULE, flags: flagsAdd}
	if v == Remove {
		m.typ, m.flags = unix.RTM_DELRULE, flagsRemove
	}
	m.body = []byte{uint8(r.Fam), 0, 0, 0, 0, 0, 0, frActToTable, 0, 0, 0, 0}
	m.u32(fraPriority, r.Priority)
	m.u32(fraFwmark, r.Mark)
	m.u32(fraFwmask, r.Mask)
	m.u32(fraTable, r.Table)
	m.u8(fraProtocol, Protocol)
	return m
}

// encodeNeighbour: an addition replaces, because packets that came while our entry was missing have left one
// behind that is trying to resolve, or has failed to. Permanent ones of others are kept out by Plan.
func encodeNeighbour(v Verb, n Neighbour) message {
	m := message{typ: unix.RTM_NEWNEIGH, flags: flagsReplace}
	if v == Remove {
		m.typ, m.flags = unix.RTM_DELNEIGH, flagsRemove
	}
	m.body = append([]byte{uint8(n.Family()), 0, 0, 0}, u32(uint32(n.Index))...)
	m.body = binary.NativeEndian.AppendUint16(m.body, unix.NUD_PERMANENT)
	m.body = append(m.body, 0, 0) // flags, type
	m.addr(unix.NDA_DST, n.Addr)
	if v != Remove {
		m.attr(unix.NDA_LLADDR, n.MAC[:])
		m.u8(ndaProtocol, Protocol)
	}
	return m
}

// encodeLooseRPF sets rp_filter through the link, not through /proc/sys: that also works where /proc/sys is read
// only, as it is in containers, and in the network namespace of the socket.
func encodeLooseRPF(l LooseRPF) message {
	m := message{typ: unix.RTM_SETLINK, flags: flagsRemove, body: make([]byte, unix.SizeofIfInfomsg)}
	binary.NativeEndian.PutUint32(m.body[4:], uint32(l.Index))
	m.nest(unix.IFLA_AF_SPEC, func(spec *message) {
		spec.nest(unix.AF_INET, func(inet *message) {
			inet.nest(iflaInetConf, func(conf *message) { conf.u32(ipv4DevconfRP, rpLoose) })
		})
	})
	return m
}

// Dump requests. The sockets are strict (NETLINK_GET_STRICT_CHK, since 4.20), so the kernel honours the filters.

func dumpLinks() message {
	m := message{typ: unix.RTM_GETLINK, body: make([]byte, unix.SizeofIfInfomsg)}
	m.u32(unix.IFLA_EXT_MASK, skipStatistics)
	return m
}

func dumpAddrs(f Family) message {
	return message{typ: unix.RTM_GETADDR, body: append([]byte{uint8(f)}, make([]byte, unix.SizeofIfAddrmsg-1)...)}
}

// dumpOurRoutes asks for our protocol in all tables.
func dumpOurRoutes(f Family) message {
	m := message{typ: unix.RTM_GETROUTE, body: append([]byte{uint8(f)}, make([]byte, unix.SizeofRtMsg-1)...)}
	m.body[5] = Protocol
	return m
}

// dumpTable asks for all routes of one table.
func dumpTable(f Family, table uint32) message {
	m := message{typ: unix.RTM_GETROUTE, body: append([]byte{uint8(f)}, make([]byte, unix.SizeofRtMsg-1)...)}
	m.u32(unix.RTA_TABLE, table)
	return m
}

func dumpRules(f Family) message {
	return message{typ: unix.RTM_GETRULE, body: append([]byte{uint8(f)}, make([]byte, unix.SizeofRtMsg-1)...)}
}

func dumpNeighbours(f Family) message {
	return message{typ: unix.RTM_GETNEIGH, body: append([]byte{uint8(f)}, make([]byte, unix.SizeofNdMsg-1)...)}
}

func dumpNetconf(f Family) message {
	return message{typ: unix.RTM_GETNETCONF, body: []byte{uint8(f), 0, 0, 0}}
}

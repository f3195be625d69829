// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Message types of ctnetlink (enum cntl_msg_types, linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet      uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete   uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctGetStats uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5
)

// Attributes of ctnetlink, from the same header.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaMark       = 8
	ctaID         = 12
	ctaZone       = 18
	ctaMarkMask   = 21
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1

	ctaFilterOrigFlags = 1

	ctaStatsGlobalEntries = 1
)

// Flags of CTA_FILTER_ORIG_FLAGS: the parts of the original tuple that an entry must match. The kernel keeps their
// values in net/netfilter/nf_internals.h; libnetfilter_conntrack and the tests here hold them.
const (
	filterIPDst   uint32 = 1 << 1
	filterProto   uint32 = 1 << 3
	filterDstPort uint32 = 1 << 5
)

// nfgenLen is the length of nfgenmsg, which golang.org/x/sys/unix does not give.
const nfgenLen = 4

// errMalformed is returned for a message that the kernel would not write.
var errMalformed = errors.New("malformed conntrack message")

// begin appends a message header whose length finish fills in, and returns where the message begins.
func begin(b []byte, typ, flags uint16, seq uint32, family uint8) ([]byte, int) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0)
	return append(b, family, unix.NFNETLINK_V0, 0, 0), at
}

// finish sets the length of the message that begins at at.
func finish(b []byte, at int) []byte {
	binary.NativeEndian.PutUint32(b[at:], uint32(len(b)-at))
	return b
}

// header is what we need of a nlmsghdr.
type header struct {
	typ, flags uint16
	seq        uint32
}

// nextMessage splits the first message off b. data begins with nfgenmsg, or with the errno of an error or the end.
func nextMessage(b []byte) (h header, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return h, nil, nil, false
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < unix.SizeofNlMsghdr || n > len(b) {
		return h, nil, nil, false
	}
	h.typ, h.flags = binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	h.seq = binary.NativeEndian.Uint32(b[8:])
	return h, b[unix.SizeofNlMsghdr:n], b[min((n+3)&^3, len(b)):], true
}

// errnoOf returns the error that an NLMSG_ERROR or NLMSG_DONE carries, nil for success.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return errMalformed
	}
	if e := -int32(binary.NativeEndian.Uint32(data)); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// open appends the header of a nested attribute and returns where it begins.
func open(b []byte, typ uint16) ([]byte, int) {
	at := len(b)
	b = append(b, 0, 0)
	return binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED), at
}

// shut sets the length of the nested attribute that begins at at.
func shut(b []byte, at int) []byte {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

// attr appends one attribute, padded to four bytes.
func attr(b []byte, typ uint16, data ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// attr16 and attr32 append numbers in network order, as ctnetlink wants them.
func attr16(b []byte, typ, v uint16) []byte { return attr(b, typ, byte(v>>8), byte(v)) }
func attr32(b []byte, typ uint16, v uint32) []byte {
	return attr(b, typ, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// attrAddr appends an address as a source or destination of a tuple.
func attrAddr(b []byte, v4, v6 uint16, a netip.Addr) []byte {
	if a.Is4() {
		d := a.As4()
		return attr(b, v4, d[:]...)
	}
	d := a.As16()
	return attr(b, v6, d[:]...)
}

// familyOf returns the address family of a.
func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// appendDump appends the request for a dump of the entries that match q.
//
// Whatever a kernel does not know of the filter it ignores: it then returns more than was asked for, never less.
// Every entry is judged again, so the filter is only about cost.
func (q *query) appendDump(b []byte, seq uint32) []byte {
	b, at := begin(b, ctGet, unix.NLM_F_DUMP, seq, q.family)
	if q.dnat {
		b = attr32(b, ctaStatus, statusDstNAT)
		b = attr32(b, ctaStatusMask, statusDstNAT)
	}
	if q.markMask != 0 {
		b = attr32(b, ctaMark, q.mark&q.markMask)
		b = attr32(b, ctaMarkMask, q.markMask)
	}
	if q.zone != nil {
		b = attr16(b, ctaZone, *q.zone)
	}
	if q.proto != 0 {
		b = q.appendTuple(b)
	}
	return finish(b, at)
}

// appendTuple appends the filter on the original tuple (Linux 5.8).
//
// The destination address is used in IPv4 only: kernels up to at least 6.18 have the sense of the comparison of
// IPv6 addresses wrong and return all entries but the ones asked for.
func (q *query) appendTuple(b []byte) []byte {
	flags := filterProto
	b, tuple := open(b, ctaTupleOrig)
	if q.dst.Is4() {
		flags |= filterIPDst
		var ip int
		b, ip = open(b, ctaTupleIP)
		b = shut(attrAddr(b, ctaIPv4Dst, ctaIPv6Dst, q.dst), ip)
	}
	b, proto := open(b, ctaTupleProto)
	b = attr(b, ctaProtoNum, byte(q.proto))
	if q.port != 0 {
		flags |= filterDstPort
		b = attr16(b, ctaProtoDstPort, q.port)
	}
	b = shut(shut(b, proto), tuple)
	b, filter := open(b, ctaFilter)
	var host [4]byte // the flags alone are in host order
	binary.NativeEndian.PutUint32(host[:], flags)
	return shut(attr(b, ctaFilterOrigFlags, host[:]...), filter)
}

// appendDelete appends the request to delete exactly f: by original tuple, zone and ID, so that an entry that the same
// client opened meanwhile, by the new rules, is not hit.
func (f *Flow) appendDelete(b []byte, seq uint32) []byte {
	b, at := begin(b, ctDelete, unix.NLM_F_ACK, seq, familyOf(f.Src.Addr()))
	b, tuple := open(b, ctaTupleOrig)
	b, ip := open(b, ctaTupleIP)
	b = attrAddr(b, ctaIPv4Src, ctaIPv6Src, f.Src.Addr())
	b = shut(attrAddr(b, ctaIPv4Dst, ctaIPv6Dst, f.Dst.Addr()), ip)
	b, proto := open(b, ctaTupleProto)
	b = attr(b, ctaProtoNum, byte(f.Proto))
	b = attr16(b, ctaProtoSrcPort, f.Src.Port())
	b = shut(attr16(b, ctaProtoDstPort, f.Dst.Port()), proto)
	if f.ZoneOrig {
		b = attr16(b, ctaTupleZone, f.Zone)
	}
	b = shut(b, tuple)
	if f.Zone != 0 && !f.ZoneOrig {
		b = attr16(b, ctaZone, f.Zone)
	}
	b = attr32(b, ctaID, f.ID)
	return finish(b, at)
}

// nextAttr splits the first attribute off b.
func nextAttr(b []byte) (typ uint16, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlAttr {
		return 0, nil, nil, false
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < unix.SizeofNlAttr || n > len(b) {
		return 0, nil, nil, false
	}
	typ = binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return typ, b[unix.SizeofNlAttr:n], b[min((n+3)&^3, len(b)):], true
}

// decode reads the attributes of one entry. It reports false for an entry without ports (ICMP and the like) and for
// one that is malformed: neither is of a Service.
func (f *Flow) decode(b []byte) bool {
	*f = Flow{}
	for {
		typ, data, rest, ok := nextAttr(b)
		if !ok {
			return f.Src.IsValid() && f.From.IsValid()
		}
		b = rest
		switch typ {
		case ctaTupleOrig:
			f.Src, f.Dst = f.decodeTuple(data, true)
		case ctaTupleReply:
			f.From, f.To = f.decodeTuple(data, false)
		case ctaStatus:
			f.Status = number32(data)
		case ctaProtoInfo:
			f.TCPState = tcpState(data)
		case ctaMark:
			f.Mark = number32(data)
		case ctaID:
			f.ID = number32(data)
		case ctaZone:
			f.Zone = number16(data)
		}
	}
}

// decodeTuple reads one direction. The results are invalid if an address is missing.
func (f *Flow) decodeTuple(b []byte, orig bool) (src, dst netip.AddrPort) {
	var from, to netip.Addr
	var sport, dport uint16
	for {
		typ, data, rest, ok := nextAttr(b)
		if !ok {
			break
		}
		b = rest
		switch typ {
		case ctaTupleIP:
			from, to = decodeAddrs(data)
		case ctaTupleProto:
			sport, dport = f.decodePorts(data)
		case ctaTupleZone:
			if orig {
				f.Zone, f.ZoneOrig = number16(data), true
			}
		}
	}
	if !from.IsValid() || !to.IsValid() {
		return src, dst
	}
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport)
}

// decodeAddrs reads the addresses of a tuple.
func decodeAddrs(b []byte) (src, dst netip.Addr) {
	for {
		typ, data, rest, ok := nextAttr(b)
		if !ok {
			return src, dst
		}
		b = rest
		a, _ := netip.AddrFromSlice(data)
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			src = a
		case ctaIPv4Dst, ctaIPv6Dst:
			dst = a
		}
	}
}

// decodePorts reads protocol and ports of a tuple.
func (f *Flow) decodePorts(b []byte) (src, dst uint16) {
	for {
		typ, data, rest, ok := nextAttr(b)
		if !ok {
			return src, dst
		}
		b = rest
		switch typ {
		case ctaProtoNum:
			if len(data) > 0 {
				f.Proto = Proto(data[0])
			}
		case ctaProtoSrcPort:
			src = number16(data)
		case ctaProtoDstPort:
			dst = number16(data)
		}
	}
}

// tcpState returns the TCP state out of CTA_PROTOINFO, 0 if there is none.
func tcpState(b []byte) uint8 {
	typ, data, _, ok := nextAttr(b)
	if !ok || typ != ctaProtoInfoTCP {
		return 0
	}
	for {
		typ, value, rest, ok := nextAttr(data)
		if !ok {
			return 0
		}
		if typ == ctaProtoInfoTCPState && len(value) > 0 {
			return value[0]
		}
		data = rest
	}
}

// number16 and number32 read numbers in network order; what is too short counts as 0.
func number16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func number32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

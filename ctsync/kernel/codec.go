// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// Message types of ctnetlink (enum cntl_msg_types, linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5
)

// Attributes of ctnetlink, from the same header.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
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

// Flags of CTA_FILTER_ORIG_FLAGS: the parts of the original tuple that an entry has to match. The kernel keeps their
// values in net/netfilter/nf_internals.h; libnetfilter_conntrack has them too.
const (
	filterIPDst   uint32 = 1 << 1
	filterProto   uint32 = 1 << 3
	filterDstPort uint32 = 1 << 5
)

// Status bits of an entry (enum ip_conntrack_status, linux/netfilter/nf_conntrack_common.h).
const (
	statusSeenReply uint32 = 1 << 1
	statusDstNAT    uint32 = 1 << 5
)

// nfgenLen is the length of struct nfgenmsg, which begins each message.
const nfgenLen = 4

// request returns a message with the given attributes behind struct nfgenmsg. Family 0 is any.
func request(typ netlink.HeaderType, flags netlink.HeaderFlags, family nl.Family, attrs func(b *nl.Buffer)) netlink.Message {
	b := nl.Buffer{byte(family), unix.NFNETLINK_V0, 0, 0}
	attrs(&b)
	return netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request | flags}, Data: b}
}

// dumpRequest is for the entries that match q. A kernel ignores filters that it does not have.
func dumpRequest(q ctsync.Query) netlink.Message {
	return request(ctGet, netlink.Dump, q.Family, func(b *nl.Buffer) {
		if q.DNAT {
			b.Net32(ctaStatus, statusDstNAT)
			b.Net32(ctaStatusMask, statusDstNAT)
		}
		if q.Proto != 0 {
			putFilter(b, q)
		}
	})
}

// putFilter appends the filter on the original tuple (Linux 5.8). The address is used in IPv4 only: kernels up to at
// least 6.18 have the sense of the comparison of IPv6 addresses wrong and return all entries but the wanted ones.
func putFilter(b *nl.Buffer, q ctsync.Query) {
	flags := filterProto
	tuple := b.Open(ctaTupleOrig)
	if q.Dst.Is4() {
		flags |= filterIPDst
		ip := b.Open(ctaTupleIP)
		b.Addr(ctaIPv4Dst, q.Dst)
		b.Close(ip)
	}
	proto := b.Open(ctaTupleProto)
	b.Bytes(ctaProtoNum, byte(q.Proto))
	if q.Port != 0 {
		flags |= filterDstPort
		b.Net16(ctaProtoDstPort, q.Port)
	}
	b.Close(proto)
	b.Close(tuple)
	filter := b.Open(ctaFilter)
	b.Host32(ctaFilterOrigFlags, flags)
	b.Close(filter)
}

// putTuple appends a tuple; the kernel fills in what a lookup does not need.
func putTuple(b *nl.Buffer, typ uint16, f *ctsync.Flow, src, dst netip.AddrPort) {
	tuple := b.Open(typ)
	ip := b.Open(ctaTupleIP)
	if src.Addr().Is4() {
		b.Addr(ctaIPv4Src, src.Addr())
		b.Addr(ctaIPv4Dst, dst.Addr())
	} else {
		b.Addr(ctaIPv6Src, src.Addr())
		b.Addr(ctaIPv6Dst, dst.Addr())
	}
	b.Close(ip)
	proto := b.Open(ctaTupleProto)
	b.Bytes(ctaProtoNum, byte(f.Proto))
	b.Net16(ctaProtoSrcPort, src.Port())
	b.Net16(ctaProtoDstPort, dst.Port())
	b.Close(proto)
	if f.ZoneOrig && typ == ctaTupleOrig {
		b.Net16(ctaTupleZone, f.Zone)
	}
	b.Close(tuple)
}

// deleteRequest is for the deletion of exactly f: by original tuple, zone and ID, so that an entry that the same
// client has opened since, by the new rules, is not hit.
func deleteRequest(f *ctsync.Flow) netlink.Message {
	return request(ctDelete, netlink.Acknowledge, nl.FamilyOf(f.Src.Addr()), func(b *nl.Buffer) {
		putTuple(b, ctaTupleOrig, f, f.Src, f.Dst)
		if f.Zone != 0 && !f.ZoneOrig {
			b.Net16(ctaZone, f.Zone)
		}
		b.Net32(ctaID, f.ID)
	})
}

// decode reads one entry. It reports false for one without addresses, which the kernel never sends.
func decode(f *ctsync.Flow, message []byte) bool {
	*f = ctsync.Flow{}
	for typ, v := range nl.Attrs(message[min(nfgenLen, len(message)):]) {
		switch typ {
		case ctaTupleOrig:
			f.Src, f.Dst = decodeTuple(f, v, true)
		case ctaTupleReply:
			f.ReplySrc, _ = decodeTuple(f, v, false)
		case ctaStatus:
			f.Replied = uint32(nl.Net(v))&statusSeenReply != 0
		case ctaProtoInfo:
			f.TCPState = uint8(nl.Net(nl.Find(nl.Find(v, ctaProtoInfoTCP), ctaProtoInfoTCPState)))
		case ctaID:
			f.ID = uint32(nl.Net(v))
		case ctaZone:
			f.Zone = uint16(nl.Net(v))
		}
	}
	return f.Src.Addr().IsValid() && f.ReplySrc.Addr().IsValid()
}

// decodeTuple reads one direction. The protocol is the same in both; the ports are 0 for protocols without.
func decodeTuple(f *ctsync.Flow, b []byte, orig bool) (src, dst netip.AddrPort) {
	var from, to netip.Addr
	var sport, dport uint16
	for typ, v := range nl.Attrs(b) {
		switch typ {
		case ctaTupleIP:
			for typ, v := range nl.Attrs(v) {
				switch typ {
				case ctaIPv4Src, ctaIPv6Src:
					from = nl.Addr(v)
				case ctaIPv4Dst, ctaIPv6Dst:
					to = nl.Addr(v)
				}
			}
		case ctaTupleProto:
			for typ, v := range nl.Attrs(v) {
				switch typ {
				case ctaProtoNum:
					f.Proto = nl.Proto(nl.Net(v))
				case ctaProtoSrcPort:
					sport = uint16(nl.Net(v))
				case ctaProtoDstPort:
					dport = uint16(nl.Net(v))
				}
			}
		case ctaTupleZone:
			if orig {
				f.Zone, f.ZoneOrig = uint16(nl.Net(v)), true
			}
		}
	}
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport)
}

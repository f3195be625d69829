// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// TraceType is what a TraceEvent is about (enum nft_trace_types).
type TraceType uint32

const (
	TracePolicy TraceType = unix.NFT_TRACETYPE_POLICY // a base chain came to its end
	TraceReturn TraceType = unix.NFT_TRACETYPE_RETURN // a chain came to its end
	TraceRule   TraceType = unix.NFT_TRACETYPE_RULE   // a rule matched
)

// Verdicts of rules and policies (enum nft_verdicts and linux/netfilter.h).
const (
	VerdictDrop     int32 = 0
	VerdictAccept   int32 = 1
	VerdictStolen   int32 = 2
	VerdictQueue    int32 = 3
	VerdictContinue int32 = -1
	VerdictBreak    int32 = -2
	VerdictJump     int32 = -3
	VerdictGoto     int32 = -4
	VerdictReturn   int32 = -5
)

// TraceTable names any table: its family by the number NFPROTO_*, of which 1 is inet.
type TraceTable struct {
	Family uint8
	Name   string
}

// FamilyName is the name that nft prints.
func (t TraceTable) FamilyName() string {
	switch t.Family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
		return Family(t.Family).String()
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	}
	return "family"
}

func (t TraceTable) String() string { return t.FamilyName() + " " + t.Name }

// IsOurs reports whether the table is one of the two of the Services.
func (t TraceTable) IsOurs() bool {
	return t.Name == TableName && (t.Family == unix.NFPROTO_IPV4 || t.Family == unix.NFPROTO_IPV6)
}

// TraceEvent is one message of the kernel about a packet that is traced.
type TraceEvent struct {
	// ID distinguishes packets: it is that of one packet from the device it came in by to the one it leaves by. Later
	// packets may have it again.
	ID    uint32
	Table TraceTable
	Chain string
	Type  TraceType
	// Handle is the rule's. Of a policy and of the end of a chain it is 0.
	Handle uint64
	// Verdict is the rule's or the policy's; Target the chain that a jump or goto leads to.
	Verdict int32
	Target  string
	Mark    uint32
	// Packet is how the packet is at that time. Each hook's first message has it; in others it is nil.
	Packet *TracePacket
}

// Starts reports whether the event is of the rule that makes the kernel trace a packet because of a filter of ours.
func (e *TraceEvent) Starts() bool {
	return e.Type == TraceRule && e.Chain == TraceChain && IsTraceTable(e.Table.Name)
}

// TracePacket is what is known of a packet at a hook.
type TracePacket struct {
	Family   Family
	Proto    Proto
	Src, Dst netip.AddrPort // of protocols without ports, and of later fragments, the ports are 0
	TCPFlags uint8
	IIF, OIF uint32 // interface indexes, 0 for none
}

// DecodeTrace decodes the body of NFT_MSG_TRACE, which begins with struct nfgenmsg; ok is false for what is none.
func DecodeTrace(b []byte) (e TraceEvent, ok bool) {
	if len(b) < 4 {
		return e, false
	}
	e.Table.Family = b[0]
	var network, transport []byte
	var iif, oif, nfproto uint32
	for typ, v := range nl.Attrs(b[4:]) {
		switch typ {
		case unix.NFTA_TRACE_TABLE:
			e.Table.Name = nl.Text(v)
		case unix.NFTA_TRACE_CHAIN:
			e.Chain = nl.Text(v)
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.Handle = nl.Net(v)
		case unix.NFTA_TRACE_TYPE:
			e.Type = TraceType(nl.Net(v))
		case unix.NFTA_TRACE_VERDICT:
			e.Verdict, e.Target = int32(nl.Net(nl.Find(v, unix.NFTA_VERDICT_CODE))), nl.Text(nl.Find(v, unix.NFTA_VERDICT_CHAIN))
		case unix.NFTA_TRACE_POLICY:
			e.Verdict = int32(nl.Net(v))
		case unix.NFTA_TRACE_ID:
			e.ID = uint32(nl.Net(v))
		case unix.NFTA_TRACE_MARK:
			e.Mark = uint32(nl.Net(v))
		case unix.NFTA_TRACE_NFPROTO:
			nfproto = uint32(nl.Net(v))
		case unix.NFTA_TRACE_IIF:
			iif = uint32(nl.Net(v))
		case unix.NFTA_TRACE_OIF:
			oif = uint32(nl.Net(v))
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = v
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = v
		}
	}
	if e.Type == TraceRule && e.Handle == 0 {
		e.Type = TraceReturn // newer kernels report the end of a chain as a rule without handle
	}
	if network != nil && nfproto != 0 || iif != 0 || oif != 0 {
		e.Packet = decodePacket(nfproto, network, transport)
		e.Packet.IIF, e.Packet.OIF = iif, oif
	}
	return e, e.Table.Name != "" && e.Chain != "" && e.Type != 0
}

// decodePacket reads the headers: of IPv6 with extension headers the protocol remains unknown, and with it the ports.
func decodePacket(nfproto uint32, network, transport []byte) *TracePacket {
	p := &TracePacket{Family: Family(nfproto)}
	var src, dst netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4: // RFC 791
		p.Family, p.Proto = IPv4, Proto(network[9])
		src, dst = netip.AddrFrom4([4]byte(network[12:16])), netip.AddrFrom4([4]byte(network[16:20]))
		if binary.BigEndian.Uint16(network[6:])&0x1fff != 0 {
			transport = nil // a later fragment
		}
	case len(network) >= 40 && network[0]>>4 == 6: // RFC 8200
		p.Family, p.Proto = IPv6, Proto(network[6])
		src, dst = netip.AddrFrom16([16]byte(network[8:24])), netip.AddrFrom16([16]byte(network[24:40]))
	default:
		return p
	}
	var sport, dport uint16
	if len(transport) >= 4 && (p.Proto == TCP || p.Proto == UDP || p.Proto == SCTP) {
		sport, dport = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
	}
	if p.Proto == TCP && len(transport) >= 14 {
		p.TCPFlags = transport[13]
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p
}

// TracedRule is what a reader of traces needs to know about a rule of any table.
type TracedRule struct {
	Handle  uint64
	Comment string
	// Rejects means that the rule answers what it drops, Masquerades that it chooses the source.
	Rejects, Masquerades bool
}

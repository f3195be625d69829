// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"encoding/binary"
	"net/netip"
)

// Header lengths without options: RFC 791, RFC 8200, RFC 9293.
const (
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
)

const (
	tcpSynRecv   uint8 = 2
	tcpCloseWait uint8 = 5
)

// nudgeable says whether the client of f may believe to be connected, so that a nudge makes sense. A client still in
// SYN-SENT sends its SYN again and is served by the new rules.
func nudgeable(f *Flow) bool {
	return f.Proto == TCP && f.translated() && f.TCPState >= tcpSynRecv && f.TCPState <= tcpCloseWait
}

// appendNudge appends the IP packet that makes the client of a deleted flow ask, and be refused: a SYN/ACK, as if
// from the address that the client is connected to.
//
// We cannot send a RST ourselves: it must carry the sequence number that the client expects (RFC 5961, section 3.2),
// which only the dead endpoint knew. But a client in a synchronised state answers any SYN with an ACK that carries
// that number (RFC 5961, section 4.2). The ACK meets the new rules as a new connection: another endpoint gets it, who
// knows nothing of it and answers with a RST that fits, or there is none and our reject rule does so. SYN/ACK, not
// SYN, because conntrack takes a first SYN/ACK for invalid and makes no entry of it that the ACK would then follow.
func appendNudge(b []byte, f *Flow) []byte {
	src, dst := f.Dst.Addr(), f.Src.Addr()
	if src.Is4() {
		b = appendIPv4(b, src, dst)
	} else {
		b = appendIPv6(b, src, dst)
	}
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, f.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, f.Src.Port())
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence and acknowledgement: none that the client expects
	b = append(b, tcpLen/4<<4, 0x12)      // data offset; SYN and ACK
	b = append(b, 0, 0, 0, 0, 0, 0)       // window, checksum, urgent pointer
	sum := checksum(pseudoHeader(src, dst), b[at:])
	binary.BigEndian.PutUint16(b[at+16:], sum)
	return b
}

// appendIPv4 appends an IPv4 header for one TCP header. The kernel fills in length, identification and checksum
// (raw(7), IP_HDRINCL).
func appendIPv4(b []byte, src, dst netip.Addr) []byte {
	b = append(b, 4<<4|ipv4Len/4, 0, 0, ipv4Len+tcpLen, 0, 0, 0, 0, 64, byte(TCP), 0, 0)
	b = append(b, src.AsSlice()...)
	return append(b, dst.AsSlice()...)
}

// appendIPv6 appends an IPv6 header for one TCP header.
func appendIPv6(b []byte, src, dst netip.Addr) []byte {
	b = append(b, 6<<4, 0, 0, 0, 0, tcpLen, byte(TCP), 64)
	b = append(b, src.AsSlice()...)
	return append(b, dst.AsSlice()...)
}

// pseudoHeader returns the sum that the checksum of a TCP header begins with (RFC 9293, section 3.1; RFC 8200,
// section 8.1: the same words in both families, in another order).
func pseudoHeader(src, dst netip.Addr) uint32 {
	sum := uint32(TCP) + tcpLen
	for _, a := range [][]byte{src.AsSlice(), dst.AsSlice()} {
		sum += words(a)
	}
	return sum
}

// words sums b as 16 bit words in network order. The length of b is even.
func words(b []byte) (sum uint32) {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return sum
}

// checksum returns the internet checksum of b (RFC 1071), starting from sum.
func checksum(sum uint32, b []byte) uint16 {
	sum += words(b)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

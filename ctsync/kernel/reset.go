// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// Header lengths without options: RFC 791, RFC 8200, RFC 9293.
const (
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
)

// raw has a socket per family for IP packets that we build ourselves. It is for one goroutine; nil sends none.
type raw map[nl.Family]*socket.Conn

// openRaw opens the sockets in the namespace netns (see openTable), none for a family that the kernel lacks. Needs
// CAP_NET_RAW.
func openRaw(netns int) (raw, error) {
	r := raw{}
	for _, f := range nl.Families() {
		// IPPROTO_RAW: the packet includes its IP header (raw(7), and since Linux 2.2 in IPv6 too).
		c, err := socket.Socket(int(f), unix.SOCK_RAW, unix.IPPROTO_RAW, "reset", &socket.Config{NetNS: netns})
		switch {
		case err == nil:
			r[f] = c
		case !errors.Is(err, syscall.EAFNOSUPPORT):
			r.close()
			return nil, fmt.Errorf("open raw %s socket: %w", f, err)
		}
	}
	return r, nil
}

func (r raw) close() {
	for _, c := range r {
		_ = c.Close()
	}
}

// reset sends a challenge to each client of the deleted flows that is connected, and returns how many were sent. One
// that cannot be sent (no route, full queue) leaves its client to its own timeouts.
func (r raw) reset(flows []ctsync.Flow) (sent int) {
	for i := range flows {
		f := &flows[i]
		dst := f.Src.Addr()
		c := r[nl.FamilyOf(dst)]
		// A client still in SYN-SENT sends its SYN again and is served by the new rules.
		connected := f.TCPState >= ctsync.TCPSynRecv && f.TCPState <= ctsync.TCPCloseWait
		if c == nil || f.Proto != ctsync.TCP || !f.Translated() || !connected {
			continue
		}
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.As16()}
		if dst.Is4() {
			to = &unix.SockaddrInet4{Addr: dst.As4()}
		}
		err := c.Sendto(context.Background(), appendChallenge(nil, f), unix.MSG_DONTWAIT, to)
		if err == nil {
			sent++
		}
	}
	return sent
}

// appendChallenge appends an IP packet with a SYN/ACK from the address that the client of f is connected to.
//
// We cannot send a RST ourselves: it needs the sequence number that the client expects (RFC 5961, section 3.2), which
// only the endpoint that is gone knew. But a client in a synchronised state answers any SYN with an ACK that carries
// this number (RFC 5961, section 4.2; before Linux 5.19 all of a host together 1,000 times per second). The ACK passes
// the new rules as a new connection: another endpoint gets it, does not know it and answers with a RST that fits, or
// there is none and our reject rule does so. It is a SYN/ACK and not a SYN, because conntrack takes a first SYN/ACK for
// invalid and makes no entry for it, which the ACK would then follow.
func appendChallenge(b []byte, f *ctsync.Flow) []byte {
	src, dst := f.Dst.Addr(), f.Src.Addr()
	if src.Is4() { // the kernel fills in length, identification and checksum (raw(7), IP_HDRINCL)
		b = append(b, 4<<4|ipv4Len/4, 0, 0, ipv4Len+tcpLen, 0, 0, 0, 0, 64, byte(ctsync.TCP), 0, 0)
	} else {
		b = append(b, 6<<4, 0, 0, 0, 0, tcpLen, byte(ctsync.TCP), 64)
	}
	addrs := len(b)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	tcp := len(b)
	b = binary.BigEndian.AppendUint16(b, f.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, f.Src.Port())
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence and acknowledgement: none that the client expects
	b = append(b, tcpLen/4<<4, 0x12)      // data offset; SYN and ACK
	b = append(b, 0, 0, 0, 0, 0, 0)       // window, checksum, urgent pointer
	// The sum covers a pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1) of the same words in both families:
	// addresses, protocol, length.
	sum := uint32(ctsync.TCP) + tcpLen
	for i := addrs; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[tcp+16:], ^uint16(sum))
	return b
}
